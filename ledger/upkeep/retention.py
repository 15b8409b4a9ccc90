"""Moves closed months of the log into an archive, out of the table, and back.

A month is closed when the log has an event of a later one: times never go back, so nothing
can come into it any more, whatever clocks do.

`detach` takes out of the table what nobody loads again.  Of a stream that has ended for
good, within the months given, the first and the last event stay: it can still be loaded, at
its true version and in its true end state, so a request that is repeated is recognised, a
late report is refused as stale, and a host that comes back learns that an attachment is
gone.  What operators did or waived stays, too, for whoever asks.  Streams that may go on (of
volumes, servers, hosts) stay whole.  `restore` puts everything back, which a rebuild of
projections needs.

All of it can be stopped anywhere and done again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, LiteralString

import psycopg

import sql
from ledger.log.chain import GENESIS
from ledger.upkeep.archive import Archive, ArchivedEvent, ArchiveError, Month
from ledger.upkeep.long_work import Checkmark
from ledger.upkeep.verify import PAGE_EVENTS, compare, head, of_table, rows
from projections.running.detached import ACTS, ENDINGS, WAIVABLE, detached


class RetentionError(Exception):
    """Refused now; the message says why, `hint` what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def archive(
    connection: psycopg.Connection[Any], into: Archive, before: datetime
) -> Generator[Checkmark]:
    """Write the closed months that begin before a moment and are not in the archive yet.

    Raises BrokenChainError if the log is not what was stored, ArchiveError, RetentionError.
    """
    end, months = head(connection), _months(connection, into)
    done = months[-1].after if months else GENESIS
    if detached(connection, done.position):
        raise RetentionError(
            f"{into.directory} lacks months that were detached from this log.",
            "Give the directory that has all months of it, from the first on.",
        )
    assert end.recorded_at is not None, "the database knows when it was"
    begin = done.position
    closed = list(_closed(connection, begin, min(before, month_of(end.recorded_at))))
    for name, last in closed:
        assert end.log is not None, "there is an event"
        for position in into.write(name, end.log, done, of_table(connection, done.position, last)):
            yield Checkmark(position - begin, closed[-1][1] - begin)
        done = into.months()[-1].after


def _closed(
    connection: psycopg.Connection[Any], after: int, before: datetime
) -> Iterator[tuple[str, int]]:
    """The months behind a position that are to be archived, each with its last position.

    A month ends with a link of the chain.
    """
    month = before
    for (began,) in rows(connection, "next_month", after=after):
        month = month_of(began)
    while month < before:
        following = month_of(month + timedelta(days=31))
        until = _last_before(connection, following)
        for (last,) in rows(connection, "last_link", after=after, until=until):
            yield f"{month:%Y-%m}", last
            after = last
        month = following


def detach(
    connection: psycopg.Connection[Any], archive: Archive, before: datetime
) -> Generator[Checkmark]:
    """Take out of the table what is in the archived months that begin before a moment.

    Nothing goes that was not read back from its file just before.  Raises BrokenChainError
    if the two differ, ArchiveError, RetentionError if projections still need the events.
    """
    months = [each for each in _months(connection, archive) if each.begins_before(before)]
    if not months:
        return
    total = months[-1].last
    _refuse_unprojected(connection, months[-1])  # a stream may end in the last one
    for month in months:
        _refuse_rebuilds(connection)
        archive.check(month)
        what = {"month": f"{month.month}-01", "first": month.first, "last": month.last}
        _run(connection, "begin_to_detach", **what, file=month.file, sha256=month.sha256)
        _refuse_rebuilds(connection)
        after = month.before.position
        for page in _of_file(archive, month):
            compare(connection, month, page, after)
            until = after + len(page)
            bounds = {"after": after, "until": until, "archived": total}
            _run(connection, "detach", **bounds, endings=ENDINGS, acts=ACTS, waivable=WAIVABLE)
            yield Checkmark(until, total)
            after = until


def restore(connection: psycopg.Connection[Any], archive: Archive) -> Generator[Checkmark]:
    """Put everything back that was detached.  Raises BrokenChainError, ArchiveError."""
    wanted = detached(connection, after=0)
    months = {month.file: month for month in _months(connection, archive)}
    done, total = 0, sum(last - first + 1 for first, last, _ in wanted)
    for *_, file in wanted:
        if file not in months:
            raise ArchiveError(f"{archive.directory} does not have {file}")
        archive.check(months[file])
        for page in _of_file(archive, months[file]):
            with connection.transaction(), connection.cursor() as cursor:
                text = sql.query("archive", "restore")
                cursor.executemany(text, [(*row, chain) for row, chain in page])
            done += len(page)
            yield Checkmark(done, total)
        _run(connection, "restored", file=file)


def _months(connection: psycopg.Connection[Any], archive: Archive) -> list[Month]:
    months, log = archive.months(), head(connection).log
    if months and months[0].log != log:
        raise RetentionError(
            f"{archive.directory} is an archive of another log ({months[0].log}, this is {log}).",
            "Each log has a directory of its own.",
        )
    return months


def _refuse_unprojected(connection: psycopg.Connection[Any], month: Month) -> None:
    behind = [name for (name,) in rows(connection, "unprojected", position=month.last)]
    if behind:
        raise RetentionError(
            f"the projections {', '.join(behind)} have not reached the end of {month.month}.",
            "Start the service, and see them catch up: attachment-ledger projection list",
        )


def _refuse_rebuilds(connection: psycopg.Connection[Any]) -> None:
    """A rebuild says that it began and then looks for detached months; we say that a month
    is detached and then look for rebuilds.  So one of the two sees the other.
    """
    rebuilds = [name for (name,) in rows(connection, "rebuilding")]
    if rebuilds:
        raise RetentionError(
            f"projections are being rebuilt: {', '.join(rebuilds)}.",
            "Wait for it, or go on with it if it was stopped: attachment-ledger projection list",
        )


def _of_file(archive: Archive, month: Month) -> Iterator[list[ArchivedEvent]]:
    events = archive.events(month)
    while page := list(islice(events, PAGE_EVENTS)):
        yield page


def _last_before(connection: psycopg.Connection[Any], at: datetime) -> int:
    moment = at - timedelta(microseconds=1)
    cursor = connection.execute(sql.query("reads", "position_at"), {"at": moment})
    [(position,)] = cursor.fetchall()
    return int(position)


def month_of(at: datetime) -> datetime:
    """The moment at which a month began, in UTC."""
    return at.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def _run(connection: psycopg.Connection[Any], query: LiteralString, /, **parameters: Any) -> None:
    connection.execute(sql.query("archive", query), parameters)
