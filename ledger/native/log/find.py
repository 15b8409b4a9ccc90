"""/v1/find: what is meant by the beginning of an id, or by a name; and what a request led to.

Resolved here and not by clients, for only here all ids are known: a list is a page, and what is
unique on a page may not be so.  A range of an id's index is read, however many things there are.
"""

from __future__ import annotations

import re
from uuid import UUID

from aiohttp import web

from ledger.http.call import Call, answer
from ledger.native.log.refusals import REFUSALS
from ledger.native.log.schemas_find import FindQuery, FoundThing, FoundThings

_HEX = 32
#: Fewer than four characters say too little, and are often a word.
_PREFIX = re.compile(r"[0-9a-f-]{4,36}\Z")
#: The same of a request's, which its clients may write in capitals; and what sorts after all of it.
_REQUEST = re.compile(r"req-[0-9A-Fa-f-]{4,36}\Z")
_LAST = "~"


async def find(call: Call) -> web.StreamResponse:
    """GET /v1/find: things that exist for the caller."""
    text, scope = call.query(FindQuery).text, call.identity.project_scope
    queries = call.components.queries
    if _REQUEST.match(text):
        await call.request.app[REFUSALS].flush()
        rows = await queries.requested(text, text + _LAST, call.identity.actor, project_id=scope)
    else:
        low, high = bounds(text)
        rows = await queries.named(text, low, high, project_id=scope)
    return answer(FoundThings(found=[FoundThing.model_validate(row) for row in rows]))


def bounds(text: str) -> tuple[str | None, str | None]:
    """The first and the last id that begin with this; None, None: an id cannot."""
    prefix = text.lower()
    digits = prefix.replace("-", "")
    if not _PREFIX.match(prefix) or len(digits) > _HEX:
        return None, None
    low, high = (str(UUID(digits.ljust(_HEX, filler))) for filler in "0f")
    return (low, high) if low.startswith(prefix) else (None, None)
