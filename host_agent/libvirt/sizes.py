"""The sizes of the disks of all running guests, in one call.

libvirt asks each QEMU for its own disks.  It skips a guest that is busy with another call; a guest
whose QEMU does not answer blocks the caller.  A disk without an answer has an unknown size.
"""

from __future__ import annotations

from typing import Any

import libvirt

#: Only running guests: for others libvirt would open the files itself.
WHICH = (
    libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_ACTIVE
    | libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
)


def of_disks(connection: Any) -> dict[tuple[str, str], int]:
    """By server and target."""
    told = connection.getAllDomainStats(libvirt.VIR_DOMAIN_STATS_BLOCK, WHICH)
    return {
        (domain.UUIDString(), stats[f"block.{n}.name"]): int(stats[f"block.{n}.capacity"])
        for domain, stats in told
        for n in range(stats.get("block.count", 0))
        if f"block.{n}.capacity" in stats
    }
