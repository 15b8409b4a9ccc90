"""Which servers of somebody else's host can be adopted: each reason by itself, and together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from aggregates import errors
from aggregates.instance import Instance
from handlers.drift.rows import UNKNOWN, Unknown
from handlers.drift.seen import SeenAttachment, SeenMapping, SeenServer, SeenVolume
from handlers.results.adopt import (
    AdoptionVerdict,
    Holder,
    HostFacts,
    ServerFacts,
    VolumeFacts,
    groups,
    judge,
    notes_of,
    refusals_of,
)
from ledger.config import Observe
from ledger.nova_beside import adopting, one_host
from ledger.nova_beside.reads import CutListError

S, S2, V, A, A2, B, B2 = (str(UUID(int=n)) for n in range(1, 8))
MAPPING = SeenMapping(id=B, volume_id=V, attachment_id=A, device="vdb")
SERVER = SeenServer(
    id=S,
    name="db",
    host="hv1",
    vm_state="active",
    power_state=1,
    root_device="vda",
    volumes=(V,),
    mappings=(MAPPING,),
)
VOLUME = VolumeFacts(
    seen=SeenVolume(id=V, status="in-use"),
    holders=(Holder(attachment_id=A, server_id=S, host="hv1", device="vdb"),),
)
ATTACHED = SeenAttachment(id=A, volume_id=V, server_id=S, status="attached", host="hv1")
FACTS = ServerFacts(
    seen=SERVER,
    locked=False,
    local_disks=False,
    networks=False,
    attachments=(ATTACHED,),
    volumes={V: VOLUME},
)
HOST = HostFacts(name="hv1", disabled=True, up=False, moving={}, servers=(FACTS,))


def seen(**changes: Any) -> ServerFacts:
    return replace(FACTS, seen=replace(SERVER, **changes))


def mapped(**changes: Any) -> ServerFacts:
    return seen(mappings=(replace(MAPPING, **changes),))


def volume(**changes: Any) -> ServerFacts:
    shown = replace(SeenVolume(id=V, status="in-use"), **changes)
    return replace(FACTS, volumes={V: replace(VOLUME, seen=shown)})


def encrypted(provider: str | Unknown | None) -> ServerFacts:
    return replace(FACTS, volumes={V: replace(VOLUME, encrypted=True, provider=provider)})


def judged(server: ServerFacts, **options: Any) -> AdoptionVerdict:
    [verdict] = judge(replace(HOST, servers=(server,)), **{"closed": True, **options})
    return verdict


REFUSED: dict[str, tuple[ServerFacts, str]] = {
    "a task": (seen(task_state="migrating"), "Nova is at it: migrating"),
    "resized": (seen(vm_state="resized"), "Its state is resized"),
    "shelved": (seen(vm_state="shelved_offloaded"), "Its state is shelved_offloaded"),
    "a cell that is down": (seen(known=False), "cell does not answer"),
    "an odd volume": (seen(known=False, odd="rubbish"), "a volume that is called 'rubbish'"),
    "mappings not told": (seen(mappings=None), "did not tell its mappings"),
    "no attachment in Cinder": (replace(FACTS, attachments=()), "Cinder has no attachment"),
    "one that Nova has not": (
        replace(FACTS, attachments=(ATTACHED, replace(ATTACHED, id=A2))),
        f"Cinder has attachment {A2}",
    ),
    "not attached": (
        replace(FACTS, attachments=(replace(ATTACHED, status="attaching"),)),
        "is attaching in Cinder",
    ),
    "of another volume": (
        replace(FACTS, attachments=(replace(ATTACHED, volume_id=S2),)),
        f"of volume {S2}",
    ),
    "on another host": (
        replace(
            FACTS,
            volumes={V: replace(VOLUME, holders=(replace(VOLUME.holders[0], host="hv2"),))},
        ),
        "Cinder has it on host hv2",
    ),
    "no volume": (
        replace(FACTS, volumes={V: replace(VOLUME, seen=None)}),
        "Cinder has no such volume",
    ),
    "a volume not told": (
        replace(FACTS, volumes={V: replace(VOLUME, seen=UNKNOWN)}),
        "did not tell of it",
    ),
    "detaching": (volume(status="detaching"), "it is detaching in Cinder"),
    "migrated by Cinder": (volume(migration_status="migrating"), "Cinder migrates it"),
    "encrypted otherwise": (encrypted("luks2"), "encrypted (luks2)"),
    "encryption not told": (encrypted(UNKNOWN), "Cinder does not tell by what"),
    "no name of the disk": (mapped(device=None), "called None"),
    "a bus that has no plug": (mapped(device="hda"), "called hda"),
    "shared elsewhere": (
        replace(
            FACTS,
            volumes={
                V: replace(
                    VOLUME,
                    seen=SeenVolume(id=V, status="in-use", multiattach=True),
                    holders=(*VOLUME.holders, replace(VOLUME.holders[0], server_id=S2)),
                )
            },
        ),
        f"server {S2} has it, too",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_server_that_is_not_at_rest_or_not_agreed_on_stays(name: str) -> None:
    server, why = REFUSED[name]
    verdict = judged(server)
    assert why in " ".join(verdict.refusals), verdict
    assert (verdict.taken, verdict.notes) == ((), ())
    assert groups([verdict]) == []


def test_what_both_say_alike_is_taken() -> None:
    verdict = judged(FACTS)
    assert verdict.refusals == ()
    [taken] = verdict.taken
    assert (taken.mapping_id, taken.attachment_id, taken.device) == (B, A, "vdb")
    assert groups([verdict]) == [[verdict]]


def test_its_owner_must_not_be_able_to_have_nova_reboot_it() -> None:
    assert "reboot it" in judged(FACTS, closed=False).refusals[0]
    assert judged(replace(FACTS, locked=True), closed=False).refusals == ()


def test_cinder_is_asked_how_a_volume_is_encrypted() -> None:
    told = {f"/volumes/{V}/encryption": "luks2"}
    reader: Any = SimpleNamespace(cinder=None, single=lambda _, path, name: (told[path], name)[0])
    server = one_host.with_providers(reader, encrypted(None))
    assert judged(server).refusals
    assert one_host.with_providers(reader, FACTS) == FACTS, "the others are not asked for"


def test_a_migration_that_has_not_ended_keeps_its_server() -> None:
    [verdict] = judge(replace(HOST, moving={S: "post-migrating"}), closed=True)
    assert "post-migrating" in verdict.refusals[0]


def test_a_server_that_may_still_come_here_is_told() -> None:
    """A resized one can be reverted, and a live migration ends, only while nova-compute runs."""
    moving = replace(HOST, moving={S2: "finished"})
    there, going = judge(moving, closed=True, before=moving)
    assert (there.server_id, there.refusals) == (S, ())
    assert going.server_id == S2
    assert "another host" in going.refusals[0]
    assert "finished" in going.refusals[0]


def test_what_two_looks_say_otherwise_is_not_believed() -> None:
    assert judged(FACTS, before=HOST).refusals == ()
    other = replace(HOST, servers=(seen(power_state=4),))
    assert judged(FACTS, before=other).refusals == ("Two looks differ: something is in progress.",)


def test_a_host_to_which_servers_may_come_is_not_taken() -> None:
    assert refusals_of(HOST) == []
    assert "--disable hv1 nova-compute" in refusals_of(replace(HOST, disabled=False))[0]
    assert "no nova-compute" in refusals_of(replace(HOST, disabled=None))[0]
    assert "cell" in refusals_of(replace(HOST, disabled=UNKNOWN))[0]
    assert len(notes_of(replace(HOST, up=True))) == len(notes_of(HOST)) + 1
    topics = f"compute.{HOST.name} and compute-alt.{HOST.name} with 0"
    assert any(topics in each for each in notes_of(HOST)), "the queues, as they are called there"


_STOPPED = {"host": "hv1", "status": "disabled", "state": "down", "forced_down": False}
#: What Nova 34 lists of the host's nova-compute, and whether it is disabled, and may be working.
SERVICES: dict[str, tuple[list[dict[str, Any]], tuple[Any, bool]]] = {
    "none": ([], (None, False)),
    "another's": ([{**_STOPPED, "host": "hv10"}], (None, False)),
    "stopped": ([_STOPPED], (True, False)),
    "up": ([{**_STOPPED, "state": "up"}], (True, True)),
    "forced down": ([{**_STOPPED, "forced_down": True}], (True, True)),
    "of two cells, one up": ([_STOPPED, {**_STOPPED, "state": "up"}], (True, True)),
    "of two cells, one enabled": ([_STOPPED, {**_STOPPED, "status": "enabled"}], (False, False)),
    "a cell that is down": ([_STOPPED, {"host": "hv1", "status": "UNKNOWN"}], (UNKNOWN, True)),
}


@pytest.mark.parametrize("name", SERVICES)
def test_a_nova_compute_may_work_unless_nova_knows_better(name: str) -> None:
    rows, told = SERVICES[name]
    nova: Any = SimpleNamespace(nova=None, get=lambda *_, **__: rows)
    assert one_host.service(nova, "hv1") == told


def old(**changes: Any) -> ServerFacts:
    return replace(FACTS, seen=replace(SERVER, mappings=()), **changes)


def test_what_the_old_calls_attached_is_taken_by_what_cinder_has() -> None:
    verdict = judged(old(ending=frozenset({V})))
    [taken] = verdict.taken
    assert (taken.mapping_id, taken.attachment_id, taken.device) == (None, A, "vdb")
    assert taken.delete_on_termination
    assert any("old calls" in each for each in verdict.notes)


NOTES: dict[str, tuple[ServerFacts, str]] = {
    "local disks": (replace(FACTS, local_disks=True), "local disks"),
    "networks": (replace(FACTS, networks=True), "ports of Neutron"),
    "encrypted": (encrypted("luks"), "needs its key manager"),
    "encrypted, of old": (encrypted("LuksEncryptor"), "needs its key manager"),
    "bus": (mapped(device="sdb"), "SCSI is assumed"),
    "boot index": (FACTS, "boot index"),
    "host": (
        replace(
            FACTS, volumes={V: replace(VOLUME, holders=(replace(VOLUME.holders[0], host=None),))}
        ),
        "does not tell its host",
    ),
}


@pytest.mark.parametrize("name", NOTES)
def test_what_is_not_known_is_told_and_in_nobodys_way(name: str) -> None:
    server, note = NOTES[name]
    verdict = judged(server)
    assert verdict.refusals == ()
    assert any(note in each for each in verdict.notes), verdict.notes


def _shared(change: Callable[[ServerFacts], ServerFacts]) -> list[AdoptionVerdict]:
    """Two servers of the host share the volume; the second one is changed."""
    both = (*VOLUME.holders, replace(VOLUME.holders[0], attachment_id=A2, server_id=S2))
    facts = replace(VOLUME, seen=SeenVolume(id=V, status="in-use", multiattach=True), holders=both)
    first = replace(FACTS, volumes={V: facts})
    second = replace(
        first,
        seen=replace(SERVER, id=S2, mappings=(replace(MAPPING, id=B2, attachment_id=A2),)),
        attachments=(replace(ATTACHED, id=A2, server_id=S2),),
    )
    return judge(replace(HOST, servers=(first, change(second))), closed=True)


def test_servers_that_share_a_volume_go_together_or_not_at_all() -> None:
    verdicts = _shared(lambda server: server)
    assert [len(group) for group in groups(verdicts)] == [2]
    busy = _shared(lambda server: replace(server, seen=replace(server.seen, task_state="x")))
    assert groups(busy) == []
    assert f"server {S2} has it, too" in busy[0].refusals[0]


def test_nova_is_asked_for_one_agent_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hangs would else have all threads that take what agents report."""
    store: Any = SimpleNamespace(load=lambda *_: SimpleNamespace(awaits_agent=True))
    passing = adopting.Adopting("", store, Observe(), lambda: 0.0)
    asked = []

    def service(_reader: Any, host: str) -> tuple[Any, bool]:
        asked.append(host)
        with pytest.raises(adopting.NovaAskedError):
            passing.refuse_two("hv2")
        return {"hv1": (True, False), "hv3": (UNKNOWN, True), "hv4": (True, True)}[host]

    monkeypatch.setattr(adopting, "reader_of", lambda *_: None)
    monkeypatch.setattr(one_host, "service", service)
    passing.refuse_two("hv1")
    passing.refuse_two("hv1")
    assert asked == ["hv1", "hv1"]
    with pytest.raises(adopting.NovaAskedError, match="cell"):
        passing.refuse_two("hv3")
    with pytest.raises(errors.NovaComputeRunsError):
        passing.refuse_two("hv4")


@pytest.mark.parametrize("ours", [False, True])
def test_a_server_of_novas_that_only_a_host_of_ours_shows_is_adopted_as_novas(ours: bool) -> None:
    shown = Instance(UUID(S))
    assert shown.observe(name="guest-7", host="h", power_state="running")
    if ours:
        shown.record(Instance.Claimed, claimant=V, exclusive=True)
    store: Any = SimpleNamespace(load_many=lambda *_: [shown])
    act = adopting.Adopting("", store, Observe(), lambda: 0.0)
    had = list(map(adopting._had, act._ours(HOST).values()))
    assert [each.state for each in had] == ["stays"] * ours, "nobody has adopted it"


def test_a_list_of_migrations_that_ignores_the_marker_ends() -> None:
    pages = iter([[{"uuid": V}]] * 3)
    reader: Any = SimpleNamespace(nova=None, get=lambda *_, **_query: next(pages))
    with pytest.raises(CutListError, match="no end"):
        list(one_host._migrations(reader, "hv1"))
