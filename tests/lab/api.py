"""The ledger's own API, as the tests read it."""

from __future__ import annotations

import json
import subprocess
from http import HTTPStatus
from pathlib import Path
from typing import Any

import requests

from host_agent.locks import Locks
from host_agent.shared.contract.messages import AGENT_HEADER
from tests.lab.guest import MEMORY_MIB, wait_until
from tests.lab.people import person
from tests.lab.settings import ENV, SETTLE_S
from tests.lab.world import CLI_S

POWER_STATE = "OS-EXT-STS:power_state"


class Ledger:
    """The ledger's own API, as an operator; and the plain truth of its Nova form."""

    def __init__(self) -> None:
        self._url = ENV["LAB_LEDGER_URL"]
        self._operator = {"X-Auth-Token": ENV["LAB_OPERATOR_TOKEN"]}

    @property
    def _user(self) -> dict[str, str]:
        return {"X-Auth-Token": person("member").token}

    def server_status(self, server_id: str) -> str | None:
        """Nova's status of the server ("ACTIVE", ...), None if it is not known."""
        url = f"{self._url}/v2.1/servers/{server_id}"
        answer = requests.get(url, headers=self._user, timeout=CLI_S)
        if answer.status_code == HTTPStatus.NOT_FOUND:
            return None
        answer.raise_for_status()
        return str(answer.json()["server"]["status"])

    def task_state(self, server_id: str) -> str | None:
        """What Nova says to be under way at the server ("deleting", ...)."""
        found = self._get(f"/v2.1/servers/{server_id}")["server"]["OS-EXT-STS:task_state"]
        return None if found is None else str(found)

    def has_no_guest(self, server_id: str) -> bool:
        """Whether the server's host has said so: Nova's power state is NOSTATE."""
        return bool(self._get(f"/v2.1/servers/{server_id}")["server"][POWER_STATE] == 0)

    def wait_status(self, server_id: str, status: str) -> None:
        def there() -> bool:
            return self.server_status(server_id) == status

        wait_until(there, f"server {server_id} to be {status}", SETTLE_S)

    def attach(self, server_id: str, volume_id: str) -> requests.Response:
        """The request of `openstack server add volume`, without the CLI's look-ups before it."""
        url = f"{self._url}/v2.1/servers/{server_id}/os-volume_attachments"
        body = {"volumeAttachment": {"volumeId": volume_id}}
        headers = {**self._user, "OpenStack-API-Version": "compute 2.89"}
        return requests.post(url, json=body, headers=headers, timeout=CLI_S)

    def detach(self, server_id: str, volume_id: str) -> requests.Response:
        url = f"{self._url}/v2.1/servers/{server_id}/os-volume_attachments/{volume_id}"
        return requests.delete(url, headers=self._user, timeout=CLI_S)

    def tell_extended(self, server_id: str, volume_id: str) -> Any:
        """Cinder's event; what each was answered."""
        event = {"name": "volume-extended", "server_uuid": server_id, "tag": volume_id}
        headers = {
            "X-Auth-Token": person("cinder").token,
            "OpenStack-API-Version": "compute 2.51",
        }
        url = f"{self._url}/v2.1/os-server-external-events"
        answer = requests.post(url, json={"events": [event]}, headers=headers, timeout=CLI_S)
        answer.raise_for_status()
        return [(each["status"], each["code"]) for each in answer.json()["events"]]

    def attachments(self, server_id: str) -> list[Any]:
        """The server's attachments as Nova's API shows them at 2.89."""
        url = f"{self._url}/v2.1/servers/{server_id}/os-volume_attachments"
        headers = {**self._user, "OpenStack-API-Version": "compute 2.89"}
        answer = requests.get(url, headers=headers, timeout=CLI_S)
        answer.raise_for_status()
        return list(answer.json()["volumeAttachments"])

    def operation(self, flow: str, volume_id: str) -> Any:
        """The newest operation of this flow on the volume, None if there is none."""
        found = self._get("/v1/operations", volume=volume_id, flow=flow)["operations"]
        newest = max(found, key=lambda operation: operation["started_at"], default=None)
        return newest and self._get(f"/v1/operations/{newest['operation_id']}")

    def wait_outcome(self, flow: str, volume_id: str) -> Any:
        """The operation once it is finished or parked."""

        def settled() -> Any:
            operation = self.operation(flow, volume_id)
            return operation if operation and operation["state"] != "running" else None

        try:
            return wait_until(settled, f"{flow} of {volume_id} to settle", SETTLE_S)
        except TimeoutError as error:
            error.add_note(json.dumps(self.operation(flow, volume_id), indent=1))
            raise

    def wait_step(self, flow: str, volume_id: str, step: str) -> None:
        """Until the step of the running operation is done, for all of its volumes."""

        def done() -> bool:
            operation = self.operation(flow, volume_id)
            steps = operation["steps"] if operation else []
            return {item["status"] for item in steps if item["step"] == step} == {"done"}

        wait_until(done, f"step {step} of {flow} to be done", SETTLE_S)

    def command(self, *words: str, token: str = ENV["LEDGER_TOKEN"]) -> None:
        """Our own command line, as an operator or whose token it is."""
        program = f"{ENV['LAB_VENV']}/bin/attachment-ledger"
        env = ENV | {"LEDGER_TOKEN": token}
        subprocess.run([program, *words], env=env, check=True, capture_output=True, timeout=CLI_S)

    def as_user(self, *words: str) -> None:
        """The same, as whose the servers and the volumes are."""
        self.command(*words, token=person("member").token)

    def build(self, name: str, *disks: Any) -> str:
        """A new server with these disks, the first its root; its id, before it is built."""
        body: dict[str, Any] = {"name": name, "memory_mb": MEMORY_MIB, "disks": disks}
        url = f"{self._url}/v1/servers"
        answer = requests.post(url, json=body, headers=self._user, timeout=CLI_S)
        answer.raise_for_status()
        return str(answer.json()["server_id"])

    def register_old(self, host: str, token: str, locks: Path) -> None:
        """As an agent of before Cinder's attachments, whose host has no guests.

        It says that it is where the host's agent was (`locks`): a stranger would have to wait
        until that one has been silent for long.
        """
        registration: dict[str, Any] = {"service_version": 0, "capabilities": {}, "guests": []}
        url = f"{self._url}/v1/hosts/{host}"
        headers = {"X-Auth-Token": token, AGENT_HEADER: Locks(locks).place()}
        requests.put(url, json=registration, headers=headers, timeout=CLI_S).raise_for_status()

    def history(self, volume_id: str) -> list[Any]:
        return list(self._get(f"/v1/volumes/{volume_id}/history")["events"])

    def look(self, *believe: str) -> Any:
        """At everything, told to believe these classes; how it ended."""
        told = {"believe": believe, "reason": "earlier tests left them"} if believe else {}
        asked = self._post("/v1/drift/runs", told)
        path = f"/v1/drift/runs/{asked['look_id']}"

        def ended() -> Any:
            answer = requests.get(self._url + path, headers=self._operator, timeout=CLI_S)
            return answer.ok and answer.json()["state"] == "ended" and answer.json()

        look = wait_until(ended, "the look to end", SETTLE_S)
        assert look["outcome"] == "completed", look
        return look

    def drift(self, state: str) -> list[tuple[str, str, Any]]:
        """What differs: its class, its key, and the finding."""
        found = self._get("/v1/drift", state=state, limit="1000")["findings"]
        return [(each["drift_class"], each["key"], each) for each in found]

    def forgettable(self, host: str) -> dict[str, Any]:
        """The servers of a host whose guests have vanished, the newest of them, and why one of
        them would not be forgotten (None: it would).
        """
        answer = self._post("/v1/forget", {"host": host, "reason": "to see what it would do"})
        return {each["server_id"]: each["refused"] for each in answer["servers"]}

    def repair(self, finding_id: str) -> str:
        """How the operation that mends it ended."""
        wanted = {"reason": "planted by a test", "apply": True}
        begun = self._post(f"/v1/drift/{finding_id}/repair", wanted)
        path = f"/v1/operations/{begun['operation_id']}"

        def over() -> Any:
            operation = self._get(path)
            return operation["state"] != "running" and operation

        operation = wait_until(over, "the repair to end", SETTLE_S)
        error = operation["error"] or {}
        return " ".join(
            filter(None, (operation["outcome"] or operation["state"], error.get("message")))
        )

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        url = self._url + path
        answer = requests.post(url, json=body, headers=self._operator, timeout=CLI_S)
        assert answer.ok, answer.text
        return answer.json()

    def _get(self, path: str, **query: str) -> Any:
        answer = requests.get(self._url + path, params=query, headers=self._operator, timeout=CLI_S)
        answer.raise_for_status()
        return answer.json()
