"""What goes wrong while people work: one trouble after the other, drawn from a seed.

Of processes, PostgreSQL's connections, Keystone, Cinder, clocks and hosts; and an operator who
fences a host and evacuates its servers, and who begins a repair while a server migrates.  What a
trouble has broken is whole again when it is over, but for the rules of hosts' faults, which
the next ones replace.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import psycopg
import requests

from host_agent.shared.fault_calls import HOST_CALLS, LISTS, READS
from ledger.core.dispatcher import LEASE_S
from tests.chaos.people import Mover
from tests.doubles.simulated_keystone import Fault, SimulatedKeystone
from tests.stack import Process, Stack, eventually

if TYPE_CHECKING:
    from tests.chaos.rested import Rested

#: How long a process stands still, or a neighbour is away.
AWAY_S = 3.0
#: How long a service is paused in its turn: others have its leases by then (LEASE_S), and it does
#: not know.
PAUSED_S = 1.3 * LEASE_S
#: By how much a clock is set: NTP's steps, a virtual machine's pause, a wrong time zone.
SET_BY_S = (-7_200.0, -45.0, -1.0, 1.0, 45.0, 7_200.0)
#: Between one trouble and the next, and what a migration takes that a repair meets.
REST_S, MOVES_S = 1.0, 3.0
#: What a service may take to start, on a machine with much else to do.
STARTS_S = 120.0
#: So many rules strike a host, or Cinder, at once.
RULES = 3
_HOST_DEEDS = ("fail", "fail_after", "crash", "crash_after", "delay", "timeout_after")
#: Cinder is served by the test itself, so that a crash would be the test's.
_CINDER_DEEDS = ("fail", "fail_after", "delay")
_WRITES = ("attachment_create", "attachment_update", "attachment_complete", "attachment_delete")
_CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE 'attachment-ledger%'
"""
_OLDER = "UPDATE findings SET seen_at = seen_at - interval '2 minutes'"


_LOG = logging.getLogger(__name__)


