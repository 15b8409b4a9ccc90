"""Asks other ledgers (cells) what they know of what somebody searches for, each by itself.

Each is asked as whoever searches, by the token that was shown here: what is found is what that cell
would show them.  So a cell of the settings is one that may see our users' tokens.  None is waited
for longer than ANSWER_S, and who gave no answer is named: "nothing was found" would not be true.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote

import aiohttp
from pydantic import ValidationError

from ledger.config import CellSettings
from ledger.http.call import Call
from ledger.native.log.schemas_find import FoundThing, FoundThings

#: How long a cell may take, all of it.
ANSWER_S = 3.0
#: Of its answer: ten of each kind are a tenth of that.
ANSWER_BYTES_MAX = 256 * 1024


@dataclass(frozen=True)
class CellAnswer:
    """What a cell answered; `silent`: why it did not."""

    cell: CellSettings
    found: tuple[FoundThing, ...] = ()
    silent: str | None = None

    def link(self, path: str, part: str, id_: str) -> str:
        """A page of that cell's console; its ids are its own word, and stay within the path."""
        return self.cell.url + path.format(**{part: quote(id_, safe="")})


async def asked(call: Call, text: str) -> list[CellAnswer]:
    """What each of the other cells says, in the order of the settings."""
    cells = call.components.settings.cells
    token = call.request.headers.get("X-Auth-Token")
    async with aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"X-Auth-Token": token} if token else None,
        timeout=aiohttp.ClientTimeout(total=ANSWER_S),
    ) as session:
        return await asyncio.gather(*(_asked(session, cell, text) for cell in cells))


async def _asked(session: aiohttp.ClientSession, cell: CellSettings, text: str) -> CellAnswer:
    url = f"{cell.url}/v1/find"
    try:
        # A redirect would take the token elsewhere.
        async with session.get(url, params={"text": text}, allow_redirects=False) as answer:
            if answer.status != HTTPStatus.OK:
                return CellAnswer(cell, silent=_refusal(answer.status))
            found = FoundThings.model_validate_json(await _read(answer)).found
    except TimeoutError:
        return CellAnswer(cell, silent=f"it has not answered in {ANSWER_S:g} s")
    except (aiohttp.ClientError, OSError):  # its text names addresses, which are not the caller's
        return CellAnswer(cell, silent="it cannot be reached")
    except ValidationError:
        return CellAnswer(cell, silent="its answer is not understood: is it a ledger?")
    return CellAnswer(cell, tuple(found))


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """Raises ClientPayloadError if it is too long."""
    body = b""
    async for part in answer.content.iter_any():
        body += part
        if len(body) > ANSWER_BYTES_MAX:
            raise aiohttp.ClientPayloadError("too long")
    return body


def _refusal(status: int) -> str:
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return f"it does not let you ask ({status})"
    return f"it answered {status}"
