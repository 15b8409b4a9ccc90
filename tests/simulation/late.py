"""Requests that Cinder carries out when nobody waits for them any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from aggregates.attachment import Attachment
from aggregates.instance import Instance
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import LATE_S, AttachmentView, PortError
from tests.memory import Clock, Crash

if TYPE_CHECKING:
    from tests.simulation.cloud import Cloud

#: Those that take effect each time they are carried out.
CALLS = frozenset({"attachment_create", "attachment_update", "volume_create", "tell_snapshot"})
#: Those that are never carried out later than anybody waits.
IN_TIME = frozenset({"volume_create", "tell_snapshot"})
#: How many of them come later than anybody waits.
TOO_LATE = 0.2
TOO_LATE_S = (2 * LATE_S, 60.0)


class LandingClock(Clock):
    """Time, in which requests that are under way arrive."""

    def __init__(self) -> None:
        self._under_way: list[tuple[float, Callable[[], object]]] = []
        super().__init__()

    def later(self, seconds: float, request: Callable[[], object]) -> None:
        self._under_way.append((self.seconds + seconds, request))

    @property
    def seconds(self) -> float:
        return self._seconds

    @seconds.setter
    def seconds(self, seconds: float) -> None:
        self._seconds = seconds
        landing = [request for at, request in self._under_way if at <= seconds]
        self._under_way = [each for each in self._under_way if each[0] > seconds]
        for request in landing:
            request()


class LateCinder:
    """Cinder's ports; some requests are carried out late: their sender gave up, or died."""

    def __init__(self, cloud: Cloud, cinder: Any) -> None:
        self._cloud, self._cinder = cloud, cinder
        self._rate = cloud.chance.random.choice([0.0, 0.03, 0.1])

    def __getattr__(self, call: str) -> Any:
        real = getattr(self._cinder, call)
        if call not in CALLS:
            return real

        def perhaps_late(*args: Any) -> Any:
            draw = self._cloud.chance.random
            if self._cloud.chance.calm or draw.random() >= self._rate:
                return real(*args)
            too_late = draw.random() < TOO_LATE and call not in IN_TIME
            seconds = draw.uniform(*TOO_LATE_S) if too_late else draw.uniform(0.0, 0.9 * LATE_S)
            self._cloud.chance.troubled += 1
            self._cloud.note(f"{call} comes {seconds:.1f} s late")
            self._cloud.clock.later(seconds, lambda: self._land(lambda: real(*args), too_late))
            if draw.random() < 0.5:
                raise Crash
            raise PortError(ErrorKind.UNKNOWN, "cinder_timeout", f"{call} was not answered")

        return perhaps_late

    def _land(self, request: Callable[[], Any], too_late: bool) -> None:
        cloud = self._cloud
        try:
            row = request()
        except PortError as refused:
            cloud.note(f"late request: {refused.code}")
            return
        cloud.happened["late request"] += 1
        if not isinstance(row, AttachmentView):
            cloud.note("late request: done")
            return
        cloud.note(f"late request: {row.id}")
        if too_late:
            cloud.strays.add(row.id)
        nobodys = cloud.store.load(Attachment, UUID(row.id)).version == 0
        if nobodys and cloud.store.load(Instance, UUID(row.server_id)).deleted:
            cloud.direct.attachment_delete(row.id)  # nobody looks any more: an operator's