class Troubles:
    """`done`: how often each was there."""

    def __init__(
        self, stack: Stack, seen: Rested, keystone: SimulatedKeystone, operator: Mover, seed: int
    ) -> None:
        self._stack, self._seen, self._keystone = stack, seen, keystone
        self._operator, self._random = operator, random.Random(f"troubles {seed}")
        self._database = psycopg.connect(stack.database_url, autocommit=True)
        self._without_power = ""  # a host
        self._turns = count()
        self.done: Counter[str] = Counter()
        self.all: tuple[Callable[[], None], ...] = (
            self.kill,
            self.pause,
            self.kill_the_next_service,
            self.pause_the_next_service,
            self.cut_the_database,
            self.keystone_away,
            self.cinder_fails,
            self.cinder_reads_strangely,
            self.host_fails,
            self.set_a_clock,
            self.fence_and_evacuate,
            self.repair_while_it_moves,
        )

    def one(self, trouble: Callable[[], None]) -> None:
        _LOG.info("%s", trouble.__name__)
        trouble()
        self.done[trouble.__name__] += 1
        time.sleep(REST_S)
        self.revive()
        eventually(self._somebody_answers, "a service that answers", STARTS_S)

    def _somebody_answers(self) -> bool:
        """To strike those that have not started yet, again and again, tries nothing."""
        return any(self._answers(number) for number in self._stack.components)

    def _answers(self, number: int) -> bool:
        try:
            return self._stack.http.get(self._stack.url("/healthz", number), timeout=5).ok
        except requests.RequestException:
            return False

    def revive(self) -> None:
        """Whoever has died is started again (systemd does so)."""
        for number, process in list(self._stack.components.items()):
            if not process.running:
                self._stack.begin_service(number)
        for name, agent in list(self._stack.agents.items()):
            if not agent.running and name != self._without_power:
                self.start_agent(name)

    def start_agent(self, name: str) -> None:
        """It knows all services, and begins with another than its neighbour."""
        services, first = sorted(self._stack.components), self._stack.hosts.index(name)
        self._stack.start_agent(name, *services[first:], *services[:first])

    def _process(self) -> Process:
        return self._random.choice([*self._stack.components.values(), *self._stack.agents.values()])

    # ----------------------------------------------------- processes and neighbours

    def kill(self) -> None:
        self._process().kill()

    def pause(self) -> None:
        process = self._process()
        if process.running:
            process.pause()
            time.sleep(self._random.uniform(0.5, AWAY_S))
            process.go_on()

    def kill_the_next_service(self) -> None:
        self._next_service().kill()

    def pause_the_next_service(self) -> None:
        """It answers nobody, and holds what it has; what it does when it goes on is late."""
        process = self._next_service()
        process.pause()
        time.sleep(PAUSED_S)  # this is the trouble, not a wait for something
        process.go_on()

    def _next_service(self) -> Process:
        """In turns, so that each of them has been the one, and has taken over from each."""
        self.revive()
        services = self._stack.components
        return services[next(self._turns) % len(services)]

    def cut_the_database(self) -> None:
        self._database.execute(_CUT)

    def keystone_away(self) -> None:
        self._keystone.fault = self._random.choice([Fault.AWAY, Fault.ERROR])
        time.sleep(self._random.uniform(0.5, AWAY_S))
        self._keystone.fault = None

    def set_a_clock(self) -> None:
        self._stack.set_clock(self._process(), self._random.choice(SET_BY_S))

    def cinder_fails(self) -> None:
        calls = [*_WRITES, "volume_show", "attachment_show", "attachment_list", "volume_list"]
        rules = [self._rule(self._random.choice(calls), _CINDER_DEEDS) for _ in range(RULES)]
        with self._cinder(rules):
            time.sleep(self._random.uniform(0.5, AWAY_S))

    def cinder_reads_strangely(self) -> None:
        calls = sorted(each for each in READS if "." not in each)
        rules = [self._strange(self._random.choice(calls)) for _ in range(RULES)]
        with self._cinder(rules):
            time.sleep(self._random.uniform(0.5, AWAY_S))

    @contextmanager
    def _cinder(self, rules: list[dict[str, Any]]) -> Iterator[None]:
        self._stack.cinder.faults.replace(rules)
        yield
        self._stack.cinder.faults.replace([])

    # -------------------------------------------------------------------- hosts

    def host_fails(self) -> None:
        calls, lists = sorted(HOST_CALLS), sorted(each for each in LISTS if "." in each)
        name = self._random.choice(self._stack.hosts)
        rules = [self._rule(self._random.choice(calls), _HOST_DEEDS) for _ in range(RULES)]
        self._stack.set_agent_faults(*rules, self._strange(self._random.choice(lists)), host=name)
        time.sleep(self._random.uniform(0.5, AWAY_S))

    def _rule(self, call: str, deeds: tuple[str, ...]) -> dict[str, Any]:
        rule = {"call": call, "do": self._random.choice(deeds), "skip": self._random.randrange(2)}
        return {**rule, "seconds": self._random.uniform(0, 1)}

    def _strange(self, call: str) -> dict[str, Any]:
        deeds = ("stale", "cut", "reorder") if call in LISTS else ("stale",)
        return {
            "call": call,
            "do": self._random.choice(deeds),
            "changes": self._random.randint(1, 5),
        }

    def fence_and_evacuate(self) -> None:
        """A host loses power; when its servers are elsewhere it comes back."""
        name = self._without_power = self._random.choice(self._stack.hosts)
        self._stack.agents[name].kill()
        self._seen.power_off(name)
        self._fence_and_evacuate(name)
        self._without_power = ""
        self.start_agent(name)

    def _fence_and_evacuate(self, name: str) -> None:
        why = {"reason": "no heartbeat", "evidence": "powered off", "force": True}
        if not self._until(lambda: self._ask(f"/v1/hosts/{name}/fence", why)):
            return
        for server in self._stack.servers:
            shown = self._operator.server(server)
            if shown is not None and shown["OS-EXT-SRV-ATTR:host"] == name:
                self._operator.act(server, "evacuate", {})
        self._until(lambda: self._ask(f"/v1/hosts/{name}/unfence", {"reason": "repaired"}))

    def _ask(self, path: str, body: dict[str, Any]) -> bool:
        answer = self._operator.ask("POST", path, body)
        return answer is not None and bool(answer.ok)

    def _until(self, does: Callable[[], bool]) -> bool:
        """Who gets no answer asks again, for a while."""
        for _ in range(5):
            if does():
                return True
            time.sleep(0.5)
            self.revive()
        return False

    # ----------------------------------------------------------------- repairs

    def repair_while_it_moves(self) -> None:
        """Cinder's row is edited by hand; its repair is asked for while the server migrates."""
        if (row := self._plant()) is None:
            return
        server = row.instance
        self.look(volume=row.volume_id)
        shown = self._operator.server(server)
        found = self.findings(volume=row.volume_id)
        if shown is None or shown["status"] != "ACTIVE" or not found:
            return
        here = shown["OS-EXT-SRV-ATTR:host"]
        long = {"call": "guests.migrate", "do": "delay", "seconds": MOVES_S}
        self._stack.set_agent_faults({**long, "match": {"server_id": server}}, host=here)
        others = [name for name in self._stack.hosts if name != here]
        body = {"host": self._random.choice(others), "block_migration": False}
        path = f"/v2.1/servers/{server}/action"
        moves = self._operator.ask("POST", path, {"os-migrateLive": body})
        for each in found:
            self.repair(each)
        self._operator.end_of(moves)

    def _plant(self) -> Any:
        """The row, or None if there is no fit one."""
        model = self._stack.cinder.model
        with model.lock:
            rows = [row for row in model.attachments.values() if row.status == "attached"]
            alone = [row for row in rows if len(model.attachments_of(row.volume_id)) == 1]
            if not alone:
                return None
            row = self._random.choice(sorted(alone, key=lambda row: row.id))
            row.mountpoint = "vdz"
            if self._random.random() < 0.5:
                row.status = "attaching"
        return row

    def look(self, **scope: str) -> bool:
        """Two of them, of which the second one confirms; whether both were made."""
        for _ in range(2):
            self._database.execute(_OLDER)
            answer = self._operator.ask("POST", "/v1/drift/runs", scope)
            if answer is None or not answer.ok:
                return False
            path = f"/v1/drift/runs/{answer.json()['look_id']}"
            eventually(partial(self._is_over, path), "a look's end", 120)
        return True

    def _is_over(self, path: str) -> bool:
        self.revive()
        shown = self._operator.ask("GET", path)
        return shown is not None and shown.ok and shown.json()["state"] == "ended"

    def findings(self, **scope: str) -> list[dict[str, Any]]:
        """As far as somebody says."""
        shown = self._operator.ask("GET", "/v1/drift", **scope)
        return shown.json()["findings"] if shown is not None and shown.ok else []

    def repair(self, finding: dict[str, Any]) -> str:
        body = {"reason": "it was edited by hand", "apply": True}
        answer = self._operator.ask("POST", f"/v1/drift/{finding['finding_id']}/repair", body)
        told, _ = self._operator.end_of(answer)
        said = answer.text[:500] if answer is not None else "no answer"
        _LOG.info("repair of %s %s: %s", finding["drift_class"], told, said)
        self._operator.told.count(f"repair {told}")
        return told

    # --------------------------------------------------------------------- calm

    def end(self) -> None:
        """Nothing is wrong any more."""
        self._keystone.fault = None
        self._stack.cinder.faults.replace([])
        for name in self._stack.hosts:
            self._stack.set_agent_faults(host=name)
        for process in (*self._stack.components.values(), *self._stack.agents.values()):
            self._stack.set_clock(process, 0.0)
        self.revive()

    def in_service(self, name: str) -> bool:
        """Whether it works; it is seen to that it will."""
        self.revive()
        shown = self._operator.ask("GET", f"/v1/hosts/{name}")
        if shown is None or not shown.ok:
            return False
        if shown.json()["fenced"]:
            return self._ask(f"/v1/hosts/{name}/unfence", {"reason": "repaired"})
        return bool(shown.json()["alive"]) and not shown.json()["suspect"]

    def close(self) -> None:
        self._database.close()
