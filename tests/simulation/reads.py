"""Reads that show what was so before, or half of a list, or all of it in another order.

Of Cinder (a replica that is behind, a proxy that cuts pages), and of a host's inventory.  Its draws
are its own: what happens else in a storm of a seed does not depend on them.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from host_agent.shared.fault_calls import LISTS, READS
from host_agent.shared.faults import Fault, FaultRule, Faults

if TYPE_CHECKING:
    from tests.simulation.cloud import Cloud

#: Of how many changes ago a read may be.
CHANGES = (1, 1, 2, 5, 20)


class StrangeReads(Faults):
    """In the calm all reads are as they should be."""

    def __init__(self, cloud: Cloud, seed: int) -> None:
        super().__init__()
        self._cloud, self._random = cloud, random.Random(f"reads {seed}")
        self._rate = self._random.choice([0.0, 0.0, 0.02, 0.1])
        cloud.cinder.remembers = self._rate > 0

    def take(self, call: str, /, **ids: str | None) -> Fault | None:
        del ids
        cloud = self._cloud
        if cloud.chance.calm or call not in READS or self._random.random() >= self._rate:
            return None
        do = self._random.choice(["stale", "cut", "reorder"] if call in LISTS else ["stale"])
        cloud.happened[f"{do} read"] += 1
        cloud.note(f"{call} is {do}")
        return FaultRule(call=call, do=do, changes=self._random.choice(CHANGES)).strike(call)
