"""What a fence covers, and for how long.

Rule: *a fence covers what was on its host before it, never what came there, or may have come,
afterwards.*  The operator who fences has checked the host at that moment.  The host's own agent
cannot change anything after that: its results are refused, and it gets no commands.  But another
host can.  The source does a live migration; its hypervisor talks to the destination's, and
hypervisors know no epochs.  The migration continues after the destination was fenced, and a guest
that has arrived by its end runs on a host that everybody believes to be idle.

So before the ledger does something in place of a fenced host (`verbs.VOUCHED`), or starts a guest
elsewhere because of a fence (`Flow.trusts`), all of this must be true:

* the fence stands now, not only when the operation was accepted;
* it is newer than the guest's arrival (`vouches`).  Each arrival is recorded with the host's epoch,
  which every fence raises.  A report counts from the moment when it is recorded, which is later
  than what it reports;
* nothing can bring the guest there any more.  Either a migration on its way is ended first (by its
  undo, whose result says where the guest is), or the fence is newer than the moment from which
  nothing could bring it (`renewed`).

Otherwise somebody has to check the host again, and fence it again with the new evidence.
"""

from __future__ import annotations

from aggregates.host import Host
from aggregates.instance import Instance


def vouches(host: Host, instance: Instance) -> bool:
    """Whether the host's fence proves that this server's guest does not run there."""
    return host.fenced and (instance.host != host.name or instance.epoch < host.epoch)


def renewed(host: Host, asked: tuple[str, int] | None) -> bool:
    """Whether the host was fenced after the first attempt to ask it (`asked`: its name,
    its epoch).
    """
    return host.fenced and asked is not None and asked[0] == host.name and asked[1] < host.epoch
