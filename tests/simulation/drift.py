"""What a look would find: the classes of drift, over all that a simulated cloud shows at rest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from handlers.drift import join
from handlers.drift.classes import DriftClass
from handlers.drift.judge import differs, drifting, id_of
from handlers.drift.predicates import LASTING
from handlers.drift.rows import CinderAttachment, CinderVolume, VolumeRow
from handlers.drift.rows import Row as Joined
from host_agent.shared.cinder.client import mountpoint_of
from host_agent.shared.contract.origin import MADE_FOR
from host_agent.shared.contract.survey import Survey
from host_agent.shared.faults import Faults
from host_agent.simulated.adapters import SimulatedGuests, SimulatedStorage
from host_agent.survey import assembled, questions

if TYPE_CHECKING:
    from projections.base import Row
    from tests.simulation.cloud import Cloud

#: As which Cinder shows what a late request leaves, or makes of what there is.
_UNFINISHED = frozenset({"reserved", "attaching"})


def cases(cloud: Cloud) -> Iterator[tuple[Joined, DriftClass]]:
    """Each finding of a look at everything, once, whichever pass it is of: the row, and the class
    of which it is a case.
    """
    found: dict[str, tuple[Joined, DriftClass]] = {}
    for row in (*_attachments(cloud), *_volumes(cloud), *_hosts(cloud)):
        for each in drifting(row):
            found.setdefault(id_of(each, row), (row, each))
    yield from found.values()


def found(cloud: Cloud) -> Iterator[str]:
    """The same in words, without what a storm may leave, or somebody has planted.

    What Cinder is just deleting is gone when it has had its time: only what lasts is drift.
    """
    for _ in range(cloud.cinder.deleting_reads + 1):
        cloud.cinder.listed_volumes()
    for row, each in cases(cloud):
        may_stay = _goes_with_its_volume(cloud, row) or _is_left_to_people(cloud, row)
        may_stay = may_stay or row.about.server_id in cloud.vanished
        may_stay |= each.name == "disk_size_differs" and row.about.volume_id in uneven(cloud)
        if not planted(cloud, row) and not may_stay:
            yield f"{each.name}: {row.about}: {differs(row, each.parties)}"


def uneven(cloud: Cloud) -> set[str]:
    """Volumes of whose growth Cinder has told nobody who heard it, or that somebody gave up."""
    found = set(cloud.uneven)
    for row in cloud.rows("operations"):
        given_up = row["flow"].startswith("grow") and row["outcome"] == "cancelled"
        if given_up or (row["flow"], row["outcome"]) == ("grow_for_cinder", "failed"):
            found |= set(row["volume_ids"])
    return found


def planted(cloud: Cloud, row: Joined) -> bool:
    """Whether it is there because a test has put it there."""
    about = {row.about.server_id, row.about.volume_id}
    return tail(row) in cloud.planted or bool(about & cloud.apart)


def tail(row: Joined) -> str:
    """The last part of what a row is called."""
    return row.id.rpartition("/")[2]


def _goes_with_its_volume(cloud: Cloud, row: Joined) -> bool:
    """What came too late for anybody is drift, which a storm may leave: whoever lets the volume
    go, or deletes the server, ends it.  Until then the volume's status may be that of it, too.
    """
    left = {
        id_
        for each in cloud.cinder.attachments.values()
        for id_ in (each.id, each.volume_id)
        if each.id in cloud.strays or each.instance in cloud.overtaken
        if each.status in _UNFINISHED
    }
    shown = getattr(row, "cinder", None)
    return row.id in left and getattr(shown, "status", None) in _UNFINISHED


def _is_left_to_people(cloud: Cloud, row: Joined) -> bool:
    """A volume whose answer was lost, beside one that the log has for the same disk, or beside a
    copy; or of which the database's clock, which was set, does not say when it was asked for
    (decision 0089); or that an undo has left, for Cinder did not say who uses it.

    And one of which an old read hid that Cinder was migrating it: when it was released, Cinder set
    the status of before.
    """
    volume = cloud.cinder.volumes.get(row.id)
    if volume and volume.migration_status == "error" and "stale read" in cloud.happened:
        return isinstance(row, VolumeRow)
    if not isinstance(row, VolumeRow) or volume is None or cloud.volume(row.id).mark is not None:
        return False
    mark = volume.metadata.get(MADE_FOR)
    lanes = [lane for operation in cloud.operations() for lane in operation.lanes]
    beside = any(lane.volume_id not in {"", row.id} for lane in lanes if lane.bdm_id == mark)
    marks = [each.metadata.get(MADE_FOR) for each in cloud.cinder.volumes.values()]
    left = any(row.id in getattr(e, "outputs", {}).get("left", ()) for e, _ in cloud.store.log)
    return mark is not None and (beside or marks.count(mark) > 1 or cloud.database_was_set or left)


def _attachments(cloud: Cloud) -> Iterator[Joined]:
    open_ = [row for row in cloud.rows("attachments") if row["state"] != "deleted"]
    stored = {row["attachment_id"]: {"host": None, **row} for row in open_}
    listed = {row.id: _listed(row) for row in cloud.cinder.attachments.values()}
    servers = {
        r["server_id"]: "deleted" if r["deleted"] else "live" for r in cloud.rows("instances")
    }
    named = {
        id_: m["device_name"]
        for m in cloud.rows("mappings")
        for id_ in (m["attachment_id"], m["kept"])
    }
    by_old_calls = {(r["server_id"], r["volume_id"]) for r in stored.values() if r["legacy"]}
    shared = {volume.id for volume in cloud.cinder.volumes.values() if volume.multiattach}
    mapped = {m["volume_id"]: m["server_id"] for m in cloud.rows("mappings")}
    taken = {id_: server for id_, server in mapped.items() if id_ and id_ not in shared}
    for id_ in sorted(stored.keys() | listed.keys()):
        ours, theirs = stored.get(id_), listed.get(id_)
        if ours is None and theirs and (theirs.server_id, theirs.volume_id) in by_old_calls:
            continue  # Cinder's side of what the ledger has under an id of its own
        server_id = ours["server_id"] if ours else theirs and theirs.server_id
        yield join.attachment(
            ours,
            theirs,
            server=servers.get(server_id or ""),
            mapped=id_ in named,
            device=named.get(id_),
            taken_by=None if server_id in servers or not theirs else taken.get(theirs.volume_id),
        )


def _listed(row: Any) -> join.CinderListing:
    """As Cinder's lists show it: but for the status, all only of one that is attached."""
    attached = row.status == "attached"
    return join.CinderListing(
        id=row.id,
        volume_id=row.volume_id,
        server_id=row.instance,
        shown=CinderAttachment(
            status=row.status,
            host=row.host if attached else None,
            mode=row.mode if attached and row.mode in {"ro", "rw"} else None,
            mountpoint=mountpoint_of({"device": row.mountpoint}) if attached else None,
        ),
    )


