"""`event checkpoint|verify`: what an auditor writes down, and later holds the log against."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ledger.cli.base import PlainCommand, note
from ledger.cli.errors import CliError, ExitCode, usage
from ledger.cli.local.settings import add_config, checked_database
from ledger.cli.log.archived import add_archive, archive_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.upkeep.replay import LogReplay
    from ledger.upkeep.verify import Statement


#: What ledger.upkeep.erase.wrong finds.
_WRONG = {
    "forged": "its person was changed.",
    "left": "the log says that it is erased, and it is there: erase it again.",
    "lost": "it is gone, and no event erased it.",
}


class PrintCheckpoint(PlainCommand):
    """Print a checkpoint of the log; store it, or a signature of it, outside the database."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        self.app.stdout.write(_text(self.client.get("/v1/events/checkpoint")))
        return 0


class VerifyLog(PlainCommand):
    """Prove that no stored event was changed, removed, added or moved.

    It prints the checkpoint up to which the log is proven, also when it is stopped; --since resumes
    there.  If the proof fails, it exits with 4 and names the position.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--checkpoint",
            type=Path,
            action="append",
            default=[],
            metavar="FILE",
            help="also prove that the log up to here is the log of this checkpoint, plain or "
            "signed; may be repeated",
        )
        parser.add_argument(
            "--key",
            metavar="KEY",
            help="the public key as 'event sign' prints it, or a file with it: signed "
            "checkpoints must be signed with it",
        )
        parser.add_argument(
            "--since",
            type=Path,
            metavar="FILE",
            help="begin at this checkpoint; the log before it is not checked",
        )
        parser.add_argument(
            "--rules",
            action="store_true",
            help="also check the ledger's own rules (docs/model.md)",
        )
        add_archive(parser, "where the files of detached months are")
        add_config(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        import psycopg

        from ledger.upkeep import erase
        from ledger.upkeep.archive import Archive
        from ledger.upkeep.replay import LogReplay

        if parsed_args.rules and parsed_args.since:
            raise usage("--rules needs the log from its first event on: leave --since out.")
        replay = LogReplay() if parsed_args.rules else None
        archive = Archive(parsed_args.archive) if parsed_args.archive else None
        with archive_errors():
            since = _read(parsed_args.since) if parsed_args.since else None
            held, roots = _held(parsed_args.checkpoint, parsed_args.key)
            if roots and since:
                raise usage("a signed checkpoint is of the log from its first event on: no --since")
            with (
                checked_database(parsed_args) as dsn,
                psycopg.connect(dsn, autocommit=True) as connection,
            ):
                also = [replay.feed] if replay else []
                also += [roots.feed] if roots else []
                self._verify(connection, archive, since, held=held, also=_all_of(also))
                if roots:
                    roots.end()
                _tell_of_persons(erase.wrong(connection))
        if replay is not None:
            _tell(replay)
        return 0

    def _verify(self, connection: Any, archive: Any, since: Any, **more: Any) -> None:
        from ledger.cli.operations.waiting import ProgressLine as Line
        from ledger.upkeep import verify
        from ledger.upkeep.long_work import WorkProgress

        first = since.checkpoint.position if since else 0
        proven, began = since, time.monotonic()
        try:
            with Line() as line:
                for proven, total in verify.verify(connection, archive, since=since, **more):
                    at, took_s = proven.checkpoint.position, time.monotonic() - began
                    line.say_at_times(str(WorkProgress("verify", at, total, at - first, took_s)))
        except KeyboardInterrupt:
            if proven is not None:
                note("Stopped. With --since and the checkpoint printed here, it goes on there.")
                self.app.stdout.write(_text(proven.as_json()))
            raise
        note(f"All events behind position {first} are as they were stored.")
        self.app.stdout.write(_text(proven.as_json()))


def _tell_of_persons(wrong: list[tuple[str, str]]) -> None:
    """Raises CliError if the table of persons is not what the log says."""
    for what, known_as in wrong:
        note(f"{known_as}: {_WRONG[what]}")
    if wrong:
        raise CliError(
            f"{len(wrong)} person(s) cannot be believed.",
            ExitCode.REFUSED,
            "The log is as it was stored, but who asked is not. docs/audit.md, 'Erase a person'.",
        )


def _tell(replay: LogReplay) -> None:
    """Raises CliError if a rule is broken."""
    replay.end()
    for broken in replay.broken:
        note(str(broken))
    if replay.total:
        raise CliError(
            f"the log breaks rules of the ledger in {replay.total} place(s).",
            ExitCode.REFUSED,
            "docs/model.md says what each rule is for, and what to do.",
        )
    note("It breaks none of the ledger's rules.")


def _held(paths: list[Path], key: str | None) -> tuple[list[Statement], Any]:
    """What checkpoints say: of the chain, and those that are signed of the tree (None: none)."""
    from ledger.cli.log.proof import signed
    from ledger.upkeep.verify import SignedRoots

    ours = [path for path in paths if _bytes(path).startswith(b"attachment-ledger/")]
    plain = [_read(path) for path in paths if path not in ours]
    if key and not ours:
        raise usage("--key checks signed checkpoints, and none is given: --checkpoint FILE.")
    if ours and not key:
        note(
            "No key is given, so signatures are not checked: any writer of these files can have "
            "made them for this log. Name the public key, from a source you trust: --key KEY"
        )
    return plain, SignedRoots([signed(path, key) for path in ours]) if ours else None


def _all_of(takers: list[Any]) -> Callable[[Any], None]:
    def take(page: Any) -> None:
        for each in takers:
            each(page)

    return take


def _read(path: Path) -> Statement:
    from ledger.upkeep.verify import Statement

    return Statement.parse(_bytes(path))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise usage(f"{path} cannot be read: {error.strerror}") from None


def _text(checkpoint: dict[str, Any]) -> str:
    import orjson

    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(checkpoint, option=options).decode()
