"""Everything as processes, under load and faults; and what must be so when it is over.

Three services over TLS, three agents, PostgreSQL, Keystone, and a Cinder over HTTP.  Users attach
and detach while servers that have volumes move; troubles come one by one (`troubles`).  Then
nothing fails any more, everything comes to its end, every server runs with volumes, and is judged
by the invariants of the simulation.  What users were told has an order that explains it all, and
each operation that was accepted is there, once.

CHAOS_S: how long, at most 450, for pytest ends what takes 10 minutes (faulthandler_timeout);
CHAOS_SEEDS: how many seeds by night, from CHAOS_FROM on: an hour, if nothing is said.  A seed draws
the same troubles and requests again, but processes race as they like.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.authority import Authority
from tests.chaos.linear import COMPLETED, History, unexplained
from tests.chaos.people import SERVICES, Mover, Told, User
from tests.chaos.rested import Rested
from tests.chaos.troubles import Troubles
from tests.doubles.simulated_keystone import HOUR, SimulatedKeystone, running_keystone
from tests.stack import ADMIN, PROJECT, Stack, eventually, running_stack

SECONDS = float(os.environ.get("CHAOS_S", "300"))
FIRST = int(os.environ.get("CHAOS_FROM", "0"))
SEEDS = int(os.environ.get("CHAOS_SEEDS", "12"))

HOSTS = ("compute-1", "compute-2", "compute-3")
SERVERS, VOLUMES, SHARED = 3, 4, 1
USERS, MOVERS = 3, 2
RETRIES_MAX, ROUNDS_MAX = 5, 10
#: Longer than any put-off step waits; and how often what is parked is tried again.
REST_S, RETRY_EVERY_S = 240.0, 10.0
#: How often each volume is asked of the past, in the end.
READS = 5
_LOG = logging.getLogger(__name__)
#: Until what was recorded can be read, a process may be killed, and its connection waited for.
COMMIT_S = 2.0


@dataclass(frozen=True)
class Left:
    """What is not at rest: operations by their ids, and hosts that do not work."""

    running: dict[str, Any]
    parked: dict[str, Any]
    hosts: list[str]


#: For one request one operation: more were begun if somebody began it again who did not know.
_STARTED = """
SELECT originator_id::text, request_id FROM events WHERE topic = 'Operation.OperationStarted'
"""


@dataclass(frozen=True)
class Accepted:
    """Of what users were told is accepted: how many, which of these are not in the log, and which
    are not the only one of their request.
    """

    count: int
    lost: list[str]
    doubled: list[str]

    @classmethod
    def of(cls, told: set[str], started: dict[str, str]) -> Accepted:
        """`started`: the request of each operation of the log."""
        begun = Counter(started.values())
        doubled = [id_ for id_ in told & started.keys() if begun[started[id_]] > 1]
        return cls(len(told), sorted(told - started.keys()), sorted(doubled))


class Chaos:
    """One run."""

    def __init__(self, stack: Stack, keystone: SimulatedKeystone, seed: int) -> None:
        self.stack, self.keystone, self.seed = stack, keystone, seed
        shared = [True] * SHARED + [False] * (VOLUMES - SHARED)
        volumes = {stack.add_volume(multiattach=many): many for many in shared}
        histories = {id_: History(shared=many, commit_s=COMMIT_S) for id_, many in volumes.items()}
        self.told = Told(histories)
        self.seen = Rested(stack)
        self.operator = Mover("operator", stack, self.told, ADMIN, f"operator {seed}")
        self.troubles = Troubles(stack, self.seen, keystone, self.operator, seed)

    def begin(self) -> None:
        """Every server has a root volume, and another one that nobody detaches."""
        for number in range(SERVICES):
            self.stack.begin_service(number)
        for name in HOSTS:
            self.troubles.start_agent(name)
        for number in range(SERVICES):
            self.stack.wait_for_service(number)
        for name in HOSTS:
            self.stack.wait_for_host(name)
        for number in range(SERVERS):
            root = {"volume_id": self.stack.add_volume(bootable=True), "boot_index": 0}
            kept = {"volume_id": self.stack.add_volume()}
            self.stack.build(root, kept, host=HOSTS[number % len(HOSTS)])

    @property
    def servers(self) -> list[str]:
        return sorted(self.stack.servers)

    def blow(self, seconds: float, *wanted: str) -> None:
        """Troubles for so long, and until those that are wanted were there."""
        stop, end = Event(), time.monotonic() + seconds
        people = [
            *(partial(self._user(n).work, stop) for n in range(USERS)),
            *(partial(self._mover(n).work, stop, self.servers) for n in range(MOVERS)),
        ]
        names = {trouble.__name__: trouble for trouble in self.troubles.all}
        first = [names[name] for name in wanted] or list(self.troubles.all)
        draw = random.Random(f"chaos {self.seed}")
        draw.shuffle(first)
        with ThreadPoolExecutor(len(people)) as pool:
            at_work = [pool.submit(work) for work in people]
            try:
                while first or time.monotonic() < end:
                    self.troubles.one(first.pop() if first else draw.choice(self.troubles.all))
            finally:
                stop.set()
        for each in at_work:
            each.result()

    def _user(self, number: int) -> User:
        token = self.keystone.token(f"user-{number}", "member", valid=24 * HOUR, project=PROJECT)
        name, seed = f"user-{number}", f"user {number} {self.seed}"
        more: Any = {"operator": self.operator, "servers": self.servers}
        return User(name, self.stack, self.told, token, seed, **more)

    def _mover(self, number: int) -> Mover:
        return Mover(f"mover-{number}", self.stack, self.told, ADMIN, f"mover {number} {self.seed}")

    # ----------------------------------------------------------------------- calm

    def come_to_rest(self) -> None:
        """Everything ends by itself, or by retrying what is parked."""
        self.troubles.end()
        retried: dict[str, float] = {}
        end = time.monotonic() + REST_S
        while left := self._left():
            for id_ in left.parked:
                if retried.get(id_, 0.0) < time.monotonic() - RETRY_EVERY_S:
                    retried[id_] = time.monotonic()
                    wanted = {"retry": {"reason": "all is well again"}}
                    self.operator.ask("POST", f"/v1/operations/{id_}/actions", wanted)
            if time.monotonic() > end:
                self.stack.show_threads()
                raise AssertionError(f"not in {REST_S:g} s: {left}")

    def _left(self) -> Left | None:
        """What is not at rest; a host may wait for an operation, or that for the host."""
        left = Left(
            running=self._operations("running"),
            parked=self._operations("parked"),
            hosts=[name for name in HOSTS if not self.troubles.in_service(name)],
        )
        return left if left.running or left.parked or left.hosts else None

    def _answered(self, ask: Callable[[], Any]) -> Any:
        """Whoever has just been started again may not answer at once."""
        return eventually(ask, f"an answer; the last errors are {self.told.errors[-3:]}")

    def _operations(self, state: str) -> dict[str, Any]:
        answer = self._answered(lambda: self.operator.ask("GET", "/v1/operations", state=state))
        return {row["operation_id"]: row for row in answer.json()["operations"]}

    def mend(self) -> list[str]:
        """What looks find is repaired; which classes that were."""
        found: list[str] = []
        for _ in range(RETRIES_MAX):
            eventually(self.troubles.look, "looks that are made")
            if not (open_ := self._findings()):
                return found
            self.confirm_resizes()
            found += [each["drift_class"] for each in open_]
            for each in open_:
                self.troubles.repair(each)
            self.come_to_rest()
        raise AssertionError(f"cannot be repaired: {open_}")

    def _findings(self) -> list[dict[str, Any]]:
        """Who does not answer has not said that there are none."""
        shown = self._answered(lambda: self.operator.ask("GET", "/v1/drift"))
        return list(shown.json()["findings"])

    def confirm_resizes(self) -> None:
        """What a server has that may still be reverted is not repaired."""
        for server in self.servers:
            shown = self._answered(partial(self.operator.server, server))
            if shown["status"] == "VERIFY_RESIZE":
                assert self.operator.act(server, "confirmResize") == COMPLETED

    def settle(self) -> None:
        """Every server runs, and has a volume more than those that it had at first."""
        ways = {
            "VERIFY_RESIZE": "confirmResize",
            "SHELVED_OFFLOADED": "unshelve",
            "SHUTOFF": "os-start",
            "PAUSED": "unpause",
            "ERROR": "os-stop",
        }
        for server in self.servers:
            for _ in range(ROUNDS_MAX):
                shown = self._answered(partial(self.operator.server, server))
                if shown["status"] == "ACTIVE":
                    break
                told = self.operator.act(server, ways[shown["status"]])
                assert told == COMPLETED, (shown["status"], told)
            else:
                raise AssertionError(f"{server} does not run: {shown}")
        user = self._user(USERS)
        for volume, history in self.told.histories.items():
            server = user.random.choice(self.servers)
            if history.shared or self.stack.cinder.model.volume(volume).status == "available":
                user.attach(server, volume)

    def read_all(self) -> None:
        """The last answers, of everybody at rest."""
        user = self._user(USERS)
        for volume in self.told.histories:
            for server in self.servers:
                user.list(server, volume)
                user.show(server, volume)
            for _ in range(READS):
                user.as_of("", volume)

    def accepted(self) -> Accepted:
        return Accepted.of(self.told.accepted, self.started())

    def started(self) -> dict[str, str]:
        with psycopg.connect(self.stack.database_url) as database:
            return dict(database.execute(_STARTED).fetchall())

    def judge(self) -> None:
        for server in self.servers:
            assert len(self.stack.attachments(server, "2.89")) >= 2, "they end attached"
        assert self.seen.broken() == []
        assert self.told.failures() == [], "what is away is told as that, never as a fault of ours"
        accepted = self.accepted()
        assert accepted == Accepted(len(self.told.accepted), [], [])
        for volume, history in self.told.histories.items():
            assert (why := unexplained(history)) is None, f"volume {volume}: {why}"


@contextmanager
def chaos(home: Path, database_url: str, seed: int) -> Iterator[Chaos]:
    authority = Authority(home / "ca")
    pair = authority.pair("localhost", "IP:127.0.0.1")
    how: Any = {"hosts": HOSTS, "authority": authority, "own_clocks": True}
    with running_keystone(pair) as keystone, running_stack(home, database_url, **how) as stack:
        options = keystone.user("ledger", "service", project="service")
        auth = "".join(f'{name} = "{value}"\n' for name, value in options.items())
        stack.auth = "keystone"
        stack.settings = (
            f'[keystone]\ncacert = "{authority.certificate}"\ncache_s = 1.0\n'
            f"[keystone.auth]\n{auth}"
        )
        run = Chaos(stack, keystone, seed)
        try:
            run.begin()
            yield run
        finally:
            run.troubles.close()


def whole(run: Chaos, seconds: float, *wanted: str) -> None:
    _LOG.info("storm")
    run.blow(seconds, *wanted)
    _LOG.info("calm")
    run.come_to_rest()
    _LOG.info("looks")
    mended = run.mend()
    _LOG.info("settle")
    run.settle()
    run.come_to_rest()
    run.read_all()
    _LOG.info("%s, none stuck", run.accepted())  # what is stuck has ended the test
    _LOG.info("answers %s, troubles %s, mended %s", run.told.answers, run.troubles.done, mended)
    run.judge()


def test_a_few_seconds_of_it(tmp_path: Path, database_url: str) -> None:
    """And the verdict is one: what somebody breaks afterwards, and an answer that is turned, are
    found.
    """
    with chaos(tmp_path, database_url, FIRST) as run:
        whole(run, 5.0, "kill", "host_fails", "cut_the_database")
        model = run.stack.cinder.model
        with model.lock:
            lost = next(row for row in model.attachments.values() if row.status == "attached")
            model.drop_attachment(lost.id)
        assert any("attachment_lost" in each for each in run.seen.broken())
        history = next(each for each in run.told.histories.values() if each.calls)
        last = next(each for each in reversed(history.calls) if each.call == "show")
        history.calls[history.calls.index(last)] = replace(last, told=not last.told)
        assert unexplained(history)
        run.told.accepted.add(nobodys := str(uuid4()))
        assert run.accepted().lost == [nobodys]
        once = next(iter(run.started()))
        assert Accepted.of({once}, {once: "req-1", nobodys: "req-1"}).doubled == [once]


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_all_that_moves_ends_attached_and_every_answer_is_explained(
    tmp_path: Path, database_url: str, seed: int
) -> None:
    with chaos(tmp_path, database_url, seed) as run:
        whole(run, SECONDS)
        assert set(run.troubles.done) == {trouble.__name__ for trouble in run.troubles.all}
