"""One request to the simulated Cinder, as its handlers get it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from ledger.trial.cinder import views
from ledger.trial.cinder.compute import ComputeCheck
from ledger.trial.cinder.model.model import CinderModel
from ledger.trial.cinder.model.rows import CinderFault

NO_SUCH_ACTION = (
    "There is no such action: {}. Verify the request body and Content-Type header and try again."
)
SERVICE_ROLE = "service"


@dataclass(frozen=True, kw_only=True)
class CinderCall:
    """One request: the caller, the microversion, and the JSON body."""

    model: CinderModel
    compute: ComputeCheck
    request: web.Request
    version: views.Microversion
    user: str
    project: str
    body: dict[str, Any]
    later: Callable[[Coroutine[Any, Any, None]], None]  # runs it after the answer

    @property
    def volume_id(self) -> str:
        return self.request.match_info["volume_id"]

    @property
    def attachment_id(self) -> str:
        return self.request.match_info["attachment_id"]

    @property
    def is_service(self) -> bool:
        roles = self.request.headers.get("X-Service-Roles", "")
        return SERVICE_ROLE in [role.strip() for role in roles.split(",")]

    @property
    def is_admin(self) -> bool:
        """Lists of all projects are for administrators; others get their own, without an error."""
        return self.user not in self.model.without_admin_role

    def part(self, name: str) -> dict[str, Any]:
        """The object under `name` in the body; 400 if it is missing or no object."""
        if name not in self.body:
            raise CinderFault(400, f"{name!r} is a required property")
        part = self.body[name]
        if not isinstance(part, dict):
            raise wrong(name, part, f"{part!r} is not of type 'object'")
        return part

    def need(self, version: views.Microversion) -> None:
        if self.version < version:
            raise CinderFault(404, "The resource could not be found.")


Handler = Callable[[CinderCall], Awaitable[web.Response]]


def wrong(name: str, value: Any, why: str) -> CinderFault:
    return CinderFault(400, f"Invalid input for field/attribute {name}. Value: {value}. {why}")


async def may_delete(
    call: CinderCall, *, attachment_id: str | None = None, volume_id: str | None = None
) -> None:
    """Return if this caller may delete; else raise Cinder's error (CVE-2023-2088)."""
    if call.is_service:
        return
    with call.model.lock:
        row = call.model.row_to_ask_about(attachment_id=attachment_id, volume_id=volume_id)
    if row is not None:
        await call.compute.ask(row, call.request.headers.get("X-Auth-Token", ""))
