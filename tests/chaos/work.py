"""Users who attach and detach while something is done to a ledger; the verdict on what they saw."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

from tests.chaos.linear import History, unexplained
from tests.chaos.people import Mover, Told, User
from tests.chaos.rested import Rested
from tests.stack import ADMIN, Stack, eventually

HOSTS, USERS, VOLUMES = ("compute-1", "compute-2"), 4, 6
#: How long it may take until everything has ended.
REST_S = 180.0


class Asker(User):
    """Notes when something of its was accepted."""

    accepted: list[float]

    def end_of(self, answer: Any) -> tuple[str, str]:
        if answer is not None and answer.ok:
            self.accepted.append(time.monotonic())
        return super().end_of(answer)


class Work:
    """Users of a ledger with two services and two agents, who attach and detach all the time."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        volumes = [stack.add_volume() for _ in range(VOLUMES)]
        self.told = Told({id_: History(shared=False, commit_s=2.0) for id_ in volumes})
        self.seen = Rested(stack)
        self.operator = Mover("operator", stack, self.told, ADMIN, "operator")
        self.accepted: list[float] = []

    def begin(self) -> None:
        for number in (0, 1):
            self.stack.start_service(number)
        for number, name in enumerate(HOSTS):
            self.stack.start_agent(name, number, 1 - number)
            self.stack.wait_for_host(name)
        for name in HOSTS:
            root = {"volume_id": self.stack.add_volume(bootable=True), "boot_index": 0}
            self.stack.build(root, host=name)

    def ask(self, until: Callable[[], None]) -> None:
        """Users attach and detach while something is done."""
        stop = Event()
        with ThreadPoolExecutor(USERS) as pool:
            users = [pool.submit(self._user(number).work, stop) for number in range(USERS)]
            try:
                until()
            finally:
                stop.set()
        for each in users:
            each.result()

    def _user(self, number: int) -> Asker:
        more: Any = {"operator": self.operator, "servers": sorted(self.stack.servers)}
        user = Asker(f"user-{number}", self.stack, self.told, ADMIN, f"user {number}", **more)
        user.accepted = self.accepted
        return user

    def rest(self) -> None:
        eventually(lambda: self._ids("running") == [], "all ends", REST_S)
        for id_ in self._ids("parked") or ():
            self.operator.ask(
                "POST", f"/v1/operations/{id_}/actions", {"retry": {"reason": "well"}}
            )
        eventually(lambda: self._ids("running", "parked") == [], "nothing is parked", REST_S)

    def _ids(self, *states: str) -> list[str] | None:
        ids: list[str] = []
        for state in states:
            answer = self.operator.ask("GET", "/v1/operations", state=state)
            if answer is None or not answer.ok:
                return None
            ids += [row["operation_id"] for row in answer.json()["operations"]]
        return ids

    def judge(self) -> None:
        assert self.seen.broken() == []
        for volume, history in self.told.histories.items():
            assert (why := unexplained(history)) is None, f"volume {volume}: {why}"
