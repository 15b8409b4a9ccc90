"""The API with a Nova beside it, to which it passes requests on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from aiohttp import ClientResponse
from yarl import URL

from aggregates.base import Actor, Event, EventContext, Seen
from aggregates.instance import Instance
from handlers.drift.seen import SeenServer
from handlers.results.observed import ServerSeen, record
from ledger.config import Observe
from ledger.log.unit import Unit, run_optimistically
from tests.doubles.recording_nova import RecordingNova
from tests.doubles.simulated_keystone import SimulatedKeystone
from tests.service.api_world import PROJECT, Api, running_api
from tests.service.keystone_world import settings

_SEEN = Seen(origin="nova", after=None, before="2026-11-27T12:01:00+00:00")
_CONTEXT = EventContext(actor=Actor(name="observer"), request_id="req-look", cause="observation")

#: An answer that no deadline of the service ends is not waited for longer.
ASK_S = 60


@dataclass
class Both:
    """Our API, and the Nova."""

    api: Api
    nova: RecordingNova
    keystone: SimulatedKeystone
    token: str

    async def ask(self, method: str, path: str | URL, **options: Any) -> ClientResponse:
        """As an administrator by Keystone; to be refused is to have been asked."""
        headers = {"X-Auth-Token": self.token, **options.pop("headers", {})}
        version = options.pop("version", "2.90")
        async with asyncio.timeout(ASK_S):
            return await self.api.ask(method, path, None, version, headers=headers, **options)

    async def watched(self, host: str = "hv1") -> str:
        """A server that was seen at Nova."""
        server_id = str(uuid4())
        server = SeenServer(id=server_id, name="theirs", host=host, project_id=PROJECT)
        sight = ServerSeen(
            server_id=server_id, server=server, attachments=(), seen=_SEEN, asked=_SEEN
        )
        run_optimistically(
            self.api.components.requests._store,
            lambda unit: record(sight, unit) and unit.save(_CONTEXT),
        )
        await self.api.projected()
        return server_id

    async def adopted(self, host: str = "hv1") -> str:
        """A server that was seen at Nova, and handed over."""
        server_id = await self.watched(host)
        self.record(server_id, Instance.Adopted, came_from="nova", reason="rack 3", epoch=0)
        await self.api.projected()
        return server_id

    def record(self, server_id: str, kind: type[Event], **fields: Any) -> None:
        def change(unit: Unit) -> int:
            unit.get(Instance, server_id).record(kind, **fields)
            return unit.save(_CONTEXT)

        run_optimistically(self.api.components.requests._store, change)

    def said_by_nova(self) -> int:
        """How often Nova was asked since this was asked last."""
        number = len(self.nova.asked)
        self.nova.asked.clear()
        return number


@asynccontextmanager
async def both_worlds(
    dsn: str, keystone: SimulatedKeystone, nova: RecordingNova, insecure: bool = False
) -> AsyncIterator[Both]:
    observe = Observe(pass_on_to=nova.url, insecure=insecure)
    async with running_api(dsn, replace(settings(keystone), observe=observe)) as api:
        token = keystone.token("root", "admin", "service", project=PROJECT)
        yield Both(api, nova, keystone, token)
