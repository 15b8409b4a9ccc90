"""Who is asked for looks, and does not look: what it was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import uuid4

from aggregates.base import EventContext
from ledger.reconcile.asking import LookRequests


class AskedLooks(LookRequests):
    """`asked`: scope, why and who; `believed`: what, and why."""

    def __init__(self) -> None:
        super().__init__(dsn="")
        self.asked: list[tuple[dict[str, str], str, str]] = []
        self.believed: list[tuple[list[str], str | None]] = []
        self.id = str(uuid4())

    def ask(
        self,
        scope: Mapping[str, str],
        why: str,
        context: EventContext,
        *,
        believe: Sequence[str] = (),
        reason: str | None = None,
    ) -> str:
        self.asked.append((dict(scope), why, context.actor.name))
        self.believed.append((list(believe), reason))
        return self.id
