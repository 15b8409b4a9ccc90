"""A hypervisor host: the capabilities of its agent, and its epoch.

Invariant: service and agent refuse results and commands of an older epoch.  Fencing, an operator's
act with reason and evidence, raises the epoch (decision 0027).  Contact times are not in the log.

After a restore from an older backup a host is *unvouched* until an operator has checked it, because
the log may be out of date about it.  It gets no work, and no earlier fence counts (decision 0109).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from uuid import NAMESPACE_DNS, UUID, uuid5

from aggregates import errors
from aggregates.base import About, Aggregate, Event

#: Whose ids are remembered; more than one ledger has.
HOSTS_MAX = 16_384


#: Between two runs of the program after a fence that failed: the first pause, and the longest.
HOOK_PAUSE_FIRST_S, HOOK_PAUSE_S = 5.0, 600.0


@lru_cache(HOSTS_MAX)
def host_uuid(name: str) -> UUID:
    """The aggregate id of a host name."""
    return uuid5(NAMESPACE_DNS, name)


class Host(Aggregate):
    """The aggregate's id is derived from the host's name."""

    @staticmethod
    def id_of(key: str) -> UUID:
        return host_uuid(key)

    class HostRegistered(Event):
        """An agent has registered, for the first time or with other capabilities.

        `connector`: the host's connector for storage; None: not reported.
        """

        name: str
        service_version: int
        capabilities: dict[str, Any]
        connector: dict[str, Any] | None = None

    class Fenced(Event):
        """An operator vouches that nothing on this host accesses volumes any more.

        `controller`: the user id of an HA controller that has powered the host off and says so.
        """

        epoch: int
        reason: str
        evidence: str
        controller: str | None = None

    class Unfenced(Event):
        """An operator lets the host work again, in the epoch that the fence began."""

        reason: str

    class HookRan(Event):
        """The site's program after the fence (`fencing.hook`) has ended, or was ended.

        `of_epoch`: the epoch that the fence began.  `code`: its exit code; None: it could not be
        run, or had not ended in time.
        `output`: the end of its output.  `next_at`: when it runs again, if it failed.
        """

        of_epoch: int
        code: int | None
        output: str
        next_at: float | None  # seconds since 1970, by the database's clock

    class Disabled(Event):
        """An operator has disabled the host: it gets no new servers; those on it stay."""

        reason: str | None

    class Enabled(Event):
        """The host may get new servers again."""

    class HostSeen(Event):
        """A Nova has servers on this host and attaches their volumes; the ledger observes it."""

        name: str

    class Adopted(Event):
        """The ledger takes over a host of a Nova (`came_from`).

        An agent may register; the host's servers are adopted one by one.  `epoch`: the epoch in
        which the host was handed back before.
        """

        name: str
        came_from: str
        reason: str
        epoch: int = 0

    class HandedBack(Event):
        """Nova manages the host again; the ledger observes it.

        All state of the host as the ledger's own has ended, except its epoch.
        """

        to: str
        reason: str

    class Deleted(Event):
        """An operator has forgotten the host: the machine is gone for good.

        It stays fenced.  `epoch`: a new one, so that the fence covers all that it has shown before.
        """

        epoch: int
        reason: str

    class LeftoversFound(Event):
        """The host has returned after a fence, and has leftovers to release."""

        guests: list[str]
        attachments: list[str]

    class LeftoversCleared(Event):
        """The host has released its leftovers."""

    class Restored(Event):
        """The ledger was restored from a backup whose log ends at `position`.

        Later events are lost, so the host may have more than the log says.  Commands and reports
        of an older epoch than `epoch` are refused.
        """

        epoch: int
        position: int
        reason: str

    class Vouched(Event):
        """An operator has checked the host after a restore: the log counts for it again."""

        reason: str

    class DisksSeen(Event):
        """The volumes that the host shows in a guest and that its server must not have there."""

        server_id: str
        volumes: list[str]

    def __init__(self, id: UUID) -> None:  # noqa: A002
        super().__init__(id)
        self.name = ""
        self.epoch = 0
        self.restored = 0  # the epoch that the last Restored began
        self.origin: str | None = None  # whose it is; None: ours to work on
        self.came_from: str | None = None  # whose it was, if it is adopted
        self._forget()

    def _forget(self) -> None:
        """Drop all state that it has as the ledger's host, except the epoch."""
        self.service_version = 0
        self.capabilities: dict[str, Any] = {}
        self.connector: dict[str, Any] | None = None
        self.fenced = False
        self.fenced_from = 0  # the epoch of the first fence that nothing has ended since; 0: none
        self.fence_reason = ""
        self.controller: str | None = None  # that has fenced it; None: an operator has
        self.hooked = False  # the program after this fence has ended well
        self.hook_failures = 0  # of it, since this fence
        self.hook_next_at = 0.0  # when it is run again
        self.disabled = False
        self.disabled_reason: str | None = None
        self.deleted = False  # and has not registered since
        self.awaits_agent = False  # adopted, and no agent has come since
        self.suspect = False  # fenced, and has not shown since that it holds nothing of others
        self.unvouched = False  # the log may lack what became of it; see Restored
        self.leftovers: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self.shown: dict[str, frozenset[str]] = {}  # by server: the volumes of DisksSeen

    def about(self) -> About:
        return About(host=self.name)

    def apply(self, event: Any) -> None:
        match event:
            case self.HostRegistered():
                self.name = event.name
                self.service_version = event.service_version
                self.capabilities, self.connector = event.capabilities, event.connector
                self.awaits_agent = self.deleted = False
            case self.HostSeen():
                self.name, self.origin, self.deleted = event.name, event.origin, False
            case self.Adopted():
                self.origin, self.came_from = None, event.came_from
                self.awaits_agent = True
            case self.HandedBack():
                self._forget()
                self.origin, self.came_from = event.to, None
            case self.Deleted():  # the operator vouches for what the program after a fence does
                self.epoch, self.deleted, self.hooked = event.epoch, True, True
            case self.Fenced():
                self.fenced_from = self.fenced_from or event.epoch
                self.epoch, self.fenced, self.suspect = event.epoch, True, not self.unvouched
                self.fence_reason = f"{event.reason} ({event.evidence})"
                self.controller = event.controller
                self.hooked, self.hook_failures, self.hook_next_at = False, 0, 0.0
            case self.Unfenced():
                self.fenced, self.fenced_from = False, 0
            case self.Disabled():
                self.disabled, self.disabled_reason = True, event.reason
            case self.Enabled():
                self.disabled, self.disabled_reason = False, None
            case _:
                self._showed(event)

    def _showed(self, event: Any) -> None:
        match event:
            case self.LeftoversFound():
                self.leftovers = (tuple(event.guests), tuple(event.attachments))
            case self.LeftoversCleared():
                self.suspect, self.leftovers = False, ((), ())
            case self.Restored():
                self.epoch = self.restored = event.epoch
                self.fenced = self.suspect = False
                self.fenced_from = 0
                self.unvouched, self.leftovers, self.deleted = True, ((), ()), False
            case self.Vouched():
                self.unvouched = False
            case self.HookRan() if event.of_epoch == self.epoch:
                self.hooked = event.next_at is None
                self.hook_failures += event.next_at is not None
                self.hook_next_at = event.next_at or 0.0
            case self.DisksSeen():
                self.shown[event.server_id] = frozenset(event.volumes)
                if not event.volumes:
                    del self.shown[event.server_id]

    def register(
        self,
        name: str,
        service_version: int,
        capabilities: dict[str, Any],
        connector: dict[str, str] | None = None,
    ) -> None:
        """Take what the agent reports of itself; no news records nothing.  A host that was deleted
        is known again, with the fence that it had.
        """
        facts = {"name": name, "service_version": service_version, "capabilities": capabilities}
        facts["connector"] = connector
        new = self.awaits_agent or self.deleted
        if new or any(getattr(self, name) != now for name, now in facts.items()):
            self.record(self.HostRegistered, **facts)

    @property
    def is_known(self) -> bool:
        """Whether it is a host of the ledger's, or one that it observes."""
        return self.version > 0 and not self.deleted

    def refuse_observed(self) -> None:
        """Raises ObservedHostError if the host is only observed."""
        if self.origin is not None:
            raise errors.ObservedHostError(host=self.name, origin=self.origin.capitalize())

    def record(self, kind: type[Event], **fields: Any) -> None:
        """On an observed host only seen events can be recorded; of a deleted one, only that it is
        known again, or what was begun before.
        """
        if self.deleted and kind not in {
            self.HostRegistered,
            self.HostSeen,
            self.Restored,
            self.HookRan,
        }:
            raise errors.UnknownHostError(host=self.name)
        if fields.get("seen") is None and kind is not self.Adopted:
            self.refuse_observed()
        super().record(kind, **fields)

    def adopt(self, reason: str) -> None:
        """Take over the host from its Nova; one that the ledger has already stays so.

        Raises NotObservedHostError if no Nova ever had it.
        """
        if self.origin is not None:
            what = {"name": self.name, "came_from": self.origin, "epoch": self.epoch}
            self.record(self.Adopted, **what, reason=reason)
        elif self.came_from is None:
            raise errors.NotObservedHostError(host=self.name)

    def check_returnable(self) -> None:
        """Raises NotAdoptedHostError; HostUnaccountedError if the host may still hold something of
        servers elsewhere.  That keeps these from a start, and would be forgotten.
        """
        if self.came_from is None:
            raise errors.NotAdoptedHostError(host=self.name)
        if self.fenced or self.suspect or self.unvouched:
            raise errors.HostUnaccountedError(host=self.name)

    def hand_back(self, reason: str) -> None:
        """Give the host back to its Nova.  Raises the errors of `check_returnable`; also
        HostUnaccountedError while it shows a disk: nobody could take that sign back.
        """
        self.check_returnable()
        if self.shown:
            raise errors.HostUnaccountedError(host=self.name)
        self.record(self.HandedBack, to=self.came_from, reason=reason)

    def delete(self, reason: str) -> None:
        """Forget the host.  Raises HostInUseError unless it is fenced."""
        if not self.fenced:
            why = "it is not fenced. Fence it first, with the evidence that it is gone."
            raise errors.HostInUseError(host=self.name, why=why)
        self.record(self.Deleted, epoch=self.epoch + 1, reason=reason)

    def check_epoch(self, epoch: int) -> None:
        """Raises StaleEpochError for any epoch but the present one."""
        if epoch != self.epoch:
            raise errors.StaleEpochError(host=self.name, given=epoch, current=self.epoch)

    def fence(self, reason: str, evidence: str) -> None:
        """Fencing a fenced host again adds evidence and raises the epoch again."""
        self.record(self.Fenced, epoch=self.epoch + 1, reason=reason, evidence=evidence)

    def force_down(self, controller: str, reason: str, evidence: str) -> None:
        """An HA controller's fence.  On a host that an operator has fenced it records nothing."""
        if not self.fenced or self.said_off:
            what = {"reason": reason, "evidence": evidence, "controller": controller}
            self.record(self.Fenced, epoch=self.epoch + 1, **what)

    def force_up(self, reason: str) -> None:
        """End a controller's fence.  Raises OperatorsFenceError if an operator has
        fenced the host.
        """
        if self.fenced and not self.said_off:
            raise errors.OperatorsFenceError(host=self.name)
        self.unfence(reason)

    @property
    def said_off(self) -> bool:
        """Whether it is fenced as powered off: then nothing from before runs there."""
        return self.fenced and self.controller is not None

    def report_leftovers(
        self, guests: list[str], attachments: list[str], *, all_decided: bool
    ) -> None:
        """Record what it must release; it gets no commands until the list is empty (decision 0027).

        While the host is fenced, its servers may still be evacuated: what belongs to it now may not
        when it returns, so it stays suspect.  It also stays suspect until it is decided for
        everything that it holds whether that belongs to it.
        """
        if not guests and not attachments and all_decided and not self.fenced:
            if self.suspect:
                self.record(self.LeftoversCleared)
        elif (tuple(guests), tuple(attachments)) != self.leftovers:
            self.record(self.LeftoversFound, guests=guests, attachments=attachments)

    def see_disks(self, server_id: str, volumes: frozenset[str]) -> None:
        """Record the volumes in this guest that must not be there; the same volumes
        record nothing.
        """
        if volumes != self.shown.get(server_id, frozenset()):
            self.record(self.DisksSeen, server_id=server_id, volumes=sorted(volumes))

    def unfence(self, reason: str) -> None:
        """End the fence; on a host that is not fenced this records nothing."""
        if self.fenced:
            self.record(self.Unfenced, reason=reason)

    def restore(self, epoch: int, position: int, reason: str) -> None:
        """The ledger was restored from a backup that ended at this position.  `epoch`: higher than
        all epochs of the lost part.
        """
        epoch = max(epoch, self.epoch + 1)
        self.record(self.Restored, epoch=epoch, position=position, reason=reason)

    def awaits_hook(self, now: float) -> bool:
        """Whether the program after this fence has to run now; the clock may have been set back."""
        return self.fenced and not self.hooked and not 0 < self.hook_next_at - now <= HOOK_PAUSE_S

    def check_hooked(self) -> None:
        """Raises HookAwaitedError unless the program after this fence has succeeded."""
        if not self.hooked:
            raise errors.HookAwaitedError(host=self.name, failures=self.hook_failures)

    def ran_hook(self, epoch: int, code: int | None, output: str, now: float) -> None:
        """Record how the program after the fence of this epoch ended.  Code 0 is success; otherwise
        it runs again after a pause, which grows.
        """
        pause_s = min(HOOK_PAUSE_S, HOOK_PAUSE_FIRST_S * 2 ** min(self.hook_failures, 10))
        next_at = None if code == 0 else now + pause_s
        self.record(self.HookRan, of_epoch=epoch, code=code, output=output, next_at=next_at)

    def vouch(self, reason: str) -> None:
        """Vouch for the host after a restore; without a doubt about it this records nothing."""
        if self.unvouched:
            self.record(self.Vouched, reason=reason)

    @property
    def in_doubt(self) -> bool:
        """Whether nobody knows what the host has: the log does not, and it was not fenced since."""
        return self.unvouched and not self.fenced

    def disable(self, reason: str | None) -> None:
        """The host gets no new servers from now on; the same reason again records nothing."""
        if not self.disabled or reason != self.disabled_reason:
            self.record(self.Disabled, reason=reason)

    def enable(self) -> None:
        """Enabling a host that is not disabled records nothing."""
        if self.disabled:
            self.record(self.Enabled)

    @property
    def why_disabled(self) -> str:
        return f"it is disabled ({self.disabled_reason or 'no reason given'})"
