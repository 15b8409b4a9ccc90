"""A share as all hosts of a simulated cloud see it; guests whose jobs on its files take long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from host_agent.shared.contract.ports import Merge, Watch
from host_agent.shared.faults import Faults
from host_agent.simulated.adapters import SimulatedGuests
from host_agent.simulated.host_state import HostState
from tests.memory import Crash

if TYPE_CHECKING:
    from tests.simulation.files import Files


class Share:
    """The files: below which other one each is, which are deleted, and what was written where.

    What was written to a file is in each of those that it was merged into.
    """

    def __init__(self) -> None:
        self.below: dict[str, str] = {}
        self.deleted: set[str] = set()
        self._data: dict[str, set[int]] = {}

    def chain(self, path: str | None) -> list[str]:
        """This file and all below it."""
        found: list[str] = []
        while path is not None and path not in found:
            found.append(path)
            path = self.below.get(path)
        return found

    def read(self, path: str) -> set[int]:
        return set().union(*(self._data.get(each, ()) for each in self.chain(path)))

    def write(self, path: str, what: int) -> None:
        self._data.setdefault(path, set()).add(what)

    def change(self, below: dict[str, str]) -> None:
        """Heads of files are written; what is skipped from now on is in both of its neighbours."""
        before = {path: self.chain(path) for path in self.below}
        old, self.below = self.below, dict(below)
        for path, chain in before.items():
            if old[path] == below.get(path):
                continue
            kept = self.chain(path)
            merged = set().union(*(self._data.get(p, ()) for p in chain if p not in kept[1:]))
            for each in (path, *(kept[1:2] or chain[1:2])):
                self._data[each] = self._data.get(each, set()) | merged


class SharingHost(HostState):
    """A host whose volumes' files are those of all hosts."""

    def __init__(self, share: Share, initial: dict[str, Any]) -> None:
        self._share = share
        self._was_read: tuple[str, dict[str, Any]] = ("", {})
        super().__init__(initial=initial)

    @contextmanager
    def edit(self) -> Iterator[dict[str, Any]]:
        with super().edit() as state:
            state["files"] = dict(self._share.below)
            yield state
            if state["files"] != self._share.below:
                self._share.change(state["files"])
            state["files"] = {}

    def read(self) -> dict[str, Any]:
        return super().read() | {"files": dict(self._share.below)}

    def seen(self) -> dict[str, Any]:
        """As `read`, not to be changed; it is looked at more often than it changes."""
        if self._was_read[0] != self._text:
            self._was_read = (self._text, super().read())
        return self._was_read[1] | {"files": dict(self._share.below)}


class PatientGuests(SimulatedGuests):
    """Guests whose jobs on files take their time."""

    def __init__(
        self, files: Files, state: HostState, host: str, lives: Callable[[], bool]
    ) -> None:
        super().__init__(state, Faults(), host)
        self._files, self._state, self._lives = files, state, lives

    @contextmanager
    def _around(self, call: str, server_id: str, serial: str | None = None) -> Iterator[None]:
        held = call in {"merge", "unsnapshot"} and self._files.takes_long()
        with super()._around(call, server_id, serial), ExitStack() as held_up:
            if held:
                held_up.enter_context(self.hypervisor.lying("hold"))
            yield

    def unsnapshot(self, server_id: str, serial: str, file: str, watch: Watch) -> None:
        super().unsnapshot(server_id, serial, file, self._watching(server_id, watch))

    def merge(self, server_id: str, serial: str, merge: Merge, watch: Watch) -> None:
        super().merge(server_id, serial, merge, self._watching(server_id, watch))

    def _watching(self, server_id: str, watch: Watch) -> Looking:
        def looks() -> None:
            self._files.while_a_job_lasts(self._state, server_id)
            if not self._lives():
                raise Crash

        return Looking(watch, looks)


@dataclass(frozen=True)
class Looking:
    """A Watch of somebody who looks at what is under way."""

    watch: Watch
    looks: Callable[[], None]

    def cancelled(self) -> bool:
        return self.watch.cancelled()

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        self.watch.progress(done_bytes, total_bytes)
        self.looks()
