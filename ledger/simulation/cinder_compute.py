"""Asking the compute endpoint, as Cinder does before a user's deletion (LP 2004555).

Cinder 29 asks `GET /servers/{server}/os-volume_attachments/{volume}` at 2.89, with
the user's token, and compares `attachment_id`.  404 or another id allow the deletion;
an error answer is passed on with its status; no answer at all is a 500.
"""

from __future__ import annotations

from http import HTTPStatus

import aiohttp

from ledger.simulation.cinder_model import Attachment, CinderFault, still_used

TIMEOUT_S = 30.0
MICROVERSION = "2.89"
SERVER_ERROR_TEXT = (
    "The server has either erred or is incapable of performing the requested operation."
)


class ComputeCheck:
    """The compute endpoint (".../v2.1"), or none: then it counts as unreachable.

    `token` replaces the user's token, for an endpoint that would not know it.
    """

    def __init__(self, endpoint: str | None = None, *, token: str | None = None) -> None:
        self.endpoint = endpoint
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, row: Attachment, user_token: str) -> None:
        """Return if the deletion is allowed, else raise the CinderFault to answer."""
        status, attachment_id = await self._get(row, user_token)
        if status == HTTPStatus.NOT_FOUND:
            return
        if status >= HTTPStatus.BAD_REQUEST:
            raise CinderFault(status, f"The compute service answered HTTP {status}.")
        if attachment_id == row.id:
            raise still_used(row.instance)

    async def _get(self, row: Attachment, user_token: str) -> tuple[int, object]:
        if self.endpoint is None:
            raise CinderFault(500, SERVER_ERROR_TEXT)
        url = f"{self.endpoint}/servers/{row.instance}/os-volume_attachments/{row.volume_id}"
        headers = {
            "X-Auth-Token": self._token or user_token,
            "OpenStack-API-Version": f"compute {MICROVERSION}",
            "X-OpenStack-Nova-API-Version": MICROVERSION,
            "Accept": "application/json",
        }
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
            self._session = aiohttp.ClientSession(timeout=timeout)
        try:
            async with self._session.get(url, headers=headers) as answer:
                if answer.status >= HTTPStatus.BAD_REQUEST:
                    return answer.status, None
                found = await answer.json()
                return answer.status, found["volumeAttachment"].get("attachment_id")
        except (TimeoutError, aiohttp.ClientError, ValueError, KeyError, TypeError):
            raise CinderFault(500, SERVER_ERROR_TEXT) from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
