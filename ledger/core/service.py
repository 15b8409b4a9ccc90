"""Applies reports of hosts and acts of operators to operations, and does the ledger's own steps.

Everything here blocks, runs in worker threads, and is one transaction (ledger.log.unit).

`perform` is the only place where the service itself has effects outside the ledger.  It records
the result of an effect, never its absence: a crash leaves an intent without a result, for the next
dispatcher.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

import structlog

from aggregates import errors
from aggregates.attachment import Attachment
from aggregates.base import Aggregate, EventContext, Seen
from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.operation import ActiveRun, Operation, OperationState
from aggregates.remnant import Remnant
from aggregates.volume import Volume
from handlers.engine.engine import Wait, Work
from handlers.engine.plan import is_first, lane_of, plan_of, verb_of
from handlers.requests import deletion, inventory, operator
from handlers.requests.guards import check_lock_of
from handlers.results import handover, leftovers, observed, presence
from handlers.results.progress import Execution
from host_agent.shared.contract.changes import Changes
from host_agent.shared.contract.messages import (
    ErrorKind,
    Guest,
    Registration,
    Report,
    StepError,
    StepResult,
)
from host_agent.shared.contract.ports import Cinder
from ledger.core.effects import carry_out, undo_refused_result
from ledger.core.steps.context import EffectContext
from ledger.log.application import ConflictError
from ledger.log.unit import AggregateStore, Unit, acting, own_context, run_optimistically, within

#: Guests of one append, and their volumes, as they are shown and as they were; each leads to a few
#: events at most, and an append is bounded, too (ledger.log.writer).  A larger inventory is taken
#: in portions.
INVENTORY_AT_ONCE = 1_000

_log = structlog.get_logger(__name__)

#: Of a host's inventory: what it shows, and the ids of the servers whose guests it does not.
Inventory = Sequence[Guest | str]


@dataclass(frozen=True)
class RegistrationResult:
    """The result of a registration.  `again`: a flow is changing some of it, which has to be shown
    again.  `position`: of the log after it; 0 if it wrote nothing.  `unknown`: connections of a
    suspect host that the log does not know.
    """

    host: Host
    again: bool
    position: int = 0
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Acted:
    """What an operator's act leaves behind, and the position of its last event (0: a dry run)."""

    remnants: list[Remnant]
    position: int = 0


