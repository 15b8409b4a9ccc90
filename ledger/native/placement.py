"""Which host a server goes to, if nobody said which: the one with the fewest guests.

No scheduler: it knows nothing of memory, zones or affinity.  Who needs more names the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from aggregates import errors
from ledger.agents.contact import is_alive
from ledger.http.call import Call
from ledger.native import accepting


class NoValidHostError(errors.DomainError, code="no_valid_host", status=400):
    """No valid host was found. There are not enough hosts available."""


#: What a host has to be to take a server: each in words, and as a row of hosts (with `alive`) says.
FIT: dict[str, Callable[[dict[str, Any]], bool]] = {
    "its agent is in contact": lambda host: host["alive"],
    "it is not fenced": lambda host: not host["fenced"],
    "it has no leftovers to release": lambda host: not host["suspect"],
    "an operator has vouched for it since a restore": lambda host: not host["unvouched"],
    "it is not disabled": lambda host: not host["disabled"],
}


def choose_host(
    hosts: Iterable[dict[str, Any]],
    *,
    without: str | None = None,
    migration: bool = False,
    sharing: bool = False,
) -> str:
    """Of `hosts` (with `alive` and `guests`), the one with the fewest guests that is FIT; of equals
    the first by name.

    `migration`: that can be migrated to; `sharing`: that can have multi-attach volumes (S3, the
    scheduler's filter that it leaves for later).  Raises NoValidHostError.
    """
    needed = {"migration"} if migration else set()
    needed |= {"multiattach"} if sharing else set()
    fit = [
        (host["guests"], host["host"])
        for host in hosts
        if host["host"] != without
        and all(is_so(host) for is_so in FIT.values())
        and all(host["capabilities"].get(capability) for capability in needed)
    ]
    if not fit:
        raise NoValidHostError
    return str(min(fit)[1])


async def destination(
    call: Call,
    wanted: str | None,
    *,
    without: str | None = None,
    migration: bool = False,
    sharing: bool = False,
) -> str:
    """The host that is wanted, or the best.  A request that is repeated gets the same."""
    if wanted is not None:
        return wanted
    before = await accepting.earlier(call)
    if before is not None:
        return str(before["destination"] or before["host"])
    rows = await call.components.queries.hosts()
    hosts = [{**row, "alive": is_alive(call.components, row["seen_at"])} for row in rows]
    return choose_host(hosts, without=without, migration=migration, sharing=sharing)
