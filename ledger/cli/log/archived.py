"""What commands share that look into an archive: the option, its errors, its events."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ledger.cli.base import note
from ledger.cli.errors import CliError, ExitCode

if TYPE_CHECKING:
    from ledger.cli.client import Client
    from ledger.upkeep.archive import ArchivedEvent


def add_archive(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--archive", type=directory, metavar="DIRECTORY", help=what)


def directory(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"must be a directory, not {text}")
    return path


@contextmanager
def archive_errors() -> Iterator[None]:
    """End the command with what is wrong with the log, its archive, or a checkpoint."""
    from ledger.log.chain import BrokenChainError
    from ledger.upkeep.archive import ArchiveError
    from ledger.upkeep.retention import RetentionError
    from ledger.upkeep.verify import AuditError
    from projections.running.detached import DetachedError

    try:
        yield
    except BrokenChainError as error:
        raise CliError(
            f"the log is not what was stored: {error}.",
            ExitCode.REFUSED,
            "Keep the database and its backups as they are, and find out who could write to it.",
        ) from None
    except DetachedError as error:
        raise CliError(
            str(error), ExitCode.REFUSED, "Say where the archive is: --archive DIRECTORY"
        ) from None
    except RetentionError as error:
        raise CliError(str(error), ExitCode.REFUSED, error.hint) from None
    except ArchiveError as error:
        raise CliError(f"the archive cannot be used: {error}.", ExitCode.REFUSED) from None
    except AuditError as error:
        raise CliError(f"{error}.", ExitCode.USAGE) from None
    except ConnectionError:  # of whoever reads what is printed
        raise
    except OSError as error:
        raise CliError(
            f"a file cannot be read or written: {error}.",
            ExitCode.UNEXPECTED,
            "Once it can be, the same command goes on.",
        ) from None


def listed(
    client: Client, limit: int, after: int, topic: str | None, archive: Path | None
) -> list[dict[str, Any]]:
    """The log in order, or its events of one topic: what the archive has, then the rest from the
    service.  Notes, without an archive, that some may be missing.
    """
    found: list[dict[str, Any]] = []
    for event in _archived(archive, after):
        after = event["position"]
        if topic in {None, event["topic"]}:
            found.append(event)
        if len(found) == limit:
            return found
    left, detached_to = limit - len(found), 0
    for page in client.pages("/v1/events", "events", left, after=after or None, topic=topic):
        found += page["events"]
        detached_to = page["detached_to"]
    if archive is None:
        _note_archived(detached_to)
    return found


class HistorySubject(NamedTuple):
    """What a history is of, e.g. ("volume", its id)."""

    noun: str
    id: str

    @property
    def path(self) -> str:
        return f"/v1/{self.noun}s/{self.id}/history"

    def concerns(self, event: dict[str, Any], operations: Collection[str]) -> bool:
        """`operations`: those of a volume; see projections.reads.log."""
        from projections.reads.log import OF_THE_WHOLE

        column = "host" if self.noun == "host" else f"{self.noun}_id"
        if event[column] == self.id:
            return True
        whole = event["volume_id"] is None or event["topic"] in OF_THE_WHOLE
        return self.noun == "volume" and whole and event["operation_id"] in operations


class AsOf(NamedTuple):
    """A moment, and the later one at which it was known what was so; as the API takes them."""

    at: str | None = None
    known_at: str | None = None

    def tells(self, event: dict[str, Any]) -> bool:
        """Whether an event is told of, as the service has it (its query `learnt`)."""
        if self.at is None:
            return True
        at, recorded = datetime.fromisoformat(self.at), _at(event)
        seen = event["body"].get("seen")
        if recorded <= at or self.known_at is None or not seen:
            return recorded <= at
        begun = seen["after"] is None or datetime.fromisoformat(seen["after"]) <= at
        return begun and recorded <= datetime.fromisoformat(self.known_at)


NOW = AsOf()


def history_of(
    client: Client, subject: HistorySubject, limit: int, as_of: AsOf, archive: Path | None
) -> list[dict[str, Any]]:
    """The last events of one thing, newest first: the service's, and those archived.

    Notes, without an archive, that some may be missing.
    """
    found: dict[int, dict[str, Any]] = {}
    detached_to = 0
    for page in client.pages(subject.path, "events", limit, order="desc", **as_of._asdict()):
        found |= {event["position"]: event for event in page["events"]}
        detached_to = page.get("detached_to", 0)
    if archive is None:
        _note_archived(detached_to)
    operations = {event["operation_id"] for event in found.values()} - {None}
    operations |= _operations_of(archive, subject, as_of)
    for event in _archived(archive):
        if subject.concerns(event, operations) and as_of.tells(event):
            found[event["position"]] = event
    return [found[position] for position in sorted(found, reverse=True)[:limit]]


def _note_archived(detached_to: int) -> None:
    if detached_to:
        note(f"Up to position {detached_to}, some is in the archive only: --archive shows it.")


def _operations_of(archive: Path | None, subject: HistorySubject, as_of: AsOf) -> set[str]:
    """The operations that worked on a volume, as far as the archive tells."""
    if subject.noun != "volume":
        return set()
    return {
        event["operation_id"]
        for event in _archived(archive)
        if event["volume_id"] == subject.id and event["operation_id"] and as_of.tells(event)
    }


def _at(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["recorded_at"])


def _archived(archive: Path | None, after: int = 0) -> Iterator[dict[str, Any]]:
    from ledger.upkeep.archive import Archive

    if archive is not None:
        where = Archive(archive)
        for month in where.months():
            if month.last > after:
                for event in where.events(month, after):
                    yield _as_shown(event)


def _as_shown(event: ArchivedEvent) -> dict[str, Any]:
    """An archived event in the form of the API."""
    import orjson

    from projections.base import upcast
    from projections.reads.log import occurred_at

    columns = event.row._asdict()
    columns["version"] = columns.pop("originator_version")
    body = upcast(event.row.topic, orjson.loads(columns.pop("body")))
    columns["occurred_at"] = occurred_at(body)
    plain: dict[str, Any] = orjson.loads(
        orjson.dumps({**columns, "body": body}, option=orjson.OPT_UTC_Z)
    )
    return plain
