"""Which servers of a Nova's host can be adopted, and why the others cannot (decision 0114).

Pure: the input is what Nova and Cinder show, not what the ledger has.  A server can be adopted only
if it is at rest and both agree on each of its volumes.  Servers that share a volume are adopted
together or not at all: otherwise both Nova and the ledger would decide who is the last user of the
volume on a host.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from handlers.drift.rows import Unknown
from handlers.drift.seen import SeenAttachment, SeenMapping, SeenServer, SeenVolume
from host_agent.shared.contract.ports import LUKS
from host_agent.shared.contract.volume_states import NOT_MIGRATING

#: Nova's states of a server whose guest is on its host, as our flows know it.
AT_REST = frozenset({"active", "paused", "stopped"})
#: Device names that tell the bus of a disk that can be plugged.
_DEVICE = re.compile(r"(?:vd|sd)[a-z]{1,2}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """A server that has a volume, as Cinder's volume shows it, and `since` when.  `device`: without
    /dev/.
    """

    attachment_id: str
    server_id: str
    host: str | None
    device: str | None
    since: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class VolumeFacts:
    """`seen` None: Cinder answered 404; Unknown: Cinder did not answer.  `provider`: of its
    encryption; None: Cinder was not asked, or answered 404.
    """

    seen: SeenVolume | Unknown | None
    encrypted: bool = False
    provider: str | Unknown | None = None
    readonly: bool = False
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerFacts:
    """A server of the host.  `attachments`: all that Cinder has for it; `volumes`: those that Nova
    or Cinder names; `ending`: those that are deleted with the server.  `local_disks`, `networks`:
    whether it has any.
    """

    seen: SeenServer
    locked: bool
    local_disks: bool
    networks: bool
    attachments: tuple[SeenAttachment, ...]
    volumes: Mapping[str, VolumeFacts]
    ending: frozenset[str] = frozenset()

    @property
    def shared(self) -> frozenset[str]:
        """Those of its volumes that are multi-attach."""
        seen = ((id_, each.seen) for id_, each in self.volumes.items())
        return frozenset(id_ for id_, it in seen if isinstance(it, SeenVolume) and it.multiattach)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostFacts:
    """A host as one look shows it.  `disabled`: of its nova-compute; None: Nova has none; Unknown:
    its cell does not answer Nova.  `up`: whether nova-compute may be working.  `moving`: servers
    with an unfinished migration, and its status.
    """

    name: str
    disabled: bool | Unknown | None
    up: bool
    moving: Mapping[str, str]
    servers: tuple[ServerFacts, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AdoptedVolume:
    """A volume of an adopted server.  `mapping_id` None: Nova shows none, because Cinder's old
    calls attached the volume.
    """

    mapping_id: str | None
    volume_id: str
    attachment_id: str
    device: str
    delete_on_termination: bool
    multiattach: bool
    readonly: bool
    boot_index: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class AdoptionVerdict:
    """The result for one server.  `refusals`: why it stays Nova's.  `notes`: what is unknown, or
    will not work.  `taken`: its volumes, if it can be adopted.
    """

    server_id: str
    name: str
    refusals: tuple[str, ...]
    notes: tuple[str, ...] = ()
    taken: tuple[AdoptedVolume, ...] = ()


def refusals_of(host: HostFacts) -> list[str]:
    """Why no server of the host can be adopted now."""
    if isinstance(host.disabled, Unknown):
        return [
            f"The cell of host {host.name} does not answer Nova, which then lists no server of it."
        ]
    if host.disabled is None:
        return [f"Nova has no nova-compute on host {host.name}."]
    if not host.disabled:
        command = f"openstack compute service set --disable {host.name} nova-compute"
        return [f"Nova's compute service there is enabled, so servers may still come: {command}"]
    return []


def notes_of(host: HostFacts) -> list[str]:
    """What an operator must know of the host before its agent is started."""
    calls = _CALLS.format(host=host.name)
    return [_LOCKS, calls, _RUNS] if host.up else [_LOCKS, calls]


#: Why it does not look itself: docs/decisions/0139.
_CALLS = (
    "Nobody has looked whether calls wait for its nova-compute. In Nova's RabbitMQ, rabbitmqctl "
    "list_queues name messages has to show compute.{host} and compute-alt.{host} with 0."
)
_LOCKS = (
    "os-brick's lock directory of nova-compute ([os_brick]lock_path, or [oslo_concurrency]) is in "
    "no API. The agent has its own: only one of both may work there."
)
_RUNS = (
    "nova-compute runs there, or is forced down, which stops nothing. Stop and mask it, and end "
    "the forcing down, before the agent is started: it would stop guests that are not as its "
    "database says."
)


def judge(
    host: HostFacts,
    *,
    closed: bool,
    ours: AbstractSet[str] = frozenset(),
    before: HostFacts | None = None,
) -> list[AdoptionVerdict]:
    """One verdict for each server that is not in `ours`, and for each that may be on its way.

    `closed`: requests for an adopted server do not reach Nova, so nobody can request its reboot
    there, which would delete attachments that Nova has no mapping for; otherwise the server has to
    be locked.  `before`: the result of an earlier look; a server that differs from it is refused.
    """
    verdicts = [
        _judged(each, host, closed=closed) for each in host.servers if each.seen.id not in ours
    ]
    if before is not None:
        same = [each.seen.id for each in host.servers if each in before.servers]
        verdicts = [each if each.server_id in same else _refused(each, _MOVED) for each in verdicts]
    here = {each.seen.id for each in host.servers}
    moving = [
        AdoptionVerdict(server_id=id_, name="", refusals=(_BETWEEN.format(status=status),))
        for id_, status in host.moving.items()
        if id_ not in here
    ]
    return [*_together(verdicts, host, ours), *moving]


_MOVED = "Two looks differ: something is in progress."
_BETWEEN = (
    "It is on another host, and a migration from or to this one has not ended ({status}): wait for "
    "it, or confirm or revert its resize, while nova-compute still runs here."
)


def _refused(verdict: AdoptionVerdict, *why: str) -> AdoptionVerdict:
    return replace(verdict, refusals=(*verdict.refusals, *why), notes=(), taken=())


def groups(verdicts: Iterable[AdoptionVerdict]) -> list[list[AdoptionVerdict]]:
    """The servers that can be adopted; those that share a volume are one group."""
    found: list[list[AdoptionVerdict]] = []
    for verdict in (each for each in verdicts if not each.refusals):
        volumes = {each.volume_id for each in verdict.taken}
        with_it = [g for g in found if any(t.volume_id in volumes for v in g for t in v.taken)]
        found = [g for g in found if g not in with_it]
        found.append([verdict, *(each for group in with_it for each in group)])
    return found


# --- one server ---------------------------------------------------------------------------------


def _judged(server: ServerFacts, host: HostFacts, *, closed: bool) -> AdoptionVerdict:
    seen = server.seen
    refusals = [*_not_at_rest(server, host, closed=closed)]
    taken: tuple[AdoptedVolume, ...] = ()
    if seen.mappings is None:
        refusals.append("Nova did not tell its mappings.")
    else:
        refusals += _strange(server)
        taken, more = _taken(server, host.name)
        refusals += more
    return AdoptionVerdict(
        server_id=seen.id,
        name=seen.name or "",
        refusals=tuple(refusals),
        notes=() if refusals else tuple(_notes(server, taken)),
        taken=() if refusals else taken,
    )


def _not_at_rest(server: ServerFacts, host: HostFacts, *, closed: bool) -> Iterator[str]:
    seen = server.seen
    if seen.odd is not None:
        yield f"It has a volume that is called {seen.odd!r}: mend Nova's database."
    elif not seen.known:
        yield "Its cell does not answer Nova."
    if seen.task_state is not None:
        yield f"Nova is at it: {seen.task_state}."
    if seen.vm_state not in AT_REST:
        yield f"Its state is {seen.vm_state}, and none of {', '.join(sorted(AT_REST))}."
    if seen.id in host.moving:
        yield f"It has a migration that has not ended: {host.moving[seen.id]}."
    if not (closed or server.locked):
        yield (
            "Its owner could have Nova reboot it, which deletes attachments that Nova did not "
            "make: set observe.pass_on_to, or lock it (openstack server lock)."
        )


def _strange(server: ServerFacts) -> Iterator[str]:
    """Attachments that Cinder has for the server, and Nova has not."""
    assert server.seen.mappings is not None, "it was told"
    named = {each.attachment_id for each in server.seen.mappings}
    old = _old_volumes(server)
    for each in server.attachments:
        if each.id not in named and each.volume_id not in old:
            yield f"Cinder has attachment {each.id} of volume {each.volume_id}; Nova has none."
    devices = Counter(each.device for each in _mappings(server))
    for device, number in devices.items():
        if device is not None and number > 1:
            yield f"{number} volumes are called {device}."


def _old_volumes(server: ServerFacts) -> frozenset[str]:
    """Volumes that Nova lists for the server without a mapping: attached by Cinder's old calls."""
    assert server.seen.mappings is not None, "it was told"
    return frozenset(server.seen.volumes) - {each.volume_id for each in server.seen.mappings}


