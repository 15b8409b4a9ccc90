"""The demo: attach a volume, kill the host's agent in the middle, see that nothing is lost; then
find a reservation in Cinder of which nobody told the ledger, and take it away.

The agent is told by a fault rule to end itself with SIGKILL right after it connected the
volume and before it could say so: the host has the device, and nobody knows.  Then it
is started again, the operation finishes, the volume is detached, and each party is asked
what is true now.  Last, somebody reserves the volume in Cinder, past the ledger: one look finds
that, a second one confirms it, and a repair mends it.  Every check looks at the thing itself:
Cinder's rows, the guest's XML, the host's connections, the log.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from handlers.drift.judge import APART_S
from ledger.cli.client import ClientError, ServiceError
from ledger.cli.table import inline
from ledger.trial.cloud import DemoError, DemoServer, DemoVolume, TrialCloud
from ledger.words import timeline

CRASH_DEADLINE_S = 30.0
OPERATION_DEADLINE_S = 60.0
LOOK_DEADLINE_S = 60.0
NOVA = {"OpenStack-API-Version": "compute 2.89"}
CINDER = {"OpenStack-API-Version": "volume 3.44"}
SECRETS_MIN = 1

Say = Callable[[str], None]


@dataclass(frozen=True)
class Check:
    """One thing that has to be true, and what was found."""

    name: str
    held: bool
    found: Any


@dataclass
class Summary:
    """What the demo found; `ok` if every check held and none is missing."""

    checks: list[Check] = field(default_factory=list)
    times_s: dict[str, float] = field(default_factory=dict)
    subjects: dict[str, str] = field(default_factory=dict)
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None and bool(self.checks) and not self.failed

    @property
    def failed(self) -> list[str]:
        """The names of the checks that did not hold."""
        return [check.name for check in self.checks if not check.held]

    def __str__(self) -> str:
        if self.failed:
            return f"NOT everything held: {', '.join(self.failed).replace('_', ' ')}"
        times = ", ".join(f"{name.replace('_', ' ')} {s:g} s" for name, s in self.times_s.items())
        return f"All {len(self.checks)} checks held ({times})."

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


class Story:
    """The demo on a running cloud: one server, one volume, one crash, one drift."""

    def __init__(self, cloud: TrialCloud, say: Say, summary: Summary) -> None:
        self._cloud = cloud
        self._say = say
        self._summary = summary
        self.guest: DemoServer = cloud.guests[0]
        self.volume: DemoVolume = cloud.volumes[0]
        summary.subjects |= {"server": self.guest.id, "volume": self.volume.id}

    def tell(self) -> None:
        self._timed("attach_with_crash", self._attach)
        self._check_attached()
        while_attached = datetime.now(UTC)
        self._timed("detach", self._detach)
        self._check_detached()
        self._check_log(while_attached)
        self._timed("drift", self._mend_drift)
        self._show_history()

    def _timed(self, name: str, act: Callable[[], None]) -> None:
        began = time.monotonic()
        act()
        self._summary.times_s[name] = round(time.monotonic() - began, 2)

    def _check(self, name: str, held: bool, found: Any) -> None:
        self._summary.checks.append(Check(name, held, found))
        self._say(f"  {'ok  ' if held else 'FAIL'} {name.replace('_', ' ')}: {inline(found)}")

    # --- acts ---------------------------------------------------------------------------------

    def _attach(self) -> None:
        cloud, agent = self._cloud, self.guest.host
        rule = {"call": "brick.connect", "do": "crash_after", "match": {"host": agent}}
        cloud.set_faults(agent, [{**rule, "note": "the demo's crash"}])
        self._say(f"\nAttach volume {self.volume.name} to server {self.guest.name} on {agent}.")
        body = {"volumeAttachment": {"volumeId": self.volume.id}}
        answer = cloud.compute.send("POST", self._nova_path(), body=body, headers=NOVA)
        self._say(f"  the API answers at once: {json.dumps(answer['volumeAttachment'])}")
        operation_id = self._operation("attach")
        process = cloud.processes[agent]
        crashed = cloud.until(
            f"the agent of {agent} is killed while it connects the volume",
            lambda: process.exit_code,
            CRASH_DEADLINE_S,
            may_end=agent,
        )
        self._check_middle(operation_id, crashed)
        self._say(f"  The agent of {agent} is started again.")
        process.start()
        self._finish("attach", operation_id)

    def _detach(self) -> None:
        self._say(f"\nDetach it again from server {self.guest.name}.")
        path = f"{self._nova_path()}/{self.volume.id}"
        self._cloud.compute.send("DELETE", path, headers=NOVA)
        self._finish("detach", self._operation("detach"))

    def _mend_drift(self) -> None:
        """What nobody told the ledger of is found, confirmed by a second look, and mended."""
        self._say(f"\nSomebody reserves volume {self.volume.name} in Cinder, past the ledger.")
        body = {"attachment": {"volume_uuid": self.volume.id, "instance_uuid": self.guest.id}}
        self._cloud.cinder.send("POST", "/v3/attachments", body=body, headers=CINDER)
        first = self._look()
        self._say(f"  A second look counts after {APART_S:g} s; the demo's database skips them.")
        self._cloud.age_findings(APART_S)
        second = self._look()
        found = [f"{each['drift_class']}, {each['state']}" for each in (first, second)]
        drift = "reservation_unknown"
        self._check(
            "drift_is_found", found == [f"{drift}, suspected", f"{drift}, confirmed"], found
        )
        path = f"/v1/drift/{second['finding_id']}"
        repair = {"reason": "nobody waits for it", "apply": True}
        begun = self._cloud.ledger.post(f"{path}/repair", repair)
        self._summary.subjects |= {"finding": second["finding_id"]}
        self._finish("repair", begun["operation_id"])
        volume, rows = self._cinder_state()
        over = self._cloud.ledger.get(path)["over_how"]
        state = {"finding": over, "volume": volume["status"], "attachments": len(rows)}
        mended = {"finding": "repaired", "volume": "available", "attachments": 0}
        self._check("drift_is_repaired", state == mended, state)

    def _look(self) -> dict[str, Any]:
        """Look at the volume now; what differs there."""
        ledger = self._cloud.ledger
        look_id = ledger.post("/v1/drift/runs", {"volume": self.volume.id})["look_id"]

        def ended() -> bool:
            return bool(ledger.get(f"/v1/drift/runs/{look_id}")["state"] == "ended")

        self._cloud.until("the look ends", ended, LOOK_DEADLINE_S)
        found = ledger.get("/v1/drift", volume=self.volume.id)["findings"]
        if not found:
            raise DemoError(f"look {look_id} has found nothing")
        finding: dict[str, Any] = found[0]
        return finding

    def _nova_path(self) -> str:
        return f"/servers/{self.guest.id}/os-volume_attachments"

    def _operation(self, flow: str) -> str:
        found = self._cloud.ledger.get("/v1/operations", volume=self.volume.id, flow=flow)
        operation_id = str(found["operations"][0]["operation_id"])
        self._summary.subjects[f"{flow}_operation"] = operation_id
        return operation_id

    def _finish(self, flow: str, operation_id: str) -> None:
        path = f"/v1/operations/{operation_id}"

        def look() -> Any:
            operation = self._cloud.ledger.get(path, wait_s=5)
            return operation if operation["state"] != "running" else None

        operation = self._cloud.until(f"{flow} ends", look, OPERATION_DEADLINE_S)
        how = operation["outcome"] or operation["state"]
        self._check(f"{flow}_completed", how == "completed", how)

    # --- checks -------------------------------------------------------------------------------

    def _check_middle(self, operation_id: str, exit_code: int | None) -> None:
        """In the middle: the host has the volume, and the ledger was not told."""
        operation = self._cloud.ledger.get(f"/v1/operations/{operation_id}")
        status = {step["step"]: step["status"] for step in operation["steps"]}
        connected = self._host_state()["connected"]
        self._say("  The agent is dead: it connected the volume and could not say so.")
        held = exit_code == -signal.SIGKILL and operation["state"] == "running"
        held = held and status["connect"] != "done" and len(connected) == 1
        found = {
            "agent_exit": exit_code,
            "operation": operation["state"],
            "step_connect": status["connect"],
            "connected_on_host": len(connected),
        }
        self._check("agent_killed_in_the_middle", held, found)

    def _check_attached(self) -> None:
        volume, rows = self._cinder_state()
        known = self._open_attachments()
        attachment_id = known[0]["attachment_id"] if known else None
        self._summary.subjects["attachment"] = str(attachment_id)
        row = rows[0] if len(rows) == 1 else {}
        found = {"volume": volume["status"], "attachments": [r["status"] for r in rows]}
        same = len(known) == 1 and row.get("id") == attachment_id
        same = same and row.get("instance") == self.guest.id
        same = same and row.get("connector", {}).get("host") == self.guest.host
        held = found == {"volume": "in-use", "attachments": ["attached"]} and same
        self._check("cinder_has_one_attachment_in_use", held, {**found, "same_as_ledger": same})
        disks = self._disks()
        self._check("guest_has_the_disk_once", disks == {"live": 1, "persistent": 1}, disks)
        connected = len(self._host_state()["connected"])
        self._check("host_is_connected_once", connected == 1, connected)
        self._check_user_cannot_delete(str(attachment_id))

    def _check_user_cannot_delete(self, attachment_id: str) -> None:
        """Cinder asks us before it lets a user delete a used attachment (CVE-2023-2088)."""
        try:
            self._cloud.cinder.send("DELETE", f"/v3/attachments/{attachment_id}", headers=CINDER)
            status = 200
        except ServiceError as error:
            status = error.status
        conflict = 409
        self._check("cinder_refuses_a_users_delete", status == conflict, f"HTTP {status}")

    def _check_detached(self) -> None:
        volume, rows = self._cinder_state()
        found = {"volume": volume["status"], "attachments": len(rows)}
        self._check(
            "cinder_has_it_available", found == {"volume": "available", "attachments": 0}, found
        )
        disks = self._disks()
        self._check("guest_has_no_disk", disks == {"live": 0, "persistent": 0}, disks)
        connected = len(self._host_state()["connected"])
        self._check("host_is_not_connected", connected == 0, connected)
        shown = self._cloud.compute.send("GET", self._nova_path(), headers=NOVA)
        left = len(self._open_attachments()) + len(shown["volumeAttachments"])
        self._check("nothing_is_left_open", left == 0, left)

    def _check_log(self, while_attached: datetime) -> None:
        counts: dict[str, int] = {}
        for event in self._history():
            counts[event["topic"]] = counts.get(event["topic"], 0) + 1
        once = ("AttachmentCreated", "ConnectorUpdated", "Completed", "Disconnected", "Deleted")
        counted = {name: counts.get(f"Attachment.{name}", 0) for name in once}
        counted["OperationFinished"] = counts.get("Operation.OperationFinished", 0)
        held = counted == {**dict.fromkeys(once, 1), "OperationFinished": 2}
        self._check("log_has_each_fact_once", held, counted)
        at = while_attached.isoformat()
        spans = self._cloud.ledger.get("/v1/attachments", volume=self.volume.id, at=at)
        hosts = [span["host"] for span in spans["attachments"]]
        self._check("past_is_known", hosts == [self.guest.host], f"attached on {hosts} at {at}")
        leaks, planted = self._leaks()
        self._check(
            "no_secret_is_written",
            not leaks and planted >= SECRETS_MIN,
            leaks or f"none of {planted} secrets is in the log or in a log file",
        )

    def _leaks(self) -> tuple[list[str], int]:
        """Where secrets that Cinder gave out are found; it must be nowhere."""
        secrets = self._cloud.cinder.get("/sim/state")["secrets"]
        texts = {path.name: path.read_text(errors="replace") for path in self._cloud.logs()}
        texts["events"] = json.dumps(list(self._cloud.ledger.items("/v1/events", "events", 10_000)))
        found = [name for name, text in texts.items() if any(secret in text for secret in secrets)]
        return found, len(secrets)

    # --- who is asked ---------------------------------------------------------------------------

    def _cinder_state(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        state = self._cloud.cinder.get("/sim/state")
        [volume] = [each for each in state["volumes"] if each["id"] == self.volume.id]
        return volume, [r for r in state["attachments"] if r["volume_id"] == self.volume.id]

    def _host_state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self._cloud.state_file(self.guest.host).read_text())
        return state

    def _disks(self) -> dict[str, int]:
        """How often the volume is a disk of the guest, now and after its next start."""
        domains = self._host_state()["guests"][self.guest.id]
        return {
            kind: sum(
                disk.findtext("serial") == self.volume.id
                for disk in ET.fromstring(domains[kind]).iter("disk")  # noqa: S314 - our own XML
            )
            for kind in ("live", "persistent")
        }

    def _open_attachments(self) -> list[dict[str, Any]]:
        found = self._cloud.ledger.get("/v1/attachments", volume=self.volume.id)
        attachments: list[dict[str, Any]] = found["attachments"]
        return attachments

    def _history(self) -> Iterator[dict[str, Any]]:
        return self._cloud.ledger.items(f"/v1/volumes/{self.volume.id}/history", "events", 1000)

    def _show_history(self) -> None:
        self._say(f"\nThe history of volume {self.volume.name} ({self.volume.id}):\n")
        for line in timeline.lines(map(timeline.Entry.of, self._history())):
            self._say(line)


def run(
    home: Path,
    say: Say,
    summary: Summary,
    *,
    port: int | None = None,
    cinder_port: int | None = None,
    stay: Callable[[TrialCloud, Story], None] | None = None,
) -> None:
    """Set up, tell the story, stay if asked to, end everything; `summary` says how it went."""
    began = time.monotonic()
    say("Starting PostgreSQL, a simulated Cinder, the ledger and two host agents ...")
    try:
        with TrialCloud(home, port, cinder_port) as cloud:
            summary.times_s["set_up"] = round(time.monotonic() - began, 2)
            say(f"All are up after {summary.times_s['set_up']:.1f} s: ledger at {cloud.url}")
            story = Story(cloud, say, summary)
            story.tell()
            summary.times_s["total"] = round(time.monotonic() - began, 2)
            say(f"\n{summary}")
            if stay is not None:
                stay(cloud, story)
    except (DemoError, ClientError) as error:
        summary.error = str(error)
