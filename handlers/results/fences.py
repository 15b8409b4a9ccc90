"""What a fence vouches for, and for how long.

The rule: *a fence vouches for what was on its host before it, never for what came there, or
may have come, afterwards.*  Who fences has looked at the host then.  The host's own agent
cannot change that any more: its results are refused, and it gets no commands.  But another
host may: a live migration is done by its source, whose hypervisor talks to the destination's
and knows no epochs.  It goes on after the destination was fenced, and what has arrived there
by its end runs on a host of which everybody believes that nothing runs there.

So before the ledger does anything by a fence in place of a host (`verbs.VOUCHED`), or starts a
guest elsewhere (`Flow.trusts`), these must be so:

* the fence stands now, not only when the operation was accepted;
* it is newer than the guest's arrival (`vouches`): each arrival is recorded with the host's
  epoch, which every fence raises.  A report counts as of when it is recorded, which is later
  than what it tells of;
* where a guest may be on its way at this very moment, what brings it is ended first (a migration
  by its undo, whose answer says where the guest is), or the fence is newer than the moment
  from which nothing could bring it any more (`renewed`).

Where one of them is missing somebody has to look at the host again, and to fence it again with
what was seen.
"""

from __future__ import annotations

from aggregates.host import Host
from aggregates.instance import Instance


def vouches(host: Host, instance: Instance) -> bool:
    """Whether the host's fence says that this server's guest is not running there."""
    return host.fenced and (instance.host != host.name or instance.epoch < host.epoch)


def renewed(host: Host, asked: tuple[str, int] | None) -> bool:
    """Whether the fence is newer than a first attempt to ask this host (its name, its epoch)."""
    return host.fenced and asked is not None and asked[0] == host.name and asked[1] < host.epoch