def _mappings(server: ServerFacts) -> Iterator[SeenMapping]:
    """Nova's mappings; for volumes of the old calls, what Cinder knows instead."""
    assert server.seen.mappings is not None, "it was told"
    yield from server.seen.mappings
    for volume_id in sorted(_old_volumes(server)):
        holders = server.volumes[volume_id].holders
        own = [each for each in holders if each.server_id == server.seen.id]
        yield SeenMapping(
            id="",
            volume_id=volume_id,
            attachment_id=own[0].attachment_id if len(own) == 1 else None,
            device=own[0].device if len(own) == 1 else None,
            delete_on_termination=volume_id in server.ending,
        )


def _taken(server: ServerFacts, host: str) -> tuple[tuple[AdoptedVolume, ...], list[str]]:
    """The server's volumes, and the reasons against them."""
    known = {each.id: each for each in server.attachments}
    taken, refusals = [], []
    for mapping in _mappings(server):
        facts = server.volumes[mapping.volume_id]
        why = list(_disagreeing(mapping, facts, known.get(mapping.attachment_id or ""), host))
        refusals += [f"Volume {mapping.volume_id}: {each}" for each in why]
        if why or not isinstance(facts.seen, SeenVolume):
            continue
        assert mapping.attachment_id is not None, "else it disagrees"
        assert mapping.device is not None, "else it disagrees"
        taken.append(
            AdoptedVolume(
                mapping_id=mapping.id or None,
                volume_id=mapping.volume_id,
                attachment_id=mapping.attachment_id,
                device=mapping.device,
                delete_on_termination=mapping.delete_on_termination,
                multiattach=facts.seen.multiattach,
                readonly=facts.readonly,
                boot_index=0 if mapping.device == server.seen.root_device else None,
            )
        )
    return tuple(taken), refusals


