"""A cloud of somebody else's, and the service beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from host_agent.shared.contract.messages import PowerState
from host_agent.shared.contract.ports import Disk
from host_agent.shared.faults import Faults
from host_agent.simulated.adapters import SimulatedBrick, SimulatedGuests
from host_agent.simulated.host_state import HostState
from tests.doubles.direct_cinder import DirectCinder
from tests.doubles.simulated_nova import Mapping, Server, SimulatedNova
from tests.stack import ADMIN, DEADLINE_S, Stack, eventually

INTERVAL_S = 0.2


class Watched:
    """A cloud of somebody else, and the service beside it."""

    def __init__(self, stack: Stack, nova: SimulatedNova) -> None:
        self.stack, self.nova = stack, nova
        self.made: list[str] = []
        self.log_in({"auth_type": "admin_token", "endpoint": nova.url, "token": ADMIN})
        nova.cinder.add_volume(project_id="another")  # Cinder's lists are of all projects

    def log_in(self, login: dict[str, str]) -> None:
        """As whom the service asks: keystoneauth's options."""
        self.stack.settings = (
            f"[observe]\ninterval_s = {INTERVAL_S}\ncompute_endpoint = '{self.nova.url}'\n"
            f"volume_endpoint = '{self.stack.cinder.endpoint}'\n[observe.auth]\n"
            + "".join(f"{name} = '{value}'\n" for name, value in login.items())
        )

    def volume(self) -> str:
        return self.nova.cinder.add_volume(project_id="theirs").id

    def on_the_host(
        self, server: Server, *mappings: Mapping, devices: Sequence[str] = ("vda",)
    ) -> None:
        """What nova-compute has connected and put into the guest there, beside its `devices`."""
        host = str(server.host)
        path = self.stack.home / f"{host}.json"
        guest = {"server_id": server.id, "name": server.name, "project_id": server.project_id}
        store = HostState(path)
        with store.edit() as state:
            running = {"power_state": PowerState.RUNNING.value, "devices": list(devices)}
            state.setdefault("define", []).append(guest | running)
        store = HostState(path, {})
        brick = SimulatedBrick(store, Faults(), host)
        guests, cinder = SimulatedGuests(store, Faults(), host), DirectCinder(self.nova.cinder)
        for each in mappings:
            if each.old:
                info = cinder.initialize_connection(each.volume_id, brick.connector())
            else:
                info = cinder.attachment(each.attachment_id).connection_info or {}
            source = {k: v for k, v in brick.connect(info).items() if k not in {"device", "format"}}
            name = each.device.removeprefix("/dev/")
            disk = Disk(serial=each.volume_id, source=source, device_name=name, bus="virtio")
            guests.plug(server.id, disk)

    def history(self, of: str, id_: str) -> list[dict[str, Any]]:
        answer = self.stack.get(f"/v1/{of}/{id_}/history?limit=1000")
        return list(answer.json().get("events", ()))

    def topics(self, of: str, id_: str) -> list[str]:
        return [event["topic"] for event in self.history(of, id_)]

    def until(self, of: str, id_: str, topic: str, number: int = 1) -> dict[str, Any]:
        """The last event of that topic, once there are so many."""

        def look() -> dict[str, Any] | None:
            found = [event for event in self.history(of, id_) if event["topic"] == topic]
            return found[-1] if len(found) >= number else None

        log = self.stack.components[0].log
        return eventually(look, f"{topic}: {log.read_text()[-1500:]}")

    def next_looks(self, number: int = 2, deadline_s: float = DEADLINE_S) -> None:
        """Until so many more looks have begun and ended."""
        seen = self._looks()
        eventually(lambda: self._looks() >= seen + number, "looks", deadline_s)

    def _looks(self) -> int:
        return self.stack.components[0].log.read_text().count("looked_at_nova")

    def head(self) -> int:
        return int(self.stack.get("/v1/events/checkpoint").json()["position"])

    def look_at_drift(self) -> dict[str, Any]:
        """A look at everything, once it has ended."""
        asked = self.stack.http.post(self.stack.url("/v1/drift/runs"), json={})
        path = f"/v1/drift/runs/{asked.json()['look_id']}"

        def ended() -> dict[str, Any] | None:
            look = self.stack.get(path).json()
            return dict(look) if look.get("outcome") else None

        return eventually(ended, "the look ends")

    def attachments(self, **query: str) -> list[dict[str, Any]]:
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        return list(self.stack.get(f"/v1/attachments?{asked}").json()["attachments"])
