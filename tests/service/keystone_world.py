"""The API with Keystone's tokens, and a simulated Keystone beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aiohttp import ClientResponse

from ledger.config import AuthMode, KeystoneSettings, Settings
from tests.doubles.simulated_keystone import SimulatedKeystone
from tests.service.api_world import SETTINGS, Api

SERVERS = "/v2.1/servers"


def settings(keystone: SimulatedKeystone, **given: Any) -> Settings:
    """Keystone is asked by a user with the role service; the static tokens are good, too."""
    auth = keystone.user("ledger", "service", project="service")
    return replace(SETTINGS, auth=AuthMode.KEYSTONE, keystone=KeystoneSettings(auth=auth, **given))


async def ask(api: Api, token: str | None, path: str = SERVERS, **given: Any) -> ClientResponse:
    """GET, unless `method` says otherwise; with `service` as the service token."""
    headers = {"X-Auth-Token": token or "", **given.pop("headers", {})}
    if service := given.pop("service", None):
        headers["X-Service-Token"] = service
    method = given.pop("method", "GET")
    return await api.ask(method, path, None, given.pop("version", None), headers=headers, **given)


async def status(api: Api, token: str | None, path: str = SERVERS, **given: Any) -> int:
    return (await ask(api, token, path, **given)).status
