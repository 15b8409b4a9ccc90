"""Locks between runs, across threads and across processes of one host.

Theory of operation.  A lock is `flock` on a file of `lock_path`.  Each holder opens the file
itself: flock belongs to the open file, so it excludes threads as well as processes, and the kernel
releases it however the holder dies.  (POSIX record locks belong to the process and would let two
threads in; LP 1947370 was locks inside one process only.)  Files are empty.  The holder removes
the file before it releases the lock.  So whoever acquires a lock checks that the name still leads
to the locked file, and otherwise opens it again.

Kinds, in the order of acquisition.  A run acquires at most one of each kind, or several of a kind
in the order of their names, so there is no deadlock:

1. `server-<id>-<volume id>`: runs of one (server, volume) pair exclude each other; different
   volumes of one server run in parallel.  `server-<id>`: runs for the whole server exclude each
   other; the executor ensures that none of its volumes' runs is in progress beside them.
2. `volume-<id>`, for multi-attach volumes: "is there another user on this host?" and the
   disconnect that depends on the answer are one critical section.
3. `target-<service_uuid>`: the shared-target lock of S3, around all of a run's updates and deletes
   in Cinder and its os-brick calls.  `shared_targets` has three values: false means that no lock
   is needed (os-brick 1800515), true and null mean that it is (LP 1961102).

`agent` is separate: one agent process per lock_path holds it for its life.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from host_agent.clock import Clock
from host_agent.shared.contract.lane import Lane, VolumeSeen
from host_agent.shared.contract.messages import ErrorKind, GuestOrder
from host_agent.shared.contract.ports import PortError, VolumeView

#: Random, made by the kernel at each boot.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: How often a lock of another process is tried: flock has no wait with a timeout.
RETRY_S = 0.05
#: Longer than the longest run (unplug attempts, readiness): beyond it the holder hangs.
DEADLINE_S = 1800.0

_SAFE = re.compile(r"[A-Za-z0-9._-]{1,200}")
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class AgentRunningError(Exception):
    """Another agent process holds the `agent` lock of this lock_path."""


#: A volume as Cinder shows it, or as it was seen lately.
Shown = VolumeView | VolumeSeen


def names_for(lane: Lane, volume: Shown | None) -> list[str]:
    """The locks of a volume's run, in order."""
    pair = f"server-{lane.server_id}-{lane.volume_id}"
    return [pair, *volume_names({lane.volume_id: volume}, multiattach=lane.multiattach)]


def names_for_guest(order: GuestOrder, volumes: Mapping[str, Shown | None]) -> list[str]:
    """The locks of a run for a whole server that connects these volumes, in order."""
    multiattach = any(lane.multiattach for lane in order.lanes)
    return [f"server-{order.server_id}", *volume_names(volumes, multiattach=multiattach)]


def volume_names(volumes: Mapping[str, Shown | None], *, multiattach: bool) -> list[str]:
    """The locks of volumes, by id.  None: not in Cinder, so it has no target."""
    shared, targets = set(), set()
    for volume_id, volume in volumes.items():
        if multiattach or (volume is not None and volume.multiattach):
            shared.add(f"volume-{volume_id}")
        if volume is not None and volume.shared_targets is not False:
            targets.add(f"target-{volume.service_uuid or 'unassigned'}")
    return [*sorted(shared), *sorted(targets)]


def _file_name(name: str) -> str:
    """Ids come from other services: an unusual one is hashed to a plain file name."""
    if _SAFE.fullmatch(name):
        return f"{name}.lock"
    return f"{hashlib.sha256(name.encode()).hexdigest()}.lock"


class Locks:
    """The locks of one directory, which is created if it is missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True, mode=0o750)

    def place(self) -> str:
        """An id of this lock directory in this boot of this machine; only one agent can have it.

        Not the machine id, which a cloned machine has as well.
        """
        boot, here = BOOT_ID.read_text().strip(), self._path.stat()
        return hashlib.sha256(f"{boot}:{here.st_dev}:{here.st_ino}".encode()).hexdigest()[:32]

    @contextmanager
    def hold(
        self, names: Sequence[str], clock: Clock, deadline_s: float = DEADLINE_S
    ) -> Iterator[None]:
        """Hold all `names`, taken in the order given; RETRYABLE `lock_busy` at the deadline."""
        end = clock.now() + deadline_s
        with ExitStack() as held:
            for name in names:
                held.enter_context(self._one(name, clock, end))
            yield

    @contextmanager
    def _one(self, name: str, clock: Clock, end: float) -> Iterator[None]:
        path = self._path / _file_name(name)
        while (handle := _try_or_explain(path)) is None:
            if clock.now() >= end:
                raise PortError(
                    ErrorKind.RETRYABLE,
                    "lock_busy",
                    f"Lock {path.name} was not free in time: see who holds it (lsof {path}).",
                )
            clock.wait(RETRY_S)
        try:
            yield
        finally:
            with suppress(OSError):  # an empty file that stays does no harm
                path.unlink()
            os.close(handle)

    @contextmanager
    def agent(self) -> Iterator[None]:
        """Be the one agent of this directory, or raise AgentRunningError saying who is."""
        path = self._path / _file_name("agent")
        handle = _try_lock(path)
        if handle is None:
            pid = ""
            with suppress(OSError):
                pid = path.read_text().strip()
            raise AgentRunningError(
                f"another agent (process {pid or '?'}) already runs with lock_path {self._path}: "
                "stop it first, or give this one a lock_path and a host name of its own"
            )
        with suppress(OSError):  # a full disk; the id is only for the message to a second agent
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
        try:
            yield
        finally:
            os.close(handle)


def _try_lock(path: Path) -> int | None:
    """The open, locked file of this name; None if another process or thread has it."""
    while True:
        handle, kept = os.open(path, _FLAGS, 0o640), False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if kept := _leads_to(path, handle):  # else its holder has removed it: open it again
                return handle
        except BlockingIOError:
            return None
        finally:
            if not kept:
                os.close(handle)


def _try_or_explain(path: Path) -> int | None:
    try:
        return _try_lock(path)
    except OSError as error:
        raise PortError(
            ErrorKind.RETRYABLE,
            "lock_failed",
            f"Lock file {path} cannot be used: {error.strerror}. Check lock_path.",
        ) from error


def _leads_to(path: Path, handle: int) -> bool:
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(handle))
