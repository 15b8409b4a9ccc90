"""Requests to Cinder that may still be carried out, although nobody waits for their answer.

A process that stops waiting, or dies, does not cancel its request: Cinder may carry it out after
another process has looked for its effect.  Then there is a second attachment, or an attached one
returns to `attaching`.  So a request that is not idempotent leaves a mark until it is answered: an
empty file that outlives the agent.  A process that finds the mark waits for LATE_S before it looks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableSet
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from uuid import UUID

from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import LATE_S, PortError

#: Keys are ids, or several joined by "+".  In tests a plain set will do.
Sent = MutableSet[str]


class WaitClock(Protocol):
    """The part of a clock that is needed here."""

    def wait(self, seconds: float) -> None: ...


@contextmanager
def sending(sent: Sent, key: str) -> Iterator[None]:
    """Keep a mark while a request is on its way, and afterwards if its outcome is unknown."""
    sent.add(key)
    try:
        yield
    except PortError as error:
        if error.kind is not ErrorKind.UNKNOWN:  # it was refused, or never sent
            sent.discard(key)
        raise
    sent.discard(key)


def let_land(sent: Sent, key: str, clock: WaitClock) -> None:
    """Wait if an earlier request may still be carried out; the caller looks after that."""
    if key in sent:
        clock.wait(LATE_S)
        sent.discard(key)


class FileMarks(MutableSet[str]):
    """Marks as the files of one directory, each durable when `add` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def __contains__(self, key: object) -> bool:
        return self._file(str(key)).exists()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(path.name for path in self._path.iterdir()))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def add(self, key: str) -> None:
        try:
            self._file(key).touch(mode=0o600)
            handle = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise PortError(
                ErrorKind.RETRYABLE,
                "record_failed",
                f"{self._path} cannot be written ({type(error).__name__}): without it nothing is "
                "asked of Cinder. See that its disk is writable and not full.",
            ) from error

    def discard(self, key: str) -> None:
        """A mark that cannot be removed only costs the next `let_land` a wait."""
        try:
            self._file(key).unlink(missing_ok=True)
        except OSError:
            return

    def _file(self, key: str) -> Path:
        """Ids come from another service, so they are checked: the result is a plain file name."""
        return self._path / "+".join(str(UUID(part)) for part in key.split("+"))
