"""`event sign|prove`: signed checkpoints, and what one of them proves to who sees nothing else."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ledger.cli.base import POSITION, PlainCommand, note
from ledger.cli.errors import CliError, ExitCode, usage
from ledger.cli.local.settings import add_config, checked_database
from ledger.cli.log.archived import add_archive, archive_errors, directory

if TYPE_CHECKING:
    from ledger.upkeep.archive import Archive
    from ledger.upkeep.check_proof import TreeCheckpoint


class SignLog(PlainCommand):
    """Sign the end of the log, to prove later that nothing before it was changed.

    It adds a checkpoint to the directory, and new hashes to its tree; both can be published.  It
    prints the checkpoint.  Meant for a timer.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "--key",
            type=Path,
            required=True,
            metavar="FILE",
            help="the private key: openssl genpkey -algorithm ed25519",
        )
        add(
            "--to",
            type=directory,
            required=True,
            metavar="DIRECTORY",
            help="the directory of this log's checkpoints, and of no other log's",
        )
        add_archive(parser, "where the files of detached months are")
        add_config(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        import psycopg

        from ledger.cli.local.long_work import run_shown
        from ledger.upkeep import signing
        from ledger.upkeep.signing import log_of

        signed = signing.Signed(parsed_args.to)
        with (
            _errors(),
            checked_database(parsed_args) as dsn,
            psycopg.connect(dsn, autocommit=True) as connection,
        ):
            signer, archive = signing.Signer(parsed_args.key), _archive(parsed_args)
            run_shown(dsn, "sign", lambda _: signing.sign(connection, signed, signer, archive))
            note(f"The public key, for who checks proofs: {signer.key(log_of(connection))}")
        self.app.stdout.write(signed.newest() or "")
        return 0


class ProveEvent(PlainCommand):
    """Print a proof that one event is in a signed checkpoint's log; it shows no other event.

    With --since, it proves that the log of an earlier checkpoint has only grown.  check_proof.py,
    which needs only Python, checks either proof with the public key.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("position", nargs="?", type=POSITION, metavar="<position>")
        what.add_argument(
            "--since", type=Path, metavar="FILE", help="an earlier checkpoint of the same log"
        )
        add(
            "--from",
            type=directory,
            dest="source",
            required=True,
            metavar="DIRECTORY",
            help="the directory of 'event sign'",
        )
        add(
            "--checkpoint",
            type=Path,
            metavar="FILE",
            help="the checkpoint whose log has the event (default: the newest)",
        )
        add_archive(parser, "where the files of detached months are")
        add_config(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        from ledger.upkeep.signing import Signed

        signed = Signed(parsed_args.source)
        text = _text(parsed_args.checkpoint) if parsed_args.checkpoint else signed.newest()
        if text is None:
            raise CliError(
                "there is no checkpoint yet.", ExitCode.NOT_FOUND, "Make one: event sign"
            )
        with _errors():
            made = _grown if parsed_args.since else _inside
            self.app.stdout.write(made(signed, text, parsed_args))
        return 0


def _grown(signed: Any, text: str, arguments: argparse.Namespace) -> str:
    from ledger.upkeep.check_proof import check_consistency, growth_text

    old, new = unsigned(_text(arguments.since)), unsigned(text)
    if old.origin != new.origin or old.size > new.size:
        raise usage(f"{arguments.since} is no earlier checkpoint of {new.origin}.")
    path = signed.tiles(new.size).consistency(old.size)
    check_consistency(old, new, path)
    return growth_text(old.size, path, text)


def _inside(signed: Any, text: str, arguments: argparse.Namespace) -> str:
    import psycopg

    from ledger.upkeep import check_proof, signing

    checkpoint, position = unsigned(text), arguments.position
    if not 0 < position <= checkpoint.size:
        raise CliError(
            f"the checkpoint is of {checkpoint.size} events: {position} is not one of them.",
            ExitCode.NOT_FOUND,
        )
    with (
        checked_database(arguments) as dsn,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        entry = signing.entry(connection, _archive(arguments), position)
    path = signed.tiles(checkpoint.size).inclusion(position - 1)
    root = entry and check_proof.root_by_inclusion(
        check_proof.leaf_hash(entry), position - 1, checkpoint.size, path
    )
    if entry is None or root != checkpoint.root:
        raise CliError(
            f"the event at position {position} is not the one that was signed, or the files of "
            "the tree were changed.",
            ExitCode.REFUSED,
            "Which of them it is: event verify --checkpoint FILE",
        )
    return check_proof.proof_text(position - 1, entry, path, text)


def unsigned(note_text: str) -> TreeCheckpoint:
    """What a checkpoint says; who has its key checks the signature."""
    from ledger.upkeep.check_proof import TreeCheckpoint

    return TreeCheckpoint.unsigned(f"{note_text.rpartition(chr(10) * 2)[0]}\n")


def signed(path: Path, key: str | None) -> TreeCheckpoint:
    """What the checkpoint in a file says.  Raises CliError for what is none, or if the key has not
    signed it; None: that is not asked.
    """
    from ledger.upkeep.check_proof import ProofError, TreeCheckpoint

    text, public = _text(path), _key(key) if key else None
    with _errors():
        said = unsigned(text)
    try:
        return TreeCheckpoint.parse(text, public) if public else said
    except ProofError as error:
        raise CliError(
            f"{path}: {error}.",
            ExitCode.REFUSED,
            "It is not what the holder of the key said of the log: nothing was compared with it.",
        ) from None


def _key(given: str) -> Any:
    from ledger.upkeep.check_proof import key_of

    with _errors():
        try:
            return key_of(given)
        except (OSError, UnicodeDecodeError) as error:
            raise usage(f"the key {given} cannot be read: {error}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise usage(f"{path} cannot be read: {error}") from None


def _archive(arguments: argparse.Namespace) -> Archive | None:
    from ledger.upkeep.archive import Archive

    return Archive(arguments.archive) if arguments.archive else None


@contextmanager
def _errors() -> Iterator[None]:
    from ledger.upkeep.check_proof import ProofError
    from ledger.upkeep.signing import SigningError
    from ledger.upkeep.tiles import TileError

    try:
        with archive_errors():
            yield
    except (SigningError, TileError) as error:
        raise CliError(f"{str(error).strip()}.", ExitCode.REFUSED) from None
    except ProofError as error:
        raise usage(f"{error}.") from None
