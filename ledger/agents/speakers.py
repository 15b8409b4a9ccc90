"""Which agent speaks for a host: only one.  A second one is refused while the first is there.

Two machines with one host name and one token, a clone and its original, would take each other's
commands, and each would show guests that the other does not have.  So with each call an agent says
which one it is (`AGENT_HEADER`): one boot of one machine and one directory of locks, where only one
agent can run.  A restarted agent is the same one.  Another agent is accepted when the former one
has not been in contact for `host_down_after_s`, or when its host was fenced since: then an operator
knows that the former one is gone.  If that one returns, it is refused.  If the fence was wrong and
the former agent continues, it mostly calls first, and the second one is refused.  Agents that do
not identify themselves are not told apart.

Theory of operation.  The database knows who speaks (`host_contact.agent`).  A process that has
accepted an agent checks again only after half of the time in which no other can be accepted; that
time begins anew with each contact, and each poll for commands reads it anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ledger.http.problem import ApiError
from projections.reads.queries import Queries


class Speakers:
    """Of one process.  `clock` is monotonic."""

    def __init__(
        self, queries: Queries, silent_after_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._queries = queries
        self._silent_after_s = silent_after_s
        self._clock = clock
        self._known: dict[str, tuple[str | None, float]] = {}

    async def let_in(self, host: str, agent: str | None) -> None:
        """Raises ApiError 409 if another agent speaks for the host."""
        now = self._clock()
        known = self._known.get(host)
        sure = known and known[0] == agent and now - known[1] < self._silent_after_s / 2
        if not (sure or await self._queries.claim_host(host, agent, self._silent_after_s)):
            self._known.pop(host, None)
            raise self.refusal(host)
        self._known[host] = (agent, now)

    async def free(self, host: str) -> None:
        """An operator states that the agent of this host is gone."""
        await self._queries.free_host(host)
        self._known.pop(host, None)

    def refusal(self, host: str) -> ApiError:
        """Another agent speaks for the host."""
        return ApiError(
            409,
            "host_taken",
            f"Another agent speaks for host {host}, and was in contact less than "
            f"{self._silent_after_s:g} s ago.",
            hint="Two machines have the same host name and token: give each its own. If the other "
            "agent is to be replaced, stop it: this one is accepted after that time without "
            "contact, or at once if an operator fences the host: `host fence --force`, then `host "
            "unfence`.",
        )