def _volumes(cloud: Cloud) -> Iterator[Joined]:
    had = {row["volume_id"] for row in cloud.rows("attachments")}
    mappings = _by_volume(cloud.rows("mappings"))
    projects = {row["server_id"]: row.get("project_id") for row in cloud.rows("instances")}
    has = [(m["volume_id"], projects.get(m["server_id"])) for m in cloud.rows("mappings")]
    for volume_id in sorted(had | cloud.cinder.volumes.keys()):
        volume = cloud.cinder.volumes.get(volume_id)
        yield join.volume(
            volume_id,
            None if volume is None else _shown(cloud, volume),
            mappings=mappings[volume_id],
            had=volume_id in had,
            projects={project for id_, project in has if id_ == volume_id and project},
        )


def _shown(cloud: Cloud, volume: Any) -> CinderVolume:
    return CinderVolume(
        status=volume.status,
        attachments=len(cloud.cinder.attachments_of(volume.id)),
        migration_status=volume.migration_status,
        made=MADE_FOR in volume.metadata,
        project_id=volume.project_id,
        since=str(volume.changes) if volume.status in LASTING else None,
    )


# --- hosts --------------------------------------------------------------------------------------


def surveyed(cloud: Cloud, name: str, epoch: int = 0) -> Survey:
    """As the host's agent would show it, with nothing in its way."""
    state = cloud.states[name]
    guests = SimulatedGuests(state, Faults(), name)
    storage = SimulatedStorage(state, Faults(), name)
    asked = questions(guests, cloud.records[name], storage)
    return assembled("boot", epoch, {part: ask() for part, ask in asked.items()})


def _hosts(cloud: Cloud) -> Iterator[Joined]:
    surveys = {name: surveyed(cloud, name) for name in cloud.states}
    powers = {
        (name, guest.server_id): guest.power_state.value
        for name, each in surveys.items()
        for guest in each.guests
    }
    instances = [{**_NOWHERE, **row} for row in cloud.rows("instances")]
    shown_elsewhere: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in instances:
        own = set() if row["deleted"] else {row["host"], row["resize_source"]}
        for name in cloud.states.keys() - own:
            if power := powers.get((name, row["server_id"])):
                shown_elsewhere[row["server_id"]].append((name, power))
    for name in cloud.states:
        live = (row for row in instances if not row["deleted"])
        here = [row for row in live if name in {row["host"], row["resize_source"]}]
        ids = {row["server_id"] for row in here}
        records = {each.attachment_id for each in surveys[name].connections}
        hosted = join.Hosted(
            host=name,
            survey=surveys[name],
            servers=here,
            mappings=[
                m for m in cloud.rows("mappings") if m["server_id"] in ids and m["volume_id"]
            ],
            attachments=[
                {"host": None, **row}
                for row in cloud.rows("attachments")
                if row.get("host") == name or row["attachment_id"] in records
            ],
            shown_elsewhere={id_: tuple(shown) for id_, shown in shown_elsewhere.items()},
            sizes={volume.id: volume.size for volume in cloud.cinder.volumes.values()},
            other_hosts={
                (row["resize_source"], row["server_id"]): powers.get(
                    (row["resize_source"], row["server_id"])
                )
                for row in here
                if row["resize_source"]
            },
        )
        yield from join.of_host(hosted)
    nowhere = join.Hosted(
        host="", survey=None, shown_elsewhere={k: tuple(v) for k, v in shown_elsewhere.items()}
    )
    for row in instances:
        if row["server_id"] in shown_elsewhere and (row["deleted"] or row["host"] is None):
            yield join.server(nowhere, row)


_NOWHERE = {"host": None, "resize_source": None}


def _by_volume(rows: Iterator[Row] | list[Row]) -> Counter[str]:
    return Counter(row["volume_id"] for row in rows)
