"""Serves thousands of agents with few queries: simultaneous questions are asked together.

Polls that look at the same moment are one query; registrations that arrive at the same moment are
one read of the log; contacts are written once a second.  So a storm, in which all agents return at
once, costs as much as its batches, and an agent that only waits costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any

import structlog
from aiohttp import web

from aggregates.base import EventContext
from host_agent.shared.contract.messages import Registration
from ledger.agents.contacts import Contacts
from ledger.agents.speakers import Speakers
from ledger.core.service import RegistrationResult
from ledger.http.call import projected
from ledger.http.components import Components
from ledger.http.limits.batching import Batched
from ledger.http.problem import ApiError
from projections.base import Row

COMMANDS_MAX = 100  # of one answer
LOOKS_MAX = 500
#: Hosts and guests whose registrations are read together; a longer inventory goes alone.
REGISTERED_MAX = 1_000

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class PendingRegistration:
    """A registration that waits for its turn.  `told`: the epoch and the position of the log that
    its agent was told last, if it says so.
    """

    host: str
    registration: Registration
    context: EventContext
    told: tuple[int, int] | None = None


class AgentBatcher:
    """`in_thread` runs blocking calls; `connected`: the number of agents whose polls
    are held now.
    """

    def __init__(self, components: Components, in_thread: Callable[..., Awaitable[Any]]) -> None:
        self._components = components
        self._in_thread = in_thread
        self._looks = Batched(self._look, LOOKS_MAX)
        self._registrations = Batched(
            self._register, REGISTERED_MAX, lambda asked: 1 + len(asked.registration.guests)
        )
        clock = components.clock
        self._contacts = Contacts(components.inner.touch_hosts, sets=lambda: clock.set_count)
        self.speakers = Speakers(components.inner, components.settings.host_down_after_s)
        self.connected = 0

    async def open(self, _: web.Application) -> AsyncIterator[None]:
        """Write contacts for as long as the application serves, and once more at its end."""
        writing = asyncio.create_task(self._contacts.run(), name="contacts")
        yield
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing

    def heard(self, host: str, clock_ahead_s: float | None = None) -> None:
        """The host's agent is in contact now; what it reports of its clock."""
        self._contacts.heard(host, clock_ahead_s)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Count one more connected agent."""
        self.connected += 1
        try:
            yield
        finally:
            self.connected -= 1

    async def look(self, host: str, after: int) -> Row:
        """The commands for the host's agent after its cursor (Queries.mailboxes)."""
        return await self._looks.ask((host, after))

    async def register(
        self,
        host: str,
        registration: Registration,
        context: EventContext,
        told: tuple[int, int] | None = None,
    ) -> RegistrationResult:
        """Take a registration; returns when all of it can be read, the contact too."""
        asked = PendingRegistration(host, registration, context, told)
        return await self._registrations.ask(asked)

    async def _look(self, wanted: Sequence[tuple[str, int]]) -> Sequence[Row]:
        return await self._components.inner.mailboxes(wanted, COMMANDS_MAX)

    async def _register(
        self, batch: Sequence[PendingRegistration]
    ) -> Sequence[RegistrationResult | Exception]:
        service, queries = self._components.service, self._components.inner
        refused = await self._not_its_own(batch) | await self._further_than_we(batch)
        known = await self._in_thread(
            service.unchanged, [(one.host, one.registration) for one in batch]
        )
        known = [refused.get(one.host, result) for one, result in zip(batch, known, strict=True)]
        await self._contacts.written()  # before the host can be read
        shown = await asyncio.gather(*map(self._registered, batch, known), return_exceptions=True)
        # Only with everything known is a guest that was not shown surely one that is gone.
        head = (await queries.head())["position"]
        await projected(self._components, head)
        guests = await queries.guests_of_hosts([one.host for one in batch])
        each = ((one, taken, guests[one.host]) for one, taken in zip(batch, shown, strict=True))
        lost = await asyncio.gather(*starmap(self._lost, each), return_exceptions=True)
        await projected(
            self._components, max((at for at in lost if isinstance(at, int)), default=0)
        )
        return [_answer(*each, head) for each in zip(shown, lost, strict=True)]

    async def _not_its_own(self, batch: Sequence[PendingRegistration]) -> dict[str, ApiError]:
        """The errors, by host, of registrations whose connector the storage could not distinguish
        from another host's.
        """
        connectors = {one.host: one.registration.connector or {} for one in batch}
        initiators, nqns = (
            [each.get(k) for each in connectors.values()] for k in ("initiator", "nqn")
        )
        if not any(initiators + nqns):
            return {}
        rows = await self._components.inner.connectors_in_use(
            hosts=list(connectors), initiators=initiators, nqns=nqns
        )
        return {row["host"]: _same_connector(row, connectors[row["host"]]) for row in rows}

    async def _further_than_we(self, batch: Sequence[PendingRegistration]) -> dict[str, ApiError]:
        """The errors, by host, of agents that were told something that this log does not have.

        The log itself is read, because projections may be late.  A host that the log does not know
        has nothing to lose.
        """
        told = {one.host: one.told for one in batch if one.told is not None}
        if not told:
            return {}
        head = (await self._components.inner.head())["position"]
        epochs = await self._in_thread(self._components.service.epochs, list(told))
        return {
            host: _log_restored(host, told[host], head)
            for host, epoch in epochs.items()
            if epoch is not None and told[host] > (epoch, head)
        }

    async def _registered(
        self, asked: PendingRegistration, known: RegistrationResult | ApiError | None
    ) -> RegistrationResult:
        if isinstance(known, ApiError):
            raise known
        if known is not None:
            return known
        service, told = self._components.service, (asked.host, asked.registration, asked.context)
        shown: RegistrationResult = await self._in_thread(service.register, *told)
        if not shown.host.suspect:
            return shown
        # On the loop: no thread is held while the projections are late.
        await projected(self._components, (await self._components.inner.head())["position"])
        evacuating = await self._components.inner.evacuating(asked.host)
        decided: RegistrationResult = await self._in_thread(
            service.decide_leftovers, *told, shown, evacuating
        )
        return decided

    async def _lost(
        self,
        asked: PendingRegistration,
        taken: RegistrationResult | BaseException,
        guests: set[str],
    ) -> int:
        """Record the guests that the host no longer shows; returns the last position written.

        A refused registration does not say that any guest is gone.
        """
        position = 0
        if not isinstance(taken, RegistrationResult):
            return position
        for server_id in sorted(
            guests.difference(guest.server_id for guest in asked.registration.guests)
        ):
            told = (server_id, asked.host, asked.context)
            lost = await self._in_thread(self._components.service.lost_guest, *told)
            position = max(position, lost)
        return position


