"""The simulation's own endpoints: add volumes, set fault rules, read the whole state.

PUT  /sim/volumes   one volume or a list: {"id", "name", "size", "driver",
"multiattach", "shared_targets", "service_uuid", "bootable",
"project_id", "available_after_s|_reads",
"service_uuid_after_s|_reads", ...}
GET  /sim/faults    the fault rules in force, with `seen`
PUT  /sim/faults    replace them by a list (docs/faults.md)
GET  /sim/state     every row, and the secrets that were ever issued
GET  /sim/calls     how often each call was made, and the newest of them in order
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from aiohttp import web

from host_agent.shared.faults import FaultError, Faults
from ledger.trial.cinder import store as cinder_store
from ledger.trial.cinder.model.model import CinderModel
from ledger.trial.cinder.model.rows import CinderFault, StoredVolume
from ledger.trial.cinder.store import CinderStore

#: The keys of a volume, and their types.
_KEYS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("id", "status", "attach_status", "driver", "volume_type"), str),
    **dict.fromkeys(("availability_zone", "project_id", "user_id"), str),
    **dict.fromkeys(("provider", "encryption_key_id"), str),
    **dict.fromkeys(("name", "description", "migration_status"), (str, type(None))),
    **dict.fromkeys(("snapshot_id", "source_volid", "image_id"), (str, type(None))),
    **dict.fromkeys(("multiattach", "bootable", "encrypted", "readonly"), bool),
    "service_uuid": (str, type(None)),
    "shared_targets": (bool, type(None)),
    "size": int,
    "metadata": dict,
    **dict.fromkeys(("available_after_s", "service_uuid_after_s"), (int, float)),
    **dict.fromkeys(("available_after_reads", "service_uuid_after_reads"), int),
}


def _bad(message: str) -> web.Response:
    return web.json_response({"error": message}, status=400)


def seed(model: CinderModel, item: Any) -> StoredVolume:
    """One volume of the endpoint's JSON form; raises ValueError naming what is wrong."""
    if not isinstance(item, dict):
        raise ValueError("a volume must be an object")  # noqa: TRY004 - the caller's data is wrong
    for name, value in item.items():
        if name not in _KEYS:
            raise ValueError(f"unknown key {name!r}; allowed: {', '.join(sorted(_KEYS))}")
        if not isinstance(value, _KEYS[name]):
            raise ValueError(f"{name!r} is {value!r}, which is of the wrong type")  # noqa: TRY004
    wanted = dict(item)
    volume_id = wanted.pop("id", None)
    with model.lock:
        if volume_id in model.volumes:
            raise ValueError(f"volume {volume_id} exists already")
        return model.add_volume(volume_id, **wanted)


@dataclass(frozen=True)
class SimulationControl:
    """Handlers of requests, of one simulation."""

    model: CinderModel
    faults: Faults
    store: CinderStore | None

    def routes(self) -> list[web.RouteDef]:
        return [
            web.put("/sim/volumes", self.put_volumes),
            web.get("/sim/faults", self.get_faults),
            web.put("/sim/faults", self.put_faults),
            web.get("/sim/state", self.get_state),
            web.get("/sim/calls", self.get_calls),
        ]

    async def put_volumes(self, request: web.Request) -> web.Response:
        try:
            body = await request.json()
            items = body if isinstance(body, list) else [body]
            made = [seed(self.model, item) for item in items]
        except (ValueError, CinderFault) as error:
            return _bad(str(error))
        if self.store is not None:
            self.store.save(self.model)
        return web.json_response([asdict(volume) for volume in made], status=201)

    async def get_faults(self, _: web.Request) -> web.Response:
        return web.json_response(self.faults.rules())

    async def put_faults(self, request: web.Request) -> web.Response:
        try:
            self.faults.replace(await request.json())
        except (FaultError, ValueError) as error:
            return _bad(str(error))
        return web.json_response(self.faults.rules())

    async def get_state(self, _: web.Request) -> web.Response:
        return web.json_response(cinder_store.dump(self.model))

    async def get_calls(self, _: web.Request) -> web.Response:
        with self.model.lock:
            shown = {"counts": self.model.counts, "recent": list(self.model.recent)}
            return web.json_response(shown)
