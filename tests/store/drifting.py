"""Findings and looks for tests, recorded as looks and people record them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

from aggregates.base import About
from aggregates.finding import Finding, finding_uuid
from aggregates.look import Look
from handlers.drift import judge
from handlers.drift.classes import BY_NAME
from handlers.drift.judge import Sight
from handlers.drift.rows import AttachmentRow, CinderAttachment
from ledger.log.application import Ledger
from tests.world import CONTEXT

SERVER, OTHER_SERVER, VOLUME = (f"{n * 4}-0000-4000-8000-000000000000" for n in ("5e", "5f", "70"))
WHY_BELIEVED = "the disk of the host is lost"
LOST = BY_NAME["reservation_unknown"]


class Seen:
    """An attachment that the ledger does not know, as looks come to see it, and people act."""

    def __init__(self, ledger: Ledger, *, host: str | None = "h1", server: str = SERVER) -> None:
        self._ledger, self.attachment_id = ledger, str(uuid4())
        self.host, self.server, self.status = host, server, "reserved"
        key = ("attachment", self.attachment_id, None)
        self.id: UUID = finding_uuid(LOST.name, *key)

    def look(self, **sight: Any) -> int:
        """A look sees it."""
        about = About(
            server_id=self.server,
            volume_id=VOLUME,
            attachment_id=self.attachment_id,
            host=self.host,
        )
        row = AttachmentRow(
            id=self.attachment_id,
            about=about,
            server="live",
            ledger=None,
            cinder=CinderAttachment(status=self.status),
        )
        finding = self._ledger.load(Finding, self.id)
        judge.see(finding, LOST, row, _sight(sight))
        return self._ledger.save(finding, context=CONTEXT)

    def miss(self) -> int:
        finding = self._ledger.load(Finding, self.id)
        judge.miss(finding, _sight({}))
        return self._ledger.save(finding, context=CONTEXT)

    def record(self, kind: Any, **fields: Any) -> int:
        finding = self._ledger.load(Finding, self.id)
        finding.record(kind, **fields)
        return self._ledger.save(finding, context=CONTEXT)


def _sight(given: dict[str, Any]) -> Sight:
    return Sight(**{"look_id": str(uuid4()), "position": 1, **given})


def begin_look(ledger: Ledger, believe: Sequence[str] = (), **scope: str) -> Look:
    look = Look(uuid4())
    reason = WHY_BELIEVED if believe else None
    look.record(Look.LookBegun, scope=scope, why="asked", believe=[*believe], reason=reason)
    ledger.save(look, context=CONTEXT)
    return look


def end_look(ledger: Ledger, look: Look, outcome: str = "completed", **told: Any) -> int:
    look.record(Look.LookEnded, outcome=outcome, **told)
    return ledger.save(look, context=CONTEXT)
