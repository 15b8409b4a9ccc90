"""What a look at another's cloud records: what is new, once, and nothing that was not told."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from aggregates import errors
from aggregates.attachment import Attachment, AttachmentState
from aggregates.base import NovaTold, Seen
from aggregates.instance import Instance, VmState
from aggregates.mapping import BlockDeviceMapping
from aggregates.server import SeenDisks
from handlers.drift.seen import SeenAttachment, SeenMapping, SeenServer
from handlers.engine.rules import Replay
from handlers.requests import edits
from handlers.results.observed import Notice, ServerSeen, record
from ledger.log.unit import Unit
from ledger.nova_beside.observer import seen_between
from ledger.words.sentences import sentence
from tests.memory import MemoryStore, Trouble
from tests.world import CONTEXT

S, V, A, A2, B = (str(UUID(int=n)) for n in range(1, 6))
SEEN = Seen(origin="nova", after="2026-11-27T12:00:00+00:00", before="2026-11-27T12:01:00+00:00")
ASKED = replace(SEEN, after=None)
MAPPING = SeenMapping(id=B, volume_id=V, attachment_id=A, device="vdb")
SERVER = SeenServer(
    id=S, name="db", host="hv1", vm_state="active", power_state=1, volumes=(V,), mappings=(MAPPING,)
)
ATTACHED = SeenAttachment(id=A, volume_id=V, server_id=S, status="attached", host="hv1")
SIGHT = ServerSeen(server_id=S, server=SERVER, attachments=[ATTACHED], seen=SEEN, asked=ASKED)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(Trouble)


def look(store: MemoryStore, **changes: Any) -> list[str]:
    """The topics of what is new."""
    before, unit = len(store.log), Unit(store)
    assert record(replace(SIGHT, mapped=(B,), **changes), unit)
    unit.save(CONTEXT)
    return [type(event).TOPIC for event, _ in store.log[before:]]


def test_what_is_seen_again_is_recorded_once(store: MemoryStore) -> None:
    first = look(store)
    assert first[-1] == "BlockDeviceMapping.DevicePlugged"
    assert "Attachment.Completed" in first
    assert look(store) == []
    attachment = store.load(Attachment, UUID(A))
    assert (attachment.state, attachment.origin) == (AttachmentState.ATTACHED, "nova")


def test_what_was_asked_before_is_recorded_once_and_says_how_far_back(store: MemoryStore) -> None:
    days = {9: "attach_volume", 3: "create", 5: "reboot", 7: "attach_volume.error"}
    moments = {f"2026-11-0{day}T12:00:00+00:00": what for day, what in days.items()}
    asked = [NovaTold(event=what, at=at) for at, what in moments.items()]
    look(store, actions=asked)
    renamed = replace(SERVER, name="x")
    assert look(store, actions=asked, server=renamed) == ["Instance.ServerSeen"]
    [event] = [e for e, _ in store.log if isinstance(e, Instance.ActionsSeen)]
    told = [each["event"] for each in event.actions]
    assert told == ["create", "attach_volume.error", "attach_volume"]
    assert (event.back_to, event.whole) == ("2026-11-03T12:00:00+00:00", True)


def test_what_nova_has_cleared_away_is_not_said_to_be_whole(store: MemoryStore) -> None:
    look(store, actions=[])
    [event] = [e for e, _ in store.log if isinstance(e, Instance.ActionsSeen)]
    assert (event.actions, event.back_to, event.whole) == ([], None, False)


def test_of_a_server_that_nova_builds_nothing_is_said_to_be_cleared_away(
    store: MemoryStore,
) -> None:
    building = replace(SERVER, vm_state="building", task_state="scheduling")
    assert "Instance.ActionsSeen" not in look(store, server=building, actions=[])


def test_an_attachment_whose_host_no_list_names_stays_where_it_was(store: MemoryStore) -> None:
    look(store)
    nowhere = replace(SERVER, host=None, vm_state="shelved_offloaded")
    told = look(store, server=nowhere, attachments=[replace(ATTACHED, host=None)])
    assert told == ["Instance.ServerSeen"]
    assert store.load(Attachment, UUID(A)).host == "hv1"
    assert store.load(Instance, UUID(S)).own_state is VmState.SHELVED_OFFLOADED


def test_what_nobody_says_is_gone_is_not_over(store: MemoryStore) -> None:
    look(store)
    assert look(store, server=replace(SERVER, mappings=None), attachments=[]) == []
    gone = look(store, server=replace(SERVER, mappings=()), attachments=[], gone=[A])
    assert gone[:2] == ["BlockDeviceMapping.DeviceUnplugged", "BlockDeviceMapping.MappingEnded"]
    assert gone[2:] == ["Attachment.Disconnected", "Attachment.Deleted", "Volume.Released"]


def test_a_server_that_is_gone_leaves_what_cinder_still_has(store: MemoryStore) -> None:
    look(store)
    assert "Attachment.Deleted" not in look(store, server=None)
    assert store.load(Instance, UUID(S)).deleted
    assert look(store, server=None, attachments=[], gone=[A])[-1] == "Volume.Released"


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "not listed yet"])
def test_a_mapping_names_no_attachment_before_there_is_one(
    store: MemoryStore, listed: bool
) -> None:
    look(store)
    switched = replace(SERVER, mappings=(replace(MAPPING, attachment_id=A2),))
    other = replace(ATTACHED, id=A2, host="hv2")
    look(store, server=switched, attachments=[ATTACHED, other] if listed else [ATTACHED])
    [event] = [e for e, _ in store.log if isinstance(e, BlockDeviceMapping.AttachmentSwitched)]
    assert event.seen == SEEN.stored()


def test_when_a_mapping_went_back_nobody_knows(store: MemoryStore) -> None:
    other = replace(ATTACHED, id=A2, host="hv2")
    look(store, attachments=[ATTACHED, other])
    look(
        store,
        server=replace(SERVER, mappings=(replace(MAPPING, attachment_id=A2),)),
        attachments=[ATTACHED, other],
    )
    [event] = [e for e, _ in store.log if isinstance(e, BlockDeviceMapping.AttachmentSwitched)]
    assert event.seen == ASKED.stored()


def test_a_server_of_ours_stays_ours(store: MemoryStore) -> None:
    unit = Unit(store)
    unit.get(Instance, S).record(Instance.Placed, host="hv1", power_state="running", epoch=0)
    unit.save(CONTEXT)
    unit = Unit(store)
    assert not record(SIGHT, unit)
    assert unit.save(CONTEXT) == 0


def test_a_hosts_word_alone_makes_no_server_of_novas_ours(store: MemoryStore) -> None:
    unit = Unit(store)
    unit.get(Instance, S).observe(name="db", host="hv1", power_state="running")
    unit.save(CONTEXT)
    unit = Unit(store)
    assert not record(replace(SIGHT, server=None), unit), "Nova does not have it"
    assert unit.save(CONTEXT) == 0
    assert record(SIGHT, unit)
    assert unit.get(Instance, S).origin == "nova"


def test_what_a_user_called_such_a_server_makes_it_nobodys(store: MemoryStore) -> None:
    unit = Unit(store)
    instance = unit.get(Instance, S)
    shown = SeenDisks(("vdb",), (V,))
    instance.observe(name="db", host="hv1", power_state="running", disks=shown)
    instance.record(Instance.Described, changed={"name": "mine"})
    unit.save(CONTEXT)
    unit = Unit(store)
    assert record(SIGHT, unit)
    assert not unit.get(Instance, S).seen.volumes


def test_a_server_is_only_shown_until_an_operation_has_had_it(store: MemoryStore) -> None:
    assert not Instance(UUID(S)).only_shown, "nobody has shown it"
    unit = Unit(store)
    server = unit.get(Instance, S)
    server.observe(name="db", host="hv1", power_state="running")
    server.record(Instance.Described, changed={"name": "db"})
    before = server.only_shown
    server.claim(A, exclusive=True)
    server.release(A)
    assert (before, server.only_shown) == (True, False)
    unit.save(CONTEXT)
    assert not record(SIGHT, Unit(store)), "an attach that was undone leaves nothing else"


def test_a_clock_that_was_set_back_makes_no_interval_that_ends_before_it_begins() -> None:
    early, late = "2026-11-27T12:00:00+00:00", "2026-11-27T12:00:00.500000+00:00"
    assert seen_between(early, late).after == early
    assert seen_between(late, early).after is None


# --- what Nova has told -------------------------------------------------------------------------


def notice(kind: str, second: float = 30, volume_id: str | None = V, **more: Any) -> Notice:
    at = datetime(2026, 11, 27, 12, tzinfo=UTC) + timedelta(seconds=second)
    who = {"user_id": f"u{second:g}", "project_id": "p", "request_id": "req-1"}
    told = NovaTold(event=f"instance.{kind}", at=at.isoformat(), **who)
    return Notice(told=told, volume_id=volume_id, **more)


def askers(store: MemoryStore) -> dict[str, set[str]]:
    """By topic: whom Nova named; "" for nobody."""
    found: dict[str, set[str]] = {}
    for event, _ in store.log:
        told = (event.seen or {}).get("told") or {}
        found.setdefault(type(event).TOPIC, set()).add(told.get("user_id", ""))
    return found


BEGUN = {
    *("Attachment.AttachmentCreated", "Attachment.ConnectorUpdated", "Attachment.Completed"),
    *("BlockDeviceMapping.MappingCreated", "BlockDeviceMapping.DevicePlugged", "Volume.Held"),
}
ENDED = {
    *("Attachment.Disconnected", "Attachment.Deleted", "Volume.Released"),
    *("BlockDeviceMapping.DeviceUnplugged", "BlockDeviceMapping.MappingEnded"),
}


def test_who_asked_is_taken_from_what_was_told_last_in_any_order(store: MemoryStore) -> None:
    attach = [notice("volume_attach.end", 40), notice("volume_attach.start", 20)]
    look(store, notices=[*attach, notice("volume_detach.end", 50), *attach])
    told = askers(store)
    assert {topic for topic, who in told.items() if who == {"u40"}} >= BEGUN
    assert told["Instance.ServerSeen"] == {""}
    gone = replace(SERVER, mappings=(), volumes=())
    look(
        store,
        server=gone,
        attachments=[],
        gone=[A],
        notices=[*attach, notice("volume_detach.end", 50)],
    )
    assert {topic for topic, who in askers(store).items() if who == {"u50"}} >= ENDED


@pytest.mark.parametrize(
    "told",
    [
        notice("volume_attach.end", -10),
        notice("volume_attach.end", 70),
        notice("volume_attach.end", volume_id=A),
        notice("volume_attach.error"),
        notice("volume_detach.end"),
        notice("reboot.end", volume_id=None),
    ],
    ids=["before", "after", "other volume", "failed", "other act", "other thing"],
)
def test_what_was_told_of_another_time_or_thing_says_not_who_asked(
    store: MemoryStore, told: Notice
) -> None:
    look(store, notices=[told])
    assert set().union(*askers(store).values()) == {""}


@pytest.mark.parametrize("second", [-4.9, 64.9])
def test_clocks_of_nova_may_be_some_seconds_apart(store: MemoryStore, second: float) -> None:
    look(store, notices=[notice("volume_attach.end", second)])
    assert askers(store)["Attachment.Completed"] == {f"u{second:g}"}


def test_of_what_was_there_before_nobody_says_who_asked(store: MemoryStore) -> None:
    look(store, seen=replace(SEEN, after=None), notices=[notice("volume_attach.end")])
    assert askers(store)["Attachment.Completed"] == {""}


def test_the_interval_is_ours_whatever_nova_tells_of_the_time(store: MemoryStore) -> None:
    look(store, notices=[notice("volume_attach.end", 64)])
    for event, _ in store.log:
        assert event.seen is not None
        assert (event.seen["after"], event.seen["before"]) == (SEEN.after, SEEN.before)


def test_a_servers_deletion_is_of_all_that_it_had(store: MemoryStore) -> None:
    look(store)
    deleted = notice("delete.end", volume_id=None)
    look(store, server=None, attachments=[], gone=[A], notices=[deleted])
    told = askers(store)
    assert told["Instance.Deleted"] == told["Volume.Released"] == {"u30"}


@pytest.mark.parametrize(
    ("index", "root", "kept"),
    [(3, None, 3), (0, None, None), (3, "vdb", 0)],
    ids=["told", "a root that no look shows", "a root that Nova shows"],
)
def test_a_place_in_the_boot_order_is_told_but_the_roots(
    store: MemoryStore, index: int, root: str | None, kept: int | None
) -> None:
    told = notice("volume_attach.end", boot_indexes={V: index})
    look(store, server=replace(SERVER, root_device=root), notices=[told])
    assert store.load(BlockDeviceMapping, UUID(B)).boot_index == kept


def test_the_story_says_who_asked(store: MemoryStore) -> None:
    look(store, notices=[notice("volume_attach.end")])
    [event] = [e for e, _ in store.log if isinstance(e, Attachment.Completed)]
    said = sentence(event.TOPIC, {"seen": event.seen})
    who = "instance.volume_attach.end at 2026-11-27 12:00:30 for user u30 of project p, req-1): "
    assert who in said


def test_whether_a_volume_goes_with_its_server_is_novas_to_say(store: MemoryStore) -> None:
    """Nova would not hear of it, and delete the volume, or keep it, all the same."""
    look(store)
    mapping = store.load(BlockDeviceMapping, UUID(B))
    for value in (True, False):
        with pytest.raises(errors.ObservedServerError, match="Send the request to Nova"):
            edits.set_delete_on_termination(mapping, CONTEXT, server_id=S, volume_id=V, value=value)
    assert not mapping.unsaved


def test_a_server_that_is_shown_again_is_there_again_and_what_has_ended_is_not(
    store: MemoryStore,
) -> None:
    """A database of Nova's was restored."""
    look(store)
    look(store, server=None, attachments=[], gone=[A])
    assert store.load(Instance, UUID(S)).deleted
    assert look(store) == ["Instance.ServerSeen"]
    assert look(store) == [], "not with each look"
    assert store.load(Instance, UUID(S)).own_state is VmState.ACTIVE
    assert store.load(Attachment, UUID(A)).state is AttachmentState.DELETED
    b2, v2 = (str(UUID(int=n)) for n in (6, 7))
    mappings = (MAPPING, replace(MAPPING, id=b2, volume_id=v2, attachment_id=A2, device="vdc"))
    new = replace(ATTACHED, id=A2, volume_id=v2)
    told = look(store, server=replace(SERVER, mappings=mappings), attachments=[ATTACHED, new])
    assert told[-1] == "BlockDeviceMapping.DevicePlugged", "from now on it is followed"
    rules = Replay()
    broken = [each for n, (event, _) in enumerate(store.log) for each in rules.follow([(n, event)])]
    assert [*broken, *rules.rest()] == []


def test_a_row_of_the_old_calls_that_has_another_id_here_stops_no_look(store: MemoryStore) -> None:
    """Cinder has two of the server, and the other one was handed back with it."""
    look(store)
    unit = Unit(store)
    unit.get(Attachment, A).record(Attachment.Renamed, now=A2)
    unit.save(CONTEXT)
    look(store)
    look(store, server=None, attachments=[], gone=[A])
    assert store.load(Attachment, UUID(A)).state is AttachmentState.RENAMED
