"""Repairs what has just been confirmed, as far as the settings let it (handlers.drift.automatic).

Whoever confirms a finding calls `confirmed` once that is stored.  What was begun in the last hour
is counted from the log, so that neither a restart nor a second process begins anew; and, because
projections are a moment late, by what this process has just begun itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from uuid import UUID, uuid4

import structlog

from aggregates import errors
from aggregates.base import Actor, EventContext
from aggregates.finding import Finding
from aggregates.instance import Instance
from handlers.drift.automatic import RepairPolicy, SoFar, why_not
from handlers.requests.repair import RepairDrift
from host_agent.shared.contract.ports import PortError
from ledger.core.requests import Fleet, Requests
from ledger.log.unit import AggregateStore

#: Who asks, in operations and in history.
ACTOR = Actor(name="automatic-repair", roles=("service",))
HOUR_S = 3600.0

_log = structlog.get_logger(__name__)


class Automatic:
    """`so_far`: what the log has of the last hour, of one host (None: of none in particular).

    Blocks; a look at everything and one at a part may call at once.
    """

    def __init__(
        self,
        store: AggregateStore,
        requests: Requests,
        fleet: Callable[[], Fleet],
        so_far: Callable[[str | None], SoFar],
        policy: RepairPolicy,
    ) -> None:
        self._store, self._requests, self._fleet = store, requests, fleet
        self._so_far, self._policy = so_far, policy
        self._one_at_a_time = threading.Lock()
        self._begun: list[tuple[float, str | None]] = []  # when, by the monotonic clock, and where

    def confirmed(self, finding_id: str) -> str | None:
        """The operation that is to mend the finding; None: it is left to people."""
        if not self._policy.classes:
            return None
        with self._one_at_a_time:
            return self._decide(finding_id)

    def _decide(self, finding_id: str) -> str | None:
        finding = self._store.load(Finding, UUID(finding_id))
        host = self._host_of(finding)
        why = why_not(finding, self._policy, self._known(host))
        try:
            if why is None:
                return self._begin(finding_id, host)
        except (errors.DomainError, PortError) as refusal:
            why = str(refusal)
        _log.info("repair_left_to_people", finding=finding_id, why=why)
        return None

    def _begin(self, finding_id: str, host: str | None) -> str:
        request = RepairDrift(
            finding_id=finding_id, reason="its class is repaired automatically", automatic=True
        )
        context = EventContext(actor=ACTOR, request_id=f"req-{uuid4()}", cause="automatic")
        done = self._requests.repair(request, context, self._fleet())
        self._begun.append((time.monotonic(), host))
        _log.info("repair_begun", finding=finding_id, operation=done.operation_id)
        return done.operation_id

    def _host_of(self, finding: Finding) -> str | None:
        """The host whose attachments it is one of."""
        about = finding.about()
        if about.host is not None or about.server_id is None:
            return about.host
        return self._store.load(Instance, UUID(about.server_id)).host

    def _known(self, host: str | None) -> SoFar:
        after = time.monotonic() - HOUR_S
        self._begun = [(at, where) for at, where in self._begun if at > after]
        log = self._so_far(host)
        return SoFar(
            begun=max(log.begun, len(self._begun)),
            begun_there=max(log.begun_there, sum(where == host for _, where in self._begun)),
            attachments_there=log.attachments_there,
        )
