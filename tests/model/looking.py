"""A look over the model's world, by the real joins and judgements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aggregates.attachment import Attachment, AttachmentState
from aggregates.finding import Finding, FindingState
from aggregates.mapping import BlockDeviceMapping
from aggregates.volume import Volume
from handlers.drift import join, judge
from handlers.drift.classes import DriftClass
from handlers.drift.judge import Sight, Suspicion
from handlers.drift.rows import CinderAttachment, CinderVolume, Row
from handlers.engine import rules
from ledger.log.unit import Unit
from tests.model import world
from tests.model.state import CONTEXT, State
from tests.model.world import SERVER, survey

_DELETED = AttachmentState.DELETED


def drift(state: State) -> Iterator[tuple[DriftClass, Row]]:
    """Each difference once, whichever pass it is of."""
    found: dict[str, tuple[DriftClass, Row]] = {}
    for row in (*_attachments(state), *_volumes(state), *_hosts(state)):
        for each in judge.drifting(row):
            found.setdefault(judge.id_of(each, row), (each, row))
    yield from found.values()


def look(state: State, store: Any) -> bool:
    """Two looks at everything, one after the other; whether they saw anything new.

    What an operation is at work on is explained.
    """
    unit, news, sight = Unit(store), False, _sight(state)
    if any(True for _ in state.operations("running", "parked")):
        return False
    cases = [Suspicion.of(*each) for each in drift(state)]
    for case in cases:
        finding = unit.get(Finding, judge.finding_id(case.drift_class, case.key))
        for _ in range(2):
            if finding.state is not FindingState.CONFIRMED or finding.differs != case.differs:
                judge.see_case(finding, case, sight)
                news = True
    seen = {judge.finding_id(case.drift_class, case.key) for case in cases}
    for finding in state.all(Finding):
        if str(finding.id) not in seen and finding.state is not FindingState.OVER:
            judge.miss(unit.get(Finding, str(finding.id)), sight)
            news = True
    if news:
        unit.save(CONTEXT)
    return news


def _sight(state: State) -> Sight:
    heard = frozenset(name for name, host in state.world.hosts.items() if host.on)
    lives = {name: {"boot_id": "boot", "epoch": 0, "age_s": 0} for name in heard}
    return Sight(look_id="look", position=1, heard=heard, lives=lives)


def unowned(state: State) -> Iterator[str]:
    """What nobody answers for: neither the ledger, nor a finding of a look made now."""
    told = {row.about.attachment_id for _, row in drift(state)}
    for attachment in rules.ownerless(state.known.values(), state):
        if str(attachment.id) not in told:
            yield f"{rules.OWNED[1]}  {attachment.state} {attachment.id}"
    held = {str(a.id) for a in state.all(Attachment) if a.state not in {None, _DELETED}}
    for name, host in state.world.hosts.items():
        if not host.on or state.host(name).suspect:
            continue  # what it has is asked when it comes back
        for id_ in set(host.records) - held - told:
            yield f"{rules.OWNED[1]}  connected on {name}: {id_}"
    for id_ in set(state.world.rows) - held - told:
        yield f"{rules.OWNED[1]}  in Cinder: {id_}"


def _stored(attachment: Attachment) -> dict[str, Any]:
    return {**vars(attachment), "attachment_id": str(attachment.id), "state": attachment.state}


def _open(state: State) -> list[dict[str, Any]]:
    return [_stored(each) for each in state.all(Attachment) if each.state not in {None, _DELETED}]


def _mappings(state: State) -> list[dict[str, Any]]:
    live = [each for each in state.all(BlockDeviceMapping) if each.live]
    return [{**vars(each), "state": each.state} for each in live]


def _attachments(state: State) -> Iterator[Row]:
    stored = {row["attachment_id"]: row for row in _open(state)}
    named = {
        id_: mapping["device_name"]
        for mapping in _mappings(state)
        for id_ in (mapping["attachment_id"], mapping["kept"])
    }
    server = "deleted" if state.instance.deleted else "live"
    for id_ in dict.fromkeys((*stored, *state.world.rows)):
        row = state.world.rows.get(id_)
        listed = row and _listed(row)
        yield join.attachment(
            stored.get(id_), listed, server=server, mapped=id_ in named, device=named.get(id_)
        )


def _listed(row: world.Row) -> join.CinderListing:
    host = row.host if row.status == "attached" else None
    shown = CinderAttachment(status=row.status, host=host)
    return join.CinderListing(
        id=row.id, volume_id=row.volume_id, server_id=row.server_id, shown=shown
    )


def _volumes(state: State) -> Iterator[Row]:
    for volume_id, status in state.world.volumes.items():
        rows = [row for row in state.world.rows.values() if row.volume_id == volume_id]
        mapped = [each for each in _mappings(state) if each["volume_id"] == volume_id]
        shown = CinderVolume(
            status=status, attachments=len(rows), migration_status=None, made=False
        )
        had = state.get(Volume, volume_id).had
        yield join.volume(volume_id, shown, mappings=len(mapped), had=had)


def _hosts(state: State) -> Iterator[Row]:
    instance, hosts = state.instance, state.world.hosts
    surveys = {name: survey(host, 0) for name, host in hosts.items() if host.on}
    row = {**vars(instance), "server_id": SERVER}
    powers = {
        (name, guest.server_id): guest.power_state.value
        for name, each in surveys.items()
        for guest in each.guests
    }
    own = set() if instance.deleted else {instance.host, instance.resize_source}
    shown_elsewhere = tuple((name, power) for (name, _), power in powers.items() if name not in own)
    for name in hosts:
        yield from join.of_host(
            _hosted(state, name, row, surveys.get(name), shown_elsewhere, powers)
        )
    if shown_elsewhere and instance.deleted:
        nowhere = join.Hosted(host="", survey=None, shown_elsewhere={SERVER: shown_elsewhere})
        yield join.server(nowhere, row)


def _hosted(
    state: State, name: str, row: dict[str, Any], shown: Any, shown_elsewhere: Any, powers: Any
) -> join.Hosted:
    instance = state.instance
    here = [row] if name in {instance.host, instance.resize_source} else []
    records = {each.attachment_id for each in shown.connections} if shown else set()
    known = [_stored(each) for each in state.all(Attachment)]
    other = instance.resize_source
    return join.Hosted(
        host=name,
        survey=shown,
        servers=[] if instance.deleted else here,
        mappings=[each for each in _mappings(state) if here and each["volume_id"]],
        attachments=[a for a in known if a["host"] == name or a["attachment_id"] in records],
        shown_elsewhere={SERVER: shown_elsewhere} if shown_elsewhere else {},
        other_hosts={(other, SERVER): powers.get((other, SERVER))} if other else {},
    )
