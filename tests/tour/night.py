"""One night on the trial's cloud: the incident that the tour finds, understands and resolves.

Scripted by docs/faults.md, and planted anew for each way of resolving it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from handlers.drift.judge import APART_S
from ledger.trial.cloud import HOSTS, DemoServer, DemoVolume, TrialCloud
from ledger.trial.demo import CINDER, LOOK_DEADLINE_S, NOVA, OPERATION_DEADLINE_S

WEB = DemoServer("web-1", HOSTS[0], id="7d1f6c02-53a4-4c8e-9d27-b86e0f4a1c35")
DB = DemoServer("db-1", HOSTS[1], id="1b90e3c7-8f62-4d15-a04b-5e7d9c213f68")
#: Reserved in Cinder, for nobody.
RESERVED = DemoVolume("data-1", 10, id="c4e8a7b1-296d-4f03-8b5a-d17f603e92c4")
#: Being detached.
STUCK = DemoVolume("data-2", 20, id="93b5d2f8-e471-4a6c-b938-0c64f1a7e25d")
RULE: dict[str, Any] = {
    "call": "attachment_delete",
    "match": {"volume_id": STUCK.id},
    "count": None,
    "do": "fail",
    "status": 400,
    "message": "Invalid volume: backend array-7 is in maintenance.",
}


class Night:
    """The cloud with the incident; `planted_at`: when all of it had happened."""

    def __init__(self, cloud: TrialCloud) -> None:
        self.cloud = cloud
        self._plant()
        self.planted_at = datetime.now(UTC)
        end = self.planted_at.replace(microsecond=0) + timedelta(seconds=1)
        cloud.until("what follows is of another second", lambda: datetime.now(UTC) >= end)

    def _plant(self) -> None:
        """Cinder refuses the end of a detach; somebody reserves a volume; one look sees that."""
        compute, path = self.cloud.compute, f"/servers/{DB.id}/os-volume_attachments"
        compute.send("POST", path, body={"volumeAttachment": {"volumeId": STUCK.id}}, headers=NOVA)
        self._until_one_is("attach", "finished")
        self.cloud.cinder.send("PUT", "/sim/faults", body=[RULE])
        compute.send("DELETE", f"{path}/{STUCK.id}", headers=NOVA)
        self._until_one_is("detach", "parked")
        body = {"attachment": {"volume_uuid": RESERVED.id, "instance_uuid": WEB.id}}
        self.cloud.cinder.send("POST", "/v3/attachments", body=body, headers=CINDER)
        self._look()
        self.cloud.age_findings(APART_S)

    def mend_the_array(self) -> None:
        """What others do meanwhile: whoever looks after the storage."""
        self.cloud.cinder.send("PUT", "/sim/faults", body=[])

    def state(self) -> dict[str, Any]:
        """What is true at the end, by Cinder and by the ledger's own account."""
        volumes = self.cloud.cinder.get("/sim/state")
        return {
            "volumes": {each["name"]: each["status"] for each in volumes["volumes"]},
            "attachments": len(volumes["attachments"]),
            "parked": len(self.cloud.ledger.get("/v1/operations", state="parked")["operations"]),
            "drift": len(self.cloud.ledger.get("/v1/drift")["findings"]),
        }

    def _until_one_is(self, flow: str, state: str) -> None:
        def is_so() -> bool:
            found = self.cloud.ledger.get("/v1/operations", volume=STUCK.id, flow=flow)
            return [each["state"] for each in found["operations"]] == [state]

        self.cloud.until(f"the {flow} is {state}", is_so, OPERATION_DEADLINE_S)

    def _look(self) -> None:
        ledger = self.cloud.ledger
        look_id = ledger.post("/v1/drift/runs", {})["look_id"]

        def ended() -> bool:
            return bool(ledger.get(f"/v1/drift/runs/{look_id}")["state"] == "ended")

        self.cloud.until("the look ends", ended, LOOK_DEADLINE_S)


#: `Night.state` once everything is resolved.
RESOLVED = {
    "volumes": {RESERVED.name: "available", STUCK.name: "available"},
    "attachments": 0,
    "parked": 0,
    "drift": 0,
}


@contextmanager
def night() -> Iterator[Night]:
    """A cloud of its own, below a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="tour-") as directory:
        home = Path(directory)
        home.chmod(0o711)  # as root PostgreSQL runs as another account, which must pass
        cloud = TrialCloud(home, None, None)
        cloud.guests, cloud.volumes = (WEB, DB), (RESERVED, STUCK)
        with cloud:
            yield Night(cloud)
