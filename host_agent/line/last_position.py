"""The last epoch and log position that the ledger has told this host.

The agent sends them when it registers.  They show that a ledger was restored from an older backup,
even if nobody has said so.  They are durable once the host is registered; later ones, from polls,
are only in memory, because no command may wait for the disk.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import structlog

_LOG = structlog.get_logger(__name__)


class LastPosition:
    """`path`: a file of this host's agent; None: it is forgotten with the process."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._last = _read(path) if path else None

    @property
    def header(self) -> str | None:
        """The value of TOLD_HEADER; None: there is none yet."""
        return None if self._last is None else "{} {}".format(*self._last)

    def registered(self, epoch: int, position: int) -> None:
        """The host is registered; this replaces all earlier values."""
        self._last = (epoch, position)
        if self._path is not None:
            try:
                _write(self._path, f"{epoch} {position}")
            except OSError as error:  # needed only after a restore and a restart of the agent
                _LOG.warning("told_not_kept", path=str(self._path), why=str(error))

    def polled(self, position: int) -> None:
        """A poll of the present epoch has reached this position."""
        if self._last is not None:
            epoch, before = self._last
            self._last = (epoch, max(before, position))


def _read(path: Path) -> tuple[int, int] | None:
    with suppress(OSError, ValueError):
        epoch, position = path.read_text().split()
        return int(epoch), int(position)
    return None


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.new")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