def _disagreeing(
    mapping: SeenMapping, facts: VolumeFacts, attachment: SeenAttachment | None, host: str
) -> Iterator[str]:
    """Why this volume cannot be adopted."""
    if attachment is None:
        yield f"Cinder has no attachment {mapping.attachment_id or 'of it'} of this server."
    elif (attachment.volume_id, attachment.status) != (mapping.volume_id, "attached"):
        yield (
            f"its attachment {attachment.id} is {attachment.status} in Cinder, of volume "
            f"{attachment.volume_id}."
        )
    volume = facts.seen
    if not isinstance(volume, SeenVolume):
        yield "Cinder has no such volume." if volume is None else "Cinder did not tell of it."
        return
    if volume.status != "in-use":
        yield f"it is {volume.status} in Cinder."
    if volume.migration_status not in NOT_MIGRATING:
        yield f"Cinder migrates it ({volume.migration_status})."
    if facts.encrypted and facts.provider not in LUKS:
        told = facts.provider if isinstance(facts.provider, str) else "Cinder does not tell by what"
        yield f"it is encrypted ({told}), and agents can decrypt 'luks' alone: retype it."
    own = [each for each in facts.holders if each.attachment_id == mapping.attachment_id]
    if any(each.host not in {None, host} for each in own):
        yield f"Cinder has it on host {own[0].host}."
    if mapping.device is None or not _DEVICE.fullmatch(mapping.device):
        yield f"its device is called {mapping.device}, which tells no bus that can be plugged."


def _notes(server: ServerFacts, taken: Iterable[AdoptedVolume]) -> Iterator[str]:
    if server.local_disks:
        yield "It has local disks, or a config drive: it is moved to no other host."
    if server.networks:
        yield "It has ports of Neutron, which stay bound to this host: it is moved to no other one."
    for each in taken:
        facts, called = server.volumes[each.volume_id], f"volume {each.volume_id}"
        if each.mapping_id is None:
            yield f"{called}: by Cinder's old calls; Nova names neither its mapping nor its tag."
        if each.device.startswith("sd"):
            yield f"{called}: is {each.device}; which bus that is no API tells, SCSI is assumed."
        if facts.encrypted:
            yield f"{called}: is encrypted; the agent needs its key manager."
        if all(h.host is None for h in facts.holders if h.attachment_id == each.attachment_id):
            yield f"{called}: Cinder does not tell its host."
        if each.boot_index is None:
            yield f"{called}: its boot index is in no API; it is taken to have none."


# --- shared volumes -----------------------------------------------------------------------------


def _together(
    verdicts: list[AdoptionVerdict], host: HostFacts, ours: AbstractSet[str]
) -> list[AdoptionVerdict]:
    """Refuse servers that share a volume with a refused server, until no such server is left."""
    facts = {each.seen.id: each for each in host.servers}
    while True:
        going = {each.server_id for each in verdicts if not each.refusals} | ours
        judged = [
            each if each.refusals else _with_others(each, facts[each.server_id], going)
            for each in verdicts
        ]
        if judged == verdicts:
            return judged
        verdicts = judged


def _with_others(
    verdict: AdoptionVerdict, server: ServerFacts, going: AbstractSet[str]
) -> AdoptionVerdict:
    refusals = [
        f"Volume {taken.volume_id}: server {holder.server_id} has it, too, and is not adopted."
        for taken in verdict.taken
        for holder in server.volumes[taken.volume_id].holders
        if holder.server_id not in going
    ]
    return _refused(verdict, *refusals) if refusals else verdict