def _same_connector(row: Row, connector: dict[str, str]) -> ApiError:
    names = {"initiator": "iSCSI initiator name", "nqn": "NVMe host NQN"}
    alike = next(
        name for name in names if name in connector and connector[name] == row["theirs"].get(name)
    )
    return ApiError(
        409,
        "connector_taken",
        f"Host {row['host']} has the {names[alike]} of host {row['other']} ({connector[alike]}): "
        "storage cannot tell them apart, and would give either the other's volumes.",
        hint="Was one made as a copy of the other? Give it a name of its own "
        "(/etc/iscsi/initiatorname.iscsi, /etc/nvme/hostnqn) and start its agent again. "
        f"If host {row['other']} is no more, fence it.",
    )


def _log_restored(host: str, told: tuple[int, int], head: int) -> ApiError:
    _log.error("log_restored", host=host, told=told, position=head)
    return ApiError(
        409,
        "log_restored",
        f"This ledger has told host {host} of epoch {told[0]} and position {told[1]}, and does not "
        f"know of them: its log ends at {head}. It was restored from an older backup.",
        hint="Stop the service and run 'attachment-ledger db restored': until then it may undo "
        "what was done after that backup.",
    )


def _answer(
    shown: RegistrationResult | BaseException, lost: int | BaseException, position: int
) -> RegistrationResult | Exception:
    for failed in (shown, lost):
        if isinstance(failed, Exception):
            return failed
    assert isinstance(shown, RegistrationResult), "gather is not cancelled by what it gathers"
    return replace(shown, position=position)


AGENT_BATCHER: web.AppKey[AgentBatcher] = web.AppKey("agent_batcher", AgentBatcher)
