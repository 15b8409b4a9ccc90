"""Requests to the compute endpoint, as Cinder 29 makes them: before a deletion, and for swaps.

Before a user's deletion of a connected attachment (LP 2004555) it sends `GET
/servers/{server}/os-volume_attachments/{volume}` at 2.89 with the user's token, and
compares `attachment_id`.  404 or another id allow the deletion; any other error answer
is passed on with its status, without its text; no answer, or one without the id, is a 500.

A migration of a volume in use asks for a swap of each attachment, at 2.1 and with a
token of Cinder's own.  So are servers told that their volume was extended, at 2.51, or has a new
image, at 2.93.
"""

from __future__ import annotations

from contextlib import suppress
from http import HTTPStatus
from typing import Any

import aiohttp

from ledger.trial.cinder.model.model import still_used
from ledger.trial.cinder.model.rows import CinderFault, StoredAttachment

TIMEOUT_S = 30.0
CINDER_TOKEN = "cinder:service"  # noqa: S105 - user and project, as noauth has it
SERVER_ERROR = 500
#: The texts that a user gets for an error status; other statuses become a 500.
_TEXTS = {
    400: "The server could not comply with the request since it is either malformed or "
    "otherwise incorrect.",
    401: "This server could not verify that you are authorized to access the document you "
    "requested. Either you supplied the wrong credentials (e.g., bad password), or your "
    "browser does not understand how to supply the credentials required.",
    403: "Access was denied to this resource.",
    409: "There was a conflict when trying to complete your request.",
    429: "The client has sent too many requests in a given amount of time",
    500: "The server has either erred or is incapable of performing the requested operation.",
    502: "Bad gateway.",
    503: "The server is currently unavailable. Please try again at a later time.",
    504: "The gateway has timed out.",
}


class ComputeCheck:
    """The compute endpoint (".../v2.1"); None counts as unreachable.

    `token` replaces the user's token, for an endpoint that would not accept it.
    """

    def __init__(self, endpoint: str | None = None, *, token: str | None = None) -> None:
        self.endpoint = endpoint
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, row: StoredAttachment, user_token: str) -> None:
        """Return if the deletion is allowed, else raise the CinderFault to answer."""
        url = _url(row.instance, row.volume_id)
        try:
            found = await self._send("GET", url, "2.89", self._token or user_token)
            attachment_id = found["volumeAttachment"]["attachment_id"]
        except _Refused as refused:
            if refused.status == HTTPStatus.NOT_FOUND:
                return
            raise _fault(refused.status) from None
        except (KeyError, TypeError):
            raise _fault(SERVER_ERROR) from None
        if attachment_id == row.id:
            raise still_used(row.instance)

    async def swap(self, server_id: str | None, old_id: str, new_id: str) -> None:
        """Raises CinderFault if the compute service does not accept it."""
        body = {"volumeAttachment": {"volumeId": new_id}}
        try:
            await self._send("PUT", _url(server_id, old_id), "2.1", CINDER_TOKEN, body)
        except _Refused as refused:
            raise _fault(refused.status) from None

    async def extended(self, server_ids: list[str], volume_id: str) -> None:
        await self._tell("volume-extended", "2.51", server_ids, volume_id)

    async def reimaged(self, server_ids: list[str], volume_id: str) -> None:
        await self._tell("volume-reimaged", "2.93", server_ids, volume_id)

    async def _tell(self, name: str, version: str, server_ids: list[str], volume_id: str) -> None:
        """What becomes of it Cinder does not ask (_send_events of its compute API)."""
        events = [
            {"name": name, "server_uuid": server_id, "tag": volume_id} for server_id in server_ids
        ]
        with suppress(_Refused):
            await self._send(
                "POST", "/os-server-external-events", version, CINDER_TOKEN, {"events": events}
            )

    async def _send(self, method: str, url: str, version: str, token: str, body: Any = None) -> Any:
        """The answer's JSON, None if it is empty."""
        if self.endpoint is None:
            raise _Refused(SERVER_ERROR)
        headers = {
            "X-Auth-Token": token,
            "OpenStack-API-Version": f"compute {version}",
            "X-OpenStack-Nova-API-Version": version,
            "Accept": "application/json",
        }
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
            self._session = aiohttp.ClientSession(timeout=timeout)
        try:
            async with self._session.request(
                method, self.endpoint + url, headers=headers, json=body
            ) as answer:
                if answer.status >= HTTPStatus.BAD_REQUEST:
                    raise _Refused(answer.status)
                return await answer.json() if await answer.read() else None
        except (TimeoutError, aiohttp.ClientError, ValueError):
            raise _Refused(SERVER_ERROR) from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


class _Refused(Exception):  # noqa: N818 - an answer, by its status
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def _fault(status: int) -> CinderFault:
    status = status if status in _TEXTS else SERVER_ERROR
    return CinderFault(status, _TEXTS[status])


def _url(server_id: str | None, volume_id: str) -> str:
    return f"/servers/{server_id}/os-volume_attachments/{volume_id}"
