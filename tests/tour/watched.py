"""A Nova that is watched for six days, and three of whose hosts are taken over: for pictures."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from requests import Response

from ledger.log import schema
from ledger.trial.embedded import EmbeddedPostgres
from tests.doubles.database_time import DatabaseTime
from tests.doubles.simulated_keystone import running_keystone
from tests.doubles.simulated_nova import Server, running_nova
from tests.service.watched_world import Watched
from tests.stack import eventually, running_stack

#: Paths in the console, by their pictures' names.
PAGES = {
    "watched-overview": "/ui/?period=day",
    "watched-volumes": "/ui/volumes",
    "watched-volume": "/ui/volumes/{moved}",
    "watched-hosts": "/ui/hosts",
}
MINUTE_S, HOUR_S, DAY_S = 60.0, 3_600.0, 86_400.0
HOSTS = tuple(f"compute-{number:02}" for number in range(1, 10))
#: The ledger's: the first one goes on, the second one falls silent, the third one has no agent yet.
OVER, SILENT, NEXT = "compute-04", "compute-07", "compute-09"
#: How many servers, and how many volumes each of them has.
_KINDS = {
    "web": (6, 1),
    "api": (4, 1),
    "db": (3, 2),
    "kafka": (3, 2),
    "search": (3, 2),
    "gitlab": (1, 3),
    "mail": (2, 1),
    "runner": (4, 1),
    "metrics": (1, 2),
}
FLEET = [
    (f"{kind}-{number:02}", volumes)
    for kind, (servers, volumes) in _KINDS.items()
    for number in range(1, servers + 1)
]
#: Of `Days._differs`.
DIFFERENCES = 3
READS = [
    {"id": kind, "service": kind, "method": "GET", "path": "/**"} for kind in ("nova", "cinder")
]
#: Two of an agent's polls.
DOWN_S = 10.0
#: It reads each server, and pauses twice as long as each answer took.
FIRST_LOOK_DEADLINE_S = 180.0
#: Twice as long as two looks have to be apart (`handlers.drift.judge.APART_S`), and a bit.
FOUND_DEADLINE_S = 150.0


class Days:
    """The cloud, once all has happened.  `moved`: the volume to tell of."""

    def __init__(self, watched: Watched, database_time: DatabaseTime) -> None:
        self.watched, self.nova, self.stack = watched, watched.nova, watched.stack
        self._database_time = database_time
        self.moved = ""
        self._was_there()
        self.stack.start_service()
        self.watched.next_looks(1, FIRST_LOOK_DEADLINE_S)
        self._at_nova()
        self._taken_over()
        self._by_the_ledger()
        self._differs()
        self._is_found()

    def _ago(self, seconds: float) -> None:
        """It is so long before now, by the clocks of the database and of Cinder."""
        self._database_time.set_ahead(-seconds)
        self.nova.cinder.clock = lambda: time.time() - seconds

    @contextmanager
    def _seen(self, days: float) -> Iterator[None]:
        """What Nova does so many days before now is seen a minute later."""
        self._ago(days * DAY_S)
        self.watched.next_looks()
        with self.nova.busy():
            yield
            self._ago(days * DAY_S - MINUTE_S)
        self.watched.next_looks()

    def _was_there(self) -> None:
        """The fleet, as it was made week by week."""
        for nth, (name, volumes) in enumerate(FLEET):
            self._ago((60 - 2 * nth) * DAY_S)
            server = self.nova.boot(name, HOSTS[nth % len(HOSTS)])
            for _ in range(volumes):
                self.nova.attach(server, self.watched.volume())
        self._ago(6 * DAY_S)

    def _at_nova(self) -> None:
        """A volume goes with its server, and to another one; others come and go."""
        first, last = self._server("db-01"), self._server("db-03")
        self.moved = first.mappings[0].volume_id
        for days, name in zip((5.8, 5.6, 5.1), ("gitlab-01", "search-02", "web-05"), strict=True):
            self._gets_one(days, name)
        with self._seen(4.6):
            olds = self.nova.begin_live_migration(first, HOSTS[4])
        with self._seen(4.6 - 4 * MINUTE_S / DAY_S):
            self.nova.end_live_migration(first, HOSTS[4], olds)
        for days, name in zip((4.1, 3.7, 3.1), ("api-02", "metrics-01", "web-03"), strict=True):
            self._gets_one(days, name)
        with self._seen(2.4):
            self.nova.detach(first, first.mappings[0])
        with self._seen(2.2):
            self.nova.attach(last, self.moved)
        with self._seen(1.7):
            self.nova.shelve_offload(self._server("runner-04"))
        for days, name in zip((1.6, 1.4, 1.2), ("kafka-02", "db-02", "search-01"), strict=True):
            self._gets_one(days, name)

    def _gets_one(self, days: float, name: str) -> None:
        with self._seen(days):
            self.nova.attach(self._server(name), self.watched.volume())

    def _differs(self) -> None:
        """Cinder has another host; a reservation was left; it did not hear of a server's end."""
        cinder = self.nova.cinder
        with self._seen(0.26):
            mapping = self.nova.attach(self._server("kafka-01"), self.watched.volume())
            cinder.attachment(mapping.attachment_id).host = HOSTS[7]
        with self._seen(0.19):
            cinder.attachment_create(self.watched.volume(), self._server("web-02").id)
        with self._seen(0.11):
            gone = self._server("runner-02").id
            self.nova.deleted[gone] = self.nova.servers.pop(gone)

    def _taken_over(self) -> None:
        """Three hosts; the agents of two of them come."""
        self._ago(0.8 * DAY_S)
        for host in (OVER, SILENT, NEXT):
            self.nova.disabled.add(host)
            for server in self.nova.servers.values():
                if server.host == host:
                    server.locked = True
                    self.watched.on_the_host(server, *server.mappings)
                    self.stack.servers[server.id] = host
            path = self.stack.url(f"/v1/hosts/{host}/adopt")
            answer = self.stack.http.post(path, json={"reason": "rack 2 goes first"})
            assert answer.json()["whole"], answer.text
        for host in (OVER, SILENT):
            self.nova.down.add(host)
            self.stack.start_agent(host)
            self.stack.wait_for_host(host)

    def _by_the_ledger(self) -> None:
        """A server gets a volume for an hour, again and again; the volume to tell of goes, too."""
        mail, last = self._server("mail-02").id, self._server("db-03").id
        backup = self.stack.add_volume()
        for hours in (18.2, 15.1, 14.3, 11.6, 9.4):
            self._does(hours, self.stack.attach, mail, backup)
            self._does(hours - 0.8, self.stack.detach, mail, backup)
        self._does(8.3, self.stack.detach, last, self.moved)
        self._does(7.1, self.stack.attach, last, self.moved)

    def _does(self, hours: float, ask: Callable[[str, str], Response], *about: str) -> None:
        self._ago(hours * HOUR_S)
        self._answers(OVER)
        self.stack.completed(eventually(lambda: ask(*about) or None, "the host shows its guest"))

    def _answers(self, host: str, *, alive: bool = True) -> None:
        path = f"/v1/hosts/{host}"
        eventually(lambda: self.stack.get(path).json()["alive"] is alive, f"{host}: {alive}")

    def _is_found(self) -> None:
        """Two looks see it; then one host falls silent, and then it is now."""
        eventually(self._found, f"{DIFFERENCES} findings", FOUND_DEADLINE_S)
        self._ago(HOUR_S)
        self._answers(OVER)
        self._answers(SILENT)
        self.stack.agents[SILENT].stop()
        self._answers(SILENT, alive=False)
        self.stack.components[0].stop()  # one that runs counts silence by its own clock
        self._ago(0)
        self.stack.start_service()
        self._answers(OVER)
        eventually(lambda: not self.stack.get("/readyz").json()["warnings"], "nothing to warn of")

    def _found(self) -> bool:
        findings = self.stack.get("/v1/drift?state=confirmed").json()["findings"]
        return len(findings) == DIFFERENCES

    def _server(self, name: str) -> Server:
        return next(each for each in self.nova.servers.values() if each.name == name)


@contextmanager
def watched_days() -> Iterator[Days]:
    """A cloud of its own, below a temporary directory."""
    with (
        tempfile.TemporaryDirectory(prefix="tour-") as directory,
        EmbeddedPostgres(fsync=False) as server,
        running_keystone() as keystone,
    ):
        home = Path(directory)
        home.chmod(0o711)  # as root PostgreSQL runs as another account, which must pass
        dsn = server.start(home / "postgresql")
        schema.upgrade(dsn)
        with (
            psycopg.connect(dsn, autocommit=True) as connection,
            running_stack(home, dsn, hosts=(OVER, SILENT)) as stack,
            running_nova(stack.cinder.model) as nova,
        ):
            stack.host_down_after_s = DOWN_S
            watched = Watched(stack, nova)
            rules = {"id": "observer", "name": "observer", "access_rules": READS}
            watched.log_in(
                keystone.user("observer", "admin", project="admin", application_credential=rules)
            )
            # A look of the ledger's own, when it starts again, would find that the hosts that were
            # taken over have no records of connections yet: docs/adopt.md, Over, 5.
            stack.settings += "[reconcile]\ninterval_s = 0\n"
            yield Days(watched, DatabaseTime(connection))
