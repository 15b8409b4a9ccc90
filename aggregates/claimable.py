"""The claims of operations on a server, and the errors (faults) that the server shows.

The events are Instance's; this class keeps their state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar
from uuid import UUID

from aggregates import errors
from aggregates.base import Aggregate
from aggregates.server import ServerClaim, faults_after, in_the_way


class Claimable(Aggregate):
    """`faults`: messages by the operation that parked; RESET stands for os-resetState."""

    Claimed: ClassVar[Any]
    ClaimReleased: ClassVar[Any]
    ClaimResumed: ClassVar[Any]
    Faulted: ClassVar[Any]
    FaultCleared: ClassVar[Any]
    StateReset: ClassVar[Any]

    def __init__(self, id: UUID) -> None:  # noqa: A002
        super().__init__(id)
        self.claims: dict[str, ServerClaim] = {}
        self.faults: dict[str, str] = {}

    def _claimed(self, event: Any) -> None:
        match event:
            case self.Claimed():
                self.claims[event.claimant] = ServerClaim(event.exclusive, event.flow)
            case self.ClaimReleased():
                self.claims.pop(event.claimant, None)
            case self.ClaimResumed():
                self._set_parked(event.claimant, parked=False)
            case self.Faulted():
                self.faults[event.claimant] = event.message
                self._set_parked(event.claimant, parked=True)
            case self.FaultCleared():
                self.faults.pop(event.claimant, None)
            case self.StateReset():
                self.faults = faults_after(self.faults, event.state)

    def _set_parked(self, claimant: str, *, parked: bool) -> None:
        if claim := self.claims.get(claimant):
            self.claims[claimant] = replace(claim, parked=parked)

    def refuse_claimed(self, *, exclusive: bool, beside_parked: bool = False) -> None:
        """Raises ClaimedError.  `beside_parked`: ignore parked operations on a single volume."""
        self._refuse(in_the_way(self.claims, exclusive=exclusive, beside_parked=beside_parked))

    def refuse_parked(self) -> None:
        """Raises ClaimedError if a parked operation has changed the server halfway."""
        self._refuse(op for op, claim in self.claims.items() if claim.parked and claim.exclusive)

    def _refuse(self, claimants: Iterable[str]) -> None:
        for claimant in claimants:
            raise errors.ClaimedError(what="Instance", id=str(self.id), operation_id=claimant)

    def claim(
        self, operation_id: str, *, exclusive: bool, beside_parked: bool = False, **facts: Any
    ) -> None:
        self.refuse_claimed(exclusive=exclusive, beside_parked=beside_parked)
        self.record(self.Claimed, claimant=operation_id, exclusive=exclusive, **facts)

    def resume(self, operation_id: str) -> None:
        """A parked operation continues.  Raises ClaimedError if an exclusive one began since."""
        if operation_id not in self.claims or not self.claims[operation_id].parked:
            return
        exclusive = (op for op, claim in self.claims.items() if claim.exclusive)
        self._refuse(op for op in exclusive if op != operation_id)
        self.record(self.ClaimResumed, claimant=operation_id)

    def release(self, operation_id: str) -> None:
        """End the operation's claim and the fault it may have left."""
        if operation_id in self.faults:
            self.record(self.FaultCleared, claimant=operation_id)
        if operation_id in self.claims:
            self.record(self.ClaimReleased, claimant=operation_id)