class Service:
    """What hosts, operators and dispatchers do (for requests: ledger.core.requests).

    `clock` gives the database's time (ledger.log.clock); `wait` sleeps.
    """

    def __init__(
        self,
        store: AggregateStore,
        cinder: Cinder,
        clock: Callable[[], float],
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._cinder = cinder
        self._clock = clock
        self._wait = wait

    # ---------------------------------------------------------------- hosts

    def register(
        self, name: str, registration: Registration, context: EventContext
    ) -> RegistrationResult:
        """Take an agent's registration: the agent itself, and every guest on its host.

        A guest that the host no longer shows is left to `lost_guest`, and what a suspect host has
        to release to `decide_leftovers`.
        """
        left: Inventory = registration.guests
        again = False
        while True:
            part = partial(self._registered, name, registration, left, context)
            left, more, host, position = run_optimistically(self._store, part)
            again |= more
            if not left:
                return RegistrationResult(host, again, position)

    def _registered(
        self, name: str, agent: Registration, left: Inventory, context: EventContext, unit: Unit
    ) -> tuple[Inventory, bool, Host, int]:
        """Take the agent, and as many of the remaining guests as fit into one append; returns the
        rest, whether some have to be shown again, and the host at the position after it.
        """
        host = unit.get(Host, name)
        now, later = _portion(host, _inventory(host, agent, left))
        again = _show(name, agent, now, unit)
        return later, again, host, unit.save(context)

    def decide_leftovers(
        self,
        name: str,
        registration: Registration,
        context: EventContext,
        known: RegistrationResult,
        evacuating: Iterable[str],
    ) -> RegistrationResult:
        """Decide what a suspect host has to release (handlers.results.leftovers).

        `known`: the result of its registration.  `evacuating`: the evacuations from it that are not
        over, read after that; none has begun since while its host is as it was (decision 0027).
        Raises StaleEpochError if it is not: the host has to register again.
        """

        def change(unit: Unit) -> RegistrationResult:
            host = unit.get(Host, name)
            if host.version != known.host.version:
                raise errors.StaleEpochError(host=name, given=known.host.epoch, current=host.epoch)
            decided = leftovers.take(host, registration, evacuating, unit)
            unknown = leftovers.unknown(registration, unit)
            position = unit.save(context)
            return RegistrationResult(host, known.again or not decided, position, unknown)

        return run_optimistically(self._store, change)

    def unchanged(
        self, asked: Sequence[tuple[str, Registration]]
    ) -> list[RegistrationResult | None]:
        """The results of registrations without news; all of them are read at once.

        None: this one has to be registered separately, and only it gets the error.
        """
        unit = Unit(self._store)
        wanted: list[tuple[type[Aggregate], str | UUID]] = []
        for name, registration in asked:
            guests = [(Instance, guest.server_id) for guest in registration.guests]
            wanted += [(Host, name), *guests]
        unit.read(wanted)
        return [_unchanged(name, registration, unit) for name, registration in asked]

    def host(self, name: str) -> Host:
        """The host as the log has it now."""
        return self._store.load(Host, Host.id_of(name))

    def epochs(self, names: Sequence[str]) -> dict[str, int | None]:
        """The epoch of each host; None: no agent of it has ever registered."""
        hosts: list[Host] = self._store.load_many(*((Host, Host.id_of(name)) for name in names))
        found = zip(names, hosts, strict=True)
        return {name: host.epoch if host.version else None for name, host in found}

    def changed(self, name: str, changes: Changes, context: EventContext) -> bool:
        """Take the changes of a host's guests; whether some have to be shown again.

        Raises StaleEpochError if the host has to register first.
        """
        left: Inventory = (*changes.guests, *changes.gone)
        again = False
        while True:
            part = partial(self._changed, name, changes.epoch, left, context)
            left, more = run_optimistically(self._store, part)
            again |= more
            if not left:
                return again

    def _changed(
        self, name: str, epoch: int, left: Inventory, context: EventContext, unit: Unit
    ) -> tuple[Inventory, bool]:
        """Take as many as fit into one append; returns the rest, and whether some have to be shown
        again.
        """
        host = unit.get(Host, name)
        host.check_epoch(epoch)
        if host.suspect or not host.version:
            raise errors.StaleEpochError(host=name, given=epoch, current=host.epoch)
        now, later = _portion(host, left)
        looked = [
            inventory.missed(name, each, unit)
            if isinstance(each, str)
            else inventory.seen(name, each, unit)
            for each in now
        ]
        unit.save(context)
        return later, not all(looked)

    def lost_guest(self, server_id: str, host: str, context: EventContext) -> int:
        """The host no longer shows this guest."""

        def change(unit: Unit) -> int:
            inventory.missed(host, server_id, unit)
            return unit.save(context)

        return run_optimistically(self._store, change)

    def report(self, name: str, report: Report, context: EventContext) -> tuple[bool, bool]:
        """Take the results of steps of a run; whether the run continues, and whether its guest was
        taken.

        Known results get the same answer as the first time.  A success that contradicts what the
        ledger knows becomes a failed step, for an operator to check: if it were refused, the host
        would report it for ever.  Raises StaleEpochError, StaleReportError.
        """
        try:
            return run_optimistically(
                self._store, lambda unit: self._report(unit, name, report, context)
            )
        except _ContradictedError as error:
            return self.report(name, _contradicted(report, *error.args), context)

    def _report(
        self, unit: Unit, name: str, report: Report, context: EventContext
    ) -> tuple[bool, bool]:
        operation, host = unit.get(Operation, report.operation_id), unit.get(Host, name)
        host.check_epoch(report.epoch)
        new = [r for r in report.results if not operation.is_known(report.run, name, r.step)]
        active = operation.is_active(report.run)
        if not new or (len(new) < len(report.results) and not active):
            return active, False
        run = operation.active_run(report.run, name, new[0].step)
        execution = Execution(operation, unit)
        for told in new:
            run = operation.active_run(report.run, name, told.step)
            result = execution.believed(run, told)
            if result.error is not None:
                execution.failed(run, result, self._clock(), further=report.further)
                continue
            try:
                execution.succeeded(run, result)
            except errors.IllegalTransitionError as refusal:
                raise _ContradictedError(result.step, refusal) from refusal
        execution.hold_up(run, new[-1].step, self._clock())
        deletion.advance(execution, self._clock())
        guest = None if host.suspect else report.guest
        shown = guest is not None and inventory.seen(name, guest, unit)
        unit.save(within(context, operation))
        return operation.is_active(report.run), shown

    def fence(self, name: str, reason: str, evidence: str, context: EventContext) -> int:
        """Raise the host's epoch; from now on nothing new begins there, and no earlier result is
        accepted.

        Then call `on_host_fenced` for everything begun before: all open operations that concern the
        host, by the log after this (decision 0022).
        """
        return self.change_host(name, lambda host: host.fence(reason, evidence), context)

    def on_host_fenced(
        self, operation_id: str, host: str, context: EventContext | None = None
    ) -> int:
        """Steps that a fenced host has not answered fail, or are done by the ledger."""

        def change(unit: Unit) -> int:
            operation = unit.get(Operation, operation_id)
            if handover.host_fenced(operation, host, self._clock(), unit):
                deletion.advance(Execution(operation, unit), self._clock())
            return unit.save(acting(context, operation) if context else own_context(operation))

        return run_optimistically(self._store, change)

    def change_host(self, name: str, act: Callable[[Host], None], context: EventContext) -> int:
        """Do an operator's act on a host; returns the position after it."""

        def change(unit: Unit) -> int:
            act(unit.get(Host, name))
            return unit.save(context)

        return run_optimistically(self._store, change)

    def record_deleted(
        self, rows: Iterable[Mapping[str, Any]], seen: Seen, context: EventContext
    ) -> tuple[list[bool | errors.DomainError], int]:
        """Record soft-deleted mappings of Nova's database: of each row whether it is new, or why it
        is refused; and the last position, 0 if none is new.
        """

        def recorded(row: Mapping[str, Any], unit: Unit) -> bool | errors.DomainError:
            try:
                return observed.record_deleted(row, seen, unit)
            except errors.NotNovasRowError as refused:
                return refused

        def change(unit: Unit) -> tuple[list[bool | errors.DomainError], int]:
            return [recorded(row, unit) for row in rows], unit.save(context)

        return run_optimistically(self._store, change)

    def others(self, host: str, volume_id: str, attachment_id: str) -> list[str]:
        """The servers that have a volume connected on a host by other attachments (S3).

        Read from the log itself: the agent asks while it holds its lock of the volume, and every
        report made under that lock is durable before the lock is released.
        """
        holders = self._store.load(Volume, UUID(volume_id)).holders
        others = {held: server for held, server in holders.items() if held != attachment_id}
        attachments = self._store.load_many(*((Attachment, UUID(held)) for held in others))
        found = {
            server_id
            for server_id, attachment in zip(others.values(), attachments, strict=True)
            if attachment.host == host and attachment.may_be_connected
        }
        return sorted(found)

    # ------------------------------------------------------------ operators

    def act(
        self,
        operation_id: str,
        act: str,
        reason: str,
        context: EventContext,
        *,
        lane: int = 0,
        step: str = "",
        dry_run: bool = False,
    ) -> Acted:
        """An operator's act on an operation: retry, skip, unwind or give_up.

        A dry run changes nothing, and returns what the act would return.  Raises OperatorActError
        with the reason if it is impossible now; HostUnvouchedError if one of its hosts is not
        vouched for after a restore.
        """

        def change(unit: Unit) -> Acted:
            operation = unit.get(Operation, operation_id)
            remnants: list[Remnant] = []
            check_lock_of(operation, act, context, unit)
            presence.refuse_in_doubt(plan_of(operation), unit)
            with operator.explained(unit):
                match act:
                    case "retry":
                        operator.retry(operation, reason, unit)
                    case "skip":
                        remnants = operator.skip_step(operation, lane, step, reason, unit)
                    case "unwind":
                        operator.unwind(operation, reason, unit)
                    case "give_up":
                        remnants = operator.give_up(operation, reason, unit)
                    case _:
                        why = "the acts are retry, skip, unwind, give_up"
                        raise errors.OperatorActError(operation_id=operation_id, act=act, why=why)
            if dry_run:
                return Acted(remnants)
            deletion.advance(Execution(operation, unit), self._clock())
            return Acted(remnants, unit.save(acting(context, operation)))

        return run_optimistically(self._store, change)

    def acknowledge(self, remnant_id: str, reason: str, context: EventContext) -> int:
        """An operator has handled a remnant.  Raises IllegalTransitionError if it is not open."""

        def change(unit: Unit) -> int:
            unit.get(Remnant, remnant_id).record(Remnant.RemnantAcknowledged, reason=reason)
            return unit.save(context)

        return run_optimistically(self._store, change)

    # ----------------------------------------------------------- dispatcher

    def on_dispatcher_lost(self, operation_id: str) -> int:
        """End the attempts of a dispatcher that never released its lease."""

        def change(unit: Unit) -> int:
            operation = unit.get(Operation, operation_id)
            handover.dispatcher_lost(operation, self._clock(), unit)
            return unit.save(own_context(operation))

        return run_optimistically(self._store, change)

    def carry_on(self, operation_id: str) -> int:
        """Do all that an operation needs from the ledger itself; returns the last position, 0: no
        events.
        """
        last = 0
        while True:
            decision, position = self._advance(operation_id)
            last = max(last, position)
            if isinstance(decision, Wait):
                return last

    def advance(self, operation_id: str) -> Wait | None:
        """One step of `carry_on`: None if something was done (call again), else the wait."""
        decision, position = self._advance(operation_id)
        return decision if isinstance(decision, Wait) and not position else None

    def _advance(self, operation_id: str) -> tuple[Work | Wait | None, int]:
        """Do the next thing.  Returns what to do after it, if known, and the position."""
        unit = Unit(self._store)
        operation = unit.get(Operation, operation_id)
        if operation.state is not OperationState.RUNNING:
            return Wait(None), 0
        version = operation.version
        decision = deletion.advance(Execution(operation, unit), self._clock())
        if operation.version > version:
            return self._save_or_leave(unit, operation, decision)
        if isinstance(decision, Work):
            return self.perform(operation, decision, unit)
        return decision, 0

    def perform(
        self, operation: Operation, work: Work, unit: Unit
    ) -> tuple[Work | Wait | None, int]:
        """Do one effect of the ledger's own, and record its result."""
        run = work.runs[0]
        step = operation.history.next_step(run)
        lane = lane_of(operation, run.lane, step).seeing(self._clock())
        effect = EffectContext(
            cinder=self._cinder,
            book=unit,
            wait=self._wait,
            first=is_first(operation, run),
            uncertain=handover.uncertain(operation, run, step),
            operation=operation,
            run=run.number,
        )
        verb = verb_of(operation, run, step)
        result = carry_out(step, verb, lane, effect)

        def record(fresh: Unit) -> tuple[Work | Wait | None, int] | None:
            return self._record(operation, run, step, result, fresh)

        try:
            recorded = run_optimistically(self._store, record)
        except errors.IllegalTransitionError as refusal:  # what was found is somebody's by now
            why = {"code": refusal.code, "message": str(refusal)}
            result = replace(result, outputs={}, error=StepError(kind=ErrorKind.RETRYABLE, **why))
            recorded = run_optimistically(self._store, record)
        if recorded is None:
            undo_refused_result(verb, lane, result, effect, self._store)
        return recorded or (Wait(None), 0)  # whoever was first goes on with it

    def _record(
        self, operation: Operation, run: ActiveRun, step: str, result: StepResult, unit: Unit
    ) -> tuple[Work | Wait | None, int] | None:
        """What is next, and the position; None: another process did the step first."""
        again = unit.get(Operation, operation.id)
        try:
            active = again.active_run(run.number, None, step)
        except errors.StaleReportError:
            return None
        execution = Execution(again, unit)
        if result.error is None:
            execution.succeeded(active, result)
        else:
            execution.failed(active, result, self._clock())
        decision = deletion.advance(execution, self._clock())
        return decision, unit.save(own_context(again))

    def _save_or_leave(
        self, unit: Unit, operation: Operation, decision: Work | Wait
    ) -> tuple[Work | Wait | None, int]:
        try:
            return decision, unit.save(own_context(operation))
        except ConflictError:
            return None, 0  # somebody decided the same, or better; the next call sees it


class _ContradictedError(Exception):
    """The reported success of a step contradicts the log (the step's name, and the refusal)."""


def _contradicted(report: Report, step: str, refusal: errors.IllegalTransitionError) -> Report:
    """The report with this step as failed; the steps reported after it may have been done."""
    _log.warning("report_contradicts", step=step, operation=report.operation_id)
    why = StepError(kind=ErrorKind.FINAL, code=refusal.code, message=str(refusal))
    at = [result.step for result in report.results].index(step)
    failed = replace(report.results[at], outputs={}, error=why)
    return replace(report, results=(*report.results[:at], failed), further=True)


def _inventory(host: Host, registration: Registration, left: Inventory) -> Inventory:
    """With the servers whose guest the host does not show, but of which it has shown something
    unexpected.
    """
    missed = host.shown.keys() - {guest.server_id for guest in registration.guests}
    return (*(each for each in left if not isinstance(each, str)), *missed)


def _portion(host: Host, what: Inventory) -> tuple[Inventory, Inventory]:
    """What certainly fits into one append, at least one guest; and the rest."""
    size = 0
    for at, each in enumerate(what):
        id_, volumes = (each, ()) if isinstance(each, str) else (each.server_id, each.volumes)
        size += 1 + len(volumes) + len(host.shown.get(id_, ()))
        if size > INVENTORY_AT_ONCE and at:
            return what[:at], what[at:]
    return what, ()


def _show(name: str, agent: Registration, shown: Inventory, unit: Unit) -> bool:
    """Take what an agent reports of itself and of these guests; whether some have to be shown
    again.
    """
    host, looked = unit.get(Host, name), True
    host.register(name, agent.service_version, agent.capabilities, agent.connector)
    for each in shown:
        if isinstance(each, str):
            inventory.keep_disks(name, each, set(), unit)
        else:
            looked = inventory.seen(name, each, unit) and looked
    return not looked


def _unchanged(name: str, registration: Registration, unit: Unit) -> RegistrationResult | None:
    with suppress(Exception):  # whatever it is, it comes again when this one is registered
        host = unit.get(Host, name)
        again = _show(name, registration, _inventory(host, registration, registration.guests), unit)
        guests = [unit.get(Instance, guest.server_id) for guest in registration.guests]
        news = host.suspect or any(each.unsaved for each in (host, *guests))
        return None if news else RegistrationResult(host, again)
    return None
