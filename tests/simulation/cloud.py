"""A whole cloud in memory: one ledger, one Cinder, several hosts, servers and volumes.

The ledger's code is the real one over a log in memory; projections are folded as events
are saved, and what production reads from them (the mailbox, due operations, a host's
guests) is read from them here.  Cinder, os-brick and guests are the simulations that the
contract tests hold to the real ones.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar, cast
from uuid import NAMESPACE_OID, UUID, uuid5

from aggregates.attachment import Attachment
from aggregates.base import Aggregate
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation
from aggregates.volume import Volume
from handlers.engine.rules import Replay
from handlers.engine.verbs import is_due
from handlers.requests.guards import Contact
from handlers.results.presence import (
    SHOW_GUESTS,
    SHOW_VOLUMES,
    STOP_REPAIRS,
    OthersShown,
    ShowingFinding,
)
from host_agent.shared.contract.messages import Command, PowerState
from host_agent.shared.contract.wire import read
from host_agent.simulated.host_state import HOSTS
from host_agent.storage import connection
from host_agent.storage.records import Record
from ledger.core.requests import Fleet, Requests
from ledger.core.service import Service
from ledger.trial.cinder.model.model import CinderModel
from ledger.trial.cinder.model.rows import DEFAULT_PROJECT
from ledger.trial.cinder.model.rows import StoredVolume as CinderVolume
from projections.base import Row
from projections.operations import OPERATIONS
from tests.doubles.direct_cinder import DirectCinder
from tests.simulation.agent import Agent
from tests.simulation.chance import Chance, Log
from tests.simulation.files import Files
from tests.simulation.hostile import Hostile
from tests.simulation.invariants import broken_by
from tests.simulation.late import LandingClock, LateCinder
from tests.simulation.processes import Anyone, Processes
from tests.simulation.reads import StrangeReads
from tests.simulation.share import SharingHost
from tests.store.histories import Folded, logged

A = TypeVar("A", bound=Aggregate)

HOSTS_RANGE, SERVERS_RANGE, VOLUMES_RANGE = (3, 4), (4, 8), (8, 12)
#: A backend whose volumes share a target, beside those that do not (S3).
SHARED_BACKEND = "san"
#: What storms must have had, beside what the log tells (`Cloud.happened`).
FAULTS = frozenset(
    {
        *("second process", "paused process", "late request", "clock set", "hostile text"),
        *("guest moved by hand", "copy of a volume", "stale read", "cut read", "reorder read"),
    }
)


class Cloud:
    """`actions` is what happened so far, for people."""

    def __init__(self, seed: int) -> None:
        self.chance = Chance(seed)
        #: Its own, so that the other seeds' stories stay what they were.
        self.read_only = random.Random(f"read-only {seed}")
        self.files = Files(self, seed)
        self.actions: list[str] = []
        #: How often each of FAULTS was there.
        self.happened: Counter[str] = Counter()
        self.clock = LandingClock()
        self.cinder = CinderModel(clock=self.clock, new_id=lambda: str(self.chance.new_id()))
        self.cinder.deleting_reads = self.chance.random.choice([0, 2])
        self.cinder.add_backend(SHARED_BACKEND, "iscsi", shared_targets=True)
        self.cinder.looks_later = True
        self.direct = DirectCinder(self.cinder)
        self.reads = StrangeReads(self, seed)
        self.late = LateCinder(self, DirectCinder(self.cinder, self.reads))
        self._excuse_nothing()
        self.folded = Folded()
        self.replay, self.saved = Replay(), 0  # the same log, held against the ledger's rules
        self.store = Log(lambda: self.chance, self._saved)
        #: How far the database's clock is ahead of the true time; and the log's last time.
        self.database_ahead_s, self.recorded_at = 0.0, 0.0
        self.database_was_set = False
        #: The true time at which a host's step ended, by run and step.
        self.ended: dict[tuple[str, int, str], float] = {}
        self.hostile = Hostile(self)
        self.processes = Processes(self)
        self.service = cast("Service", Anyone(self.processes, "service"))
        self.requests = cast("Requests", Anyone(self.processes, "requests"))
        self._commands: dict[str, tuple[int, list[tuple[str, Command]]]] = {}
        self._mail: tuple[int, dict[str, list[Command]]] = (0, {})
        #: What recorded events make of each aggregate, so many of the log's.
        self.fresh: dict[UUID, Aggregate] = {}
        self.refolded = 0
        self._looked_at: dict[tuple[type[Aggregate], UUID], Aggregate] = {}
        self._make_volumes()
        self._make_hosts()

    def _excuse_nothing(self) -> None:
        """What may be there at rest, or not, is noted here by whoever brings it about."""
        #: What requests left that came later than anybody waits; it goes with its volume.
        self.strays: set[str] = set()
        #: Volumes of which Cinder has told nobody how large they are.
        self.uneven: set[str] = set()
        #: Servers of an operation whose dispatcher was paused, and had trouble in taking back.
        self.overtaken: set[str] = set()
        #: What somebody put there past everybody: attachments, volumes, secrets, by their ids.
        self.planted: set[str] = set()
        #: Servers and volumes of which nobody asks for anything: some of it is planted on them.
        self.apart: set[str] = set()
        #: Servers whose guests somebody has moved past everybody.
        self.by_hand: set[str] = set()
        #: Servers whose guests were lost there.
        self.vanished: set[str] = set()

    def _make_volumes(self) -> None:
        draw, read_only = self.chance.random, self.read_only
        for number in range(draw.randint(*VOLUMES_RANGE)):
            self.cinder.add_volume(
                volume_id=str(uuid5(NAMESPACE_OID, f"volume {number}")),
                driver=self.files.backend(draw.choice(["iscsi", "rbd", "local", SHARED_BACKEND])),
                multiattach=draw.random() < 0.3,
                bootable=True,
                encrypted=draw.random() < 0.3,
                readonly=read_only.random() < 0.2 or None,
                service_uuid_after_reads=draw.choice([0, 0, 2]),
            )

    def _make_hosts(self) -> None:
        """Hosts with guests that were there before the ledger was."""
        draw = self.chance.random
        names = [f"compute-{n}" for n in range(1, draw.randint(*HOSTS_RANGE) + 1)]
        guests: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for number in range(draw.randint(*SERVERS_RANGE)):
            guests[draw.choice(names)].append(
                {
                    "server_id": str(uuid5(NAMESPACE_OID, f"server {number}")),
                    "project_id": DEFAULT_PROJECT,
                    "power_state": draw.choice(["running", "running", "shutdown"]),
                    "devices": [],
                }
            )
        self.states = {
            name: SharingHost(self.files.share, {"define": guests[name]}) for name in names
        }
        self.records: dict[str, dict[str, Record]] = {name: {} for name in names}
        self.sent: dict[str, set[str]] = {name: set() for name in names}
        #: Paths that a host had connected when it lost power.
        self.lost: dict[str, set[str]] = {name: set() for name in names}
        #: Guests that go on, on hosts that were cut off from everything as they were fenced.
        #: What comes there afterwards shows that its host was not, or no longer, cut off.
        self.isolated: dict[str, set[str]] = {}
        #: Hosts whose agent dies as soon as a guest has one disk more, and before it says so.
        self.doomed: set[str] = set()
        #: Called while a guest is on its way to a host, which takes long.
        self.on_the_way: Callable[[str], object] = lambda _host: None
        HOSTS.update(self.states)
        self.agents = {name: Agent(self, name) for name in names}
        for agent in self.agents.values():
            agent.start()
            while agent.registering:
                agent.register()

    def note(self, text: str, command: Command | None = None) -> None:
        about = f" [{command.operation_id[:8]}/{command.run}]" if command else ""
        self.actions.append(f"{self.clock():.1f} {text}{about}")

    # ------------------------------------------------------------ time

    def database_now(self) -> float:
        return self.clock() + self.database_ahead_s

    def set_database_clock(self, by_s: float) -> None:
        self.note(f"the database's clock is set by {by_s:g} s")
        self.database_ahead_s += by_s
        self.database_was_set = True
        self.happened["clock set"] += 1

    # ------------------------------------------------------------ the log

    def _saved(self) -> None:
        """Fold what was saved, and look whether it was allowed."""
        new = self.store.log[self.folded.position :]
        self.recorded_at = max(self.recorded_at, self.database_now())
        at = datetime.fromtimestamp(self.recorded_at, UTC)
        for position, (event, context) in enumerate(new, self.folded.position + 1):
            self.folded.fold(logged(position, event, context, at))
        for event, _ in new:
            if isinstance(event, BlockDeviceMapping.MappingCreated):
                # From now on nobody but the ledger knows that it is read-only.
                self.cinder.volumes[event.volume_id].readonly = None
        append = [(position, event) for position, (event, _) in enumerate(new, self.saved + 1)]
        self.saved += len(new)
        if broken := [*broken_by([event for event, _ in new], self), *self.replay.follow(append)]:
            raise AssertionError(f"broken by a save: {broken}")

    def rows(self, table: str) -> list[Row]:
        return self.folded.table(table)

    def due(self) -> list[str]:
        """As Queries.due gives them."""
        now = self.database_now()
        return [
            row["operation_id"]
            for row, at in self._timed()
            if is_due(at, now) or row["due_at"] == row["updated_at"]
        ]

    def next_due_in_s(self) -> float | None:
        """How long it is until the first of what is put off is due."""
        now = self.database_now()
        return min((at - now for _, at in self._timed() if at > now), default=None)

    def _timed(self) -> list[tuple[Row, float]]:
        rows = self.rows("operations")
        return [(row, row["due_at"].timestamp()) for row in rows if row["due_at"] is not None]

    def mailbox(self, host: str) -> list[Command]:
        """As `GET commands` gives them."""
        if self._mail[0] != self.folded.position:
            running = [row for row in self.rows("operations") if row["state"] == "running"]
            commands = list(itertools.chain.from_iterable(map(self._commands_of, running)))
            mail: dict[str, list[Command]] = {}
            for name, command in sorted(commands, key=lambda pair: pair[1].position):
                mail.setdefault(name, []).append(command)
            self._mail = (self.folded.position, mail)
        return self._mail[1].get(host, [])

    def _commands_of(self, row: Row) -> list[tuple[str, Command]]:
        known = self._commands.get(row["operation_id"])
        if known is None or known[0] != row["position"]:
            state = self.folded.state("operations", row["operation_id"])
            derived = OPERATIONS.derived[0].rows(state)
            commands = [(r["host"], read(r["command"], Command)) for r in derived]
            known = self._commands[row["operation_id"]] = (row["position"], commands)
        return known[1]

    def guests_of_host(self, name: str) -> set[str]:
        rows = self.rows("instances")
        own = (r for r in rows if r["host"] == name and r["power_state"] != "nostate")
        return {r["server_id"] for r in (*own, *(r for r in rows if name in r["elsewhere"]))}

    def open_on_host(self, name: str) -> list[str]:
        """As Queries.open_on_host gives them."""
        rows = [row for row in self.rows("operations") if row["state"] != "finished"]
        return [row["operation_id"] for row in rows if name in _hosts_of(row)]

    def live_guests(self, name: str) -> set[str]:
        """What runs on a host, whoever knows of it."""
        guests = self.states[name].seen()["guests"]
        return {server_id for server_id, guest in guests.items() if guest["live"] is not None}

    def power_off(self, name: str) -> None:
        """Guests are off, and connections gone, until somebody makes them anew; a guest without a
        definition is gone.
        """
        with self.states[name].edit() as state:
            guests = state["guests"].items()
            state["guests"] = {id_: guest for id_, guest in guests if guest["persistent"]}
            for guest in state["guests"].values():
                guest.update(live=None, power_state=PowerState.SHUTDOWN.value)
                guest.pop("job", None)
                guest.pop("stranded", None)
            # Also what a refresh had just disconnected, to connect it anew.
            self.lost[name] |= set(state["connected"]) | self.given_to(name)
            state.update(connected={}, secrets={})

    def rejoin(self) -> None:
        """Hosts that were cut off and have cleared what they held are hosts as any other."""
        suspect = {row["host"] for row in self.rows("hosts") if row["suspect"]}
        for name in self.isolated.keys() - suspect:
            del self.isolated[name]

    # ------------------------------------------------------------ looking

    @property
    def fleet(self) -> Fleet:
        return Fleet(
            contact=lambda host: Contact(alive=self.agents[host].lives, since="lately"),
            shown=self._shown,
            unaccounted=self._unaccounted,
            unfenced=self._unfenced,
        )

    def _unaccounted(self, server_id: str) -> list[str]:
        """Who is silent, or shows the guest when asked for a survey, as all are once it is lost:
        whatever an old inventory has said.
        """
        return [
            name
            for name in self._unfenced()
            if not self.agents[name].lives or server_id in self.states[name].seen()["guests"]
        ]

    def _unfenced(self) -> list[str]:
        return [row["host"] for row in self.rows("hosts") if not row["fenced"]]

    def _shown(self, server_id: str, volume_ids: Sequence[str]) -> OthersShown:
        """The open findings that show the server's guest, or one of the volumes."""
        showing = [
            ShowingFinding.of(row)
            for row in self.rows("findings")
            if row["over_position"] is None
            if (row["drift_class"] in SHOW_GUESTS and row["server_id"] == server_id)
            or (
                row["drift_class"] in SHOW_VOLUMES | STOP_REPAIRS and row["volume_id"] in volume_ids
            )
        ]
        return OthersShown(findings=showing)

    def instances(self, *, deleted: bool = False) -> list[Instance]:
        rows = self.rows("instances")
        found = [self.look_at(Instance, UUID(row["server_id"])) for row in rows]
        return [instance for instance in found if deleted or not instance.deleted]

    def known_servers(self) -> list[Instance]:
        """Of which users ask for something."""
        return [each for each in self.instances() if str(each.id) not in self.apart]

    def known_volumes(self) -> dict[str, CinderVolume]:
        """Of which users, or Cinder's own administrators, ask for something."""
        volumes = self.cinder.volumes
        return {id_: volume for id_, volume in volumes.items() if id_ not in self.apart}

    def operations(self, *states: str) -> list[Operation]:
        rows = [row for row in self.rows("operations") if not states or row["state"] in states]
        return [self.look_at(Operation, UUID(row["operation_id"])) for row in rows]

    def mappings(self) -> list[BlockDeviceMapping]:
        rows = self.rows("mappings")
        return [self.look_at(BlockDeviceMapping, UUID(row["bdm_id"])) for row in rows]

    def attachments(self) -> list[Attachment]:
        rows = [row for row in self.rows("attachments") if row["state"] != "deleted"]
        return [self.look_at(Attachment, UUID(row["attachment_id"])) for row in rows]

    def server_of(self, operation_id: str) -> str:
        started = self.look_at(Operation, UUID(operation_id)).started
        assert started is not None
        return started.server_id

    def volume(self, volume_id: str) -> Volume:
        return self.look_at(Volume, UUID(volume_id))

    def look_at(self, kind: type[A], id_: UUID) -> A:
        """As the log has it now, to be read alone: loaded anew when it has changed."""
        known = self._looked_at.get((kind, id_))
        if known is None or known.version != len(self.store.streams.get(id_, ())):
            known = self._looked_at[kind, id_] = self.store.load(kind, id_)
        return known  # type: ignore[return-value]

    def given_to(self, host: str) -> set[str]:
        """The targets of connections that Cinder has given to a host, by their digests."""
        rows = self.cinder.attachments.values()
        infos = [row.connection_info for row in rows if row.host == host and row.connection_info]
        return {connection.target_digest(info) for info in infos}

    def planted_on(self, host: str) -> set[str]:
        """Volumes, and targets of connections, that stay there for planted records, or those of
        servers apart, alone; and what is there by itself.
        """
        had: dict[bool, set[str]] = {True: set(), False: set()}
        for id_, record in self.records[host].items():
            targets = map(connection.target_digest, record.infos)
            theirs = id_ in self.planted or record.server_id in self.apart
            had[theirs].update((record.volume_id, *targets))
        return (had[True] - had[False]) | self.planted

    def is_shared(self, volume_id: str) -> bool:
        """Whether several servers may have it."""
        found = self.cinder.volumes.get(volume_id)
        return found is not None and found.multiattach


def _hosts_of(row: Row) -> set[str | None]:
    return {row["host"], row["destination"], *(step["place"] for step in row["steps"])}
