"""Requests to repair a finding: which flow, on which hosts, with which claims.

Only a confirmed finding is repaired.  The first steps of each flow look again
(handlers.drift.recheck).  This module checks that every party they read can answer: a host without
an agent in contact is a refusal.  An operation claims a deleted server like any other, because a
deletion itself continues after its server is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from aggregates import errors
from aggregates.base import About
from aggregates.finding import Finding, FindingState
from aggregates.mapping import MappingState
from aggregates.operation import Operation
from aggregates.volume import Volume
from handlers.drift.classes import BY_NAME
from handlers.drift.recheck import cannot
from handlers.drift.repairs import REPAIRS, Repair, RepairContext, repair_error
from handlers.engine.plan import Place
from handlers.requests.actions import RequestHosts
from handlers.requests.guards import Concerned, RequestOrigin, check_contact, start
from host_agent.shared.contract.messages import GuestOrder


@dataclass(frozen=True, kw_only=True)
class RepairDrift:
    """`repair`: which of the class's two repairs; None: chosen from what the ledger knows."""

    finding_id: str
    reason: str
    repair: str | None = None
    automatic: bool = False


def refuse(finding: Finding, finding_id: str) -> None:
    """Raises NoFindingError; RepairError if the finding cannot be repaired in its present state."""
    if finding.found is None:
        raise errors.NoFindingError(finding_id=finding_id)
    found, drift = finding.found, BY_NAME.get(finding.found.drift_class)
    names = ("server_id", "volume_id", "attachment_id", "host")
    about = About(**{name: getattr(found, name) for name in names})
    never = cannot(drift, found.key, finding.differs, about) if drift else None
    why = None
    if drift is None or drift.repair is None:
        why = f"nothing mends it by itself. {never or (drift.by_hand if drift else '')}".strip()
    elif finding.repairing is not None:
        why = f"operation {finding.repairing} is at it."
    elif finding.state is not FindingState.CONFIRMED:
        why = f"it is {finding.state}, and only what a second look has confirmed is repaired."
    elif never is not None:
        why = f"its repair cannot work. {never}"
    if why is not None:
        raise errors.RepairError(finding_id=finding_id, why=why)


def repair(
    request: RepairDrift, origin: RequestOrigin, case: RepairContext, hosts: RequestHosts
) -> Operation:
    """Accept it, or raise a DomainError."""
    finding = case.finding
    refuse(finding, request.finding_id)
    assert finding.found is not None, "refuse has seen to it"
    chosen = _chosen(request, case)
    flow = (chosen.variant(case) if chosen.variant else chosen.flow).name
    lanes = REPAIRS[flow].lanes(case, str(origin.bdm_id))
    names = {lane.host for lane in lanes} - {None}
    for name in sorted(filter(None, names)):
        _check_host(request, hosts, name)
    here = lanes[0].host
    evidence = {
        "id": request.finding_id,
        "drift_class": finding.found.drift_class,
        "differs": finding.differs,
        "reason": request.reason,
    }
    operation = start(
        flow,
        replace(origin, finding=evidence),
        case.instance,
        lanes,
        {Place.HOST: here},
        Concerned(known=_volumes(case), shown=lambda: (case.view,)),
        GuestOrder(server_id=case.server_id, running=False, force=True),
    )
    finding.record(
        Finding.RepairBegun,
        repair=chosen.flow.name,
        by_operation=str(operation.id),
        reason=request.reason,
        automatic=request.automatic,
    )
    return operation


def _volumes(case: RepairContext) -> list[Volume]:
    held = {volume.id: volume for _, volume in case.held}
    return list((held | ({case.volume.id: case.volume} if case.volume else {})).values())


def _chosen(request: RepairDrift, case: RepairContext) -> Repair:
    """The class's first repair, or its second: if requested, or if no guest must have the disk."""
    assert case.finding.found is not None, "refuse has seen to it"
    drift = BY_NAME[case.finding.found.drift_class]
    assert drift.repair is not None, "refuse has seen to it"
    may = [each for each in (drift.repair, drift.or_else) if each is not None]
    if request.repair is not None:
        if request.repair not in may:
            raise repair_error(case, f"its repairs are {', '.join(may)}, not {request.repair}.")
        return REPAIRS[request.repair]
    mapping = case.mapping
    out = mapping is None or mapping.state is MappingState.UNPLUGGED
    on_host = case.attachment is not None and case.attachment.host is not None
    return REPAIRS[drift.or_else if drift.or_else and out and on_host else drift.repair]


def _check_host(request: RepairDrift, hosts: RequestHosts, name: str) -> None:
    host = hosts.get(name)
    if not host.version:
        why = f"host {name} may have it, and no agent has ever registered for it: look there."
        raise errors.RepairError(finding_id=request.finding_id, why=why)
    check_contact(host, hosts.contact(name))
