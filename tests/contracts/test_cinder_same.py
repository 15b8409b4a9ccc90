"""The simulated and a real Cinder give the same answers to the same requests.

Every step is sent to both; ids are replaced by names and times by a mark, then the
answers must be equal, texts included.  Left out of the comparison: what only a real
back end knows, the order of JSON keys, and tracebacks that real Cinder lets slip
into messages that crossed its message bus.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
import requests
from keystoneauth1 import session

from host_agent.shared.cinder.session import load_auth
from ledger.trial.cinder.model.model import CinderModel
from tests.contracts.cinder_worlds import (
    LAB_ENDPOINT,
    LAB_TYPE,
    connector,
    lab_service,
    new_uuid,
)
from tests.doubles.running_cinder import running_cinder

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(
        LAB_ENDPOINT is None,
        reason="LEDGER_LAB_CINDER does not hold the v3 endpoint of a real Cinder",
    ),
]

READY_DEADLINE_S = 60.0
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+")
_TRACEBACK = re.compile(r"\nTraceback \(most recent call last\).*", re.DOTALL)
_BACKEND_ONLY = frozenset(
    {
        *("links", "volume_type", "volume_type_id", "os-vol-host-attr:host", "metadata"),
        *("service_uuid", "shared_targets", "updated_at", "host_name"),
    }
)

Step = tuple[str, str, Any, dict[str, Any]]


def step(method: str, path: str, body: Any = None, **how: Any) -> Step:
    return method, path, body, how


def action(what: str, body: Any = None, **how: Any) -> Step:
    return step("POST", "/volumes/<v>/action", {what: body}, **how)


def reserve(server: str = "<s1>", **more: Any) -> Any:
    return {"attachment": {"volume_uuid": "<v>", "instance_uuid": server, **more}}


def update(name: str, *args: Any, **how: Any) -> Step:
    body = {"attachment": {"connector": args[0] if args else connector()}}
    return step("PUT", f"/attachments/<{name}>", body, **how)


def complete(name: str, **how: Any) -> Step:
    return step("POST", f"/attachments/<{name}>/action", {"os-complete": None}, **how)


def delete(name: str) -> Step:
    return step("DELETE", f"/attachments/<{name}>", service=True)


SHOW_VOLUME = step("GET", "/volumes/<v>")
ROWS = step("GET", "/attachments/detail?volume_id=<v>")

NEW_FLOW: tuple[Step, ...] = (
    *(step("GET", "/"), SHOW_VOLUME, step("GET", "/volumes/no-such-name")),
    *(step("GET", "/volumes/<v>", version=version) for version in ("3.0", "3.47", "3.68")),
    *(step("GET", "/volumes/<v>", version=version) for version in ("3.99", "zz")),
    *(step("POST", "/attachments", reserve(), save="a"), SHOW_VOLUME, ROWS),
    step("POST", "/attachments", reserve("<s2>")),
    *(step("DELETE", "/volumes/<v>"), action("os-reserve")),
    *(update("a", {}), update("a", {"ip": "127.0.0.1"})),
    step("PUT", "/attachments/<a>", {"attachment": {}}),
    step("PUT", "/attachments/<a>", {"attachment": {"connector": connector(), "more": 1}}),
    *(update("a", connector(mountpoint="/dev/vdb")), SHOW_VOLUME, ROWS),
    step("GET", "/attachments/<a>", version="3.26"),
    complete("a", version="3.43"),
    step("POST", "/attachments", reserve()),
    *(complete("a"), SHOW_VOLUME, ROWS),
    step("GET", "/attachments?volume_id=<v>&instance_id=<s1>"),
    *(step("GET", "/attachments?colour=red"), step("GET", "/attachments?limit=x")),
    step("GET", "/attachments?marker=<s2>"),
    *(step("POST", "/attachments", reserve(), save="b"), SHOW_VOLUME),
    *(update("b", connector("compute-b")), update("a"), delete("b"), SHOW_VOLUME),
    step("POST", "/attachments", reserve(connector=connector("compute-b")), save="c"),
    *(SHOW_VOLUME, ROWS, step("GET", "/attachments/<c>")),
    *(delete("a"), SHOW_VOLUME, delete("c"), SHOW_VOLUME),
    *(delete("c"), step("GET", "/attachments/<c>"), update("c"), complete("c")),
)

CREATE_CORNERS: tuple[Step, ...] = (
    step("POST", "/attachments", reserve(mode="ro"), version="3.53"),
    step("POST", "/attachments", reserve(mode="ro", connector=connector()), save="d"),
    *(ROWS, delete("d")),
    *(step("POST", "/attachments", reserve(mode="rw"), save="e"), update("e"), ROWS, delete("e")),
    step("POST", "/attachments", {"attachment": {"volume_uuid": "<v>"}}, save="f"),
    step("DELETE", "/attachments/<f>"),
    *(step("POST", "/attachments", reserve("x")), step("POST", "/attachments", {})),
    step("POST", "/attachments", {"attachment": {}}),
    step("POST", "/attachments", {"attachment": {"volume_uuid": "x"}}),
    step("POST", "/attachments", {"attachment": {"volume_uuid": "<s2>"}}),
    step("POST", "/attachments", {"attachment": {"volume_uuid": "<v>", "instance_uuid": None}}),
    step("POST", "/attachments", reserve(connector="x")),
    step("POST", "/attachments", reserve(more=1)),
    *(step("POST", "/attachments", reserve(mode="zz")), SHOW_VOLUME),
)

_STATUSES = (
    *("error", "creating", "maintenance", "detaching", "attaching", "in-use", "reserved"),
    *("error_deleting", "zz", "deleting"),
)

RESETS: tuple[Step, ...] = tuple(
    each
    for status in (*_STATUSES, "available")
    for each in (
        action("os-reset_status", {"status": status, "attach_status": "detached"}),
        step("POST", "/attachments", reserve(), save=f"at-{status}"),
        SHOW_VOLUME,
    )
)

_ATTACH = {"instance_uuid": "<s1>", "mountpoint": "/dev/vdb", "mode": "rw"}

OLD_FLOW: tuple[Step, ...] = tuple(
    each
    for act in (
        *(action("os-unreserve"), action("os-begin_detaching"), action("os-roll_detaching")),
        action("os-terminate_connection", {"connector": connector()}),
        *(action("os-detach", {}), action("os-reserve"), action("os-reserve")),
        *(action("os-attach", _ATTACH), action("os-attach", _ATTACH)),
        action("os-attach", {**_ATTACH, "instance_uuid": "<s2>"}),
        *(action("os-attach", {"mountpoint": "/dev/vdb"}), action("os-reserve")),
        *(action("os-begin_detaching"), action("os-begin_detaching")),
        *(action("os-roll_detaching"), action("os-initialize_connection", {})),
        *(action("os-no-such"), action("os-detach", {}, service=True)),
    )
    for each in (act, step("GET", "/volumes/<v>", without="attachments"))
)


CONVERSION: tuple[Step, ...] = (
    action("os-reserve"),
    action("os-attach", {**_ATTACH, "host_name": "compute-a"}),
    *(step("GET", "/volumes/<v>", save="o"), ROWS),
    *(update("o", connector(mountpoint="/dev/vdb")), ROWS, SHOW_VOLUME),
    *(complete("o"), ROWS, SHOW_VOLUME, update("o"), delete("o"), SHOW_VOLUME),
)

ADMIN: tuple[Step, ...] = (
    action("os-migrate_volume", {"host": "nowhere@at#all"}),
    *(action("os-retype", {"new_type": "no-such-type"}), SHOW_VOLUME),
    action("os-migrate_volume_completion", {}),
    action("os-migrate_volume_completion", {"new_volume": "<s1>"}),
    step("POST", "/attachments", reserve(connector=connector()), save="a"),
    *(complete("a"), step("DELETE", "/volumes/<v>")),
    action("os-force_detach", {"connector": None, "attachment_id": "<a>"}, service=True),
    *(SHOW_VOLUME, ROWS),
    action("os-reset_status", {"migration_status": "migrating"}),
    *(step("DELETE", "/volumes/<v>"), SHOW_VOLUME),
    action("os-migrate_volume_completion", {"new_volume": "<v>"}),
    *(action("os-reset_status", {"migration_status": "none"}), SHOW_VOLUME),
    step("GET", "/volumes/detail?metadata=%7B%27made%27%3A+%27no-such%27%7D"),
)


@dataclass
class Side:
    """One of the two, and what its ids are called."""

    endpoint: str
    kind: str
    user: dict[str, str]  # the headers that say who asks
    service: dict[str, str]  # and those of a service
    names: dict[str, str] = field(default_factory=dict)

    def send(self, one: Step) -> Any:
        method, path, body, how = one
        headers = self.user | (self.service if how.get("service") else {})
        headers["OpenStack-API-Version"] = f"volume {how.get('version', '3.71')}"
        body = None if body is None else json.loads(self._with_ids(json.dumps(body)))
        url = self.endpoint + self._with_ids(path)
        answer = requests.request(method, url, json=body, headers=headers, timeout=60)
        try:
            data = answer.json()
        except ValueError:
            data = answer.text
        if "save" in how and answer.ok:
            of_volume = data.get("volume", {}).get("attachments")
            self.names[how["save"]] = (
                of_volume[0]["attachment_id"] if of_volume else data["attachment"]["id"]
            )
        return answer.status_code, self._named(data, how.get("without"))

    def _with_ids(self, text: str) -> str:
        for name, value in self.names.items():
            text = text.replace(f"<{name}>", value)
        return text

    def _named(self, data: Any, without: str | None) -> Any:
        if isinstance(data, dict):
            kept = {k: v for k, v in data.items() if k not in _BACKEND_ONLY and k != without}
            if "connection_info" in kept:
                kept["connection_info"] = bool(kept["connection_info"])
            return {key: self._named(value, without) for key, value in kept.items()}
        if isinstance(data, list):
            return [self._named(item, without) for item in data]
        if not isinstance(data, str):
            return data
        for name, value in self.names.items():
            data = data.replace(value, f"<{name}>")
        data = data.replace(self.endpoint, "<endpoint>")
        return _TIME.sub("<time>", _TRACEBACK.sub("", data))

    def new_volume(self, *, multi: bool) -> None:
        kind = self.kind + ("-multi" if multi else "")
        wanted = {"volume": {"size": 1, "volume_type": kind}}
        _, made = self.send(step("POST", "/volumes", wanted))
        self.names["v"] = made["volume"]["id"]
        deadline = time.monotonic() + READY_DEADLINE_S
        while self.send(SHOW_VOLUME)[1]["volume"]["status"] != "available":
            assert time.monotonic() < deadline, "the volume did not become available"
            time.sleep(0.05)

    def clean(self) -> None:
        self.send(action("os-reset_status", {"status": "available", "attach_status": "detached"}))
        self.send(step("DELETE", "/volumes/<v>"))


MULTIATTACH: tuple[Step, ...] = (
    *(step("POST", "/attachments", reserve(), save="a"), update("a"), complete("a")),
    step("POST", "/attachments", reserve("<s2>"), save="b"),
    step("POST", "/attachments", reserve("<s3>")),
    *(SHOW_VOLUME, update("b", connector("compute-b")), complete("b"), ROWS),
    *(action("os-reserve"), action("os-unreserve"), SHOW_VOLUME),
    action("os-detach", {}, service=True),
    *(action("os-begin_detaching"), action("os-roll_detaching"), SHOW_VOLUME),
    *(delete("b"), SHOW_VOLUME, delete("a"), SHOW_VOLUME),
)


@pytest.mark.parametrize(
    ("steps", "multi"),
    [
        pytest.param(NEW_FLOW, False, id="new-flow"),
        pytest.param(CREATE_CORNERS, False, id="create-corners"),
        pytest.param(RESETS, False, id="resets"),
        pytest.param(OLD_FLOW, False, id="old-flow"),
        pytest.param(CONVERSION, False, id="conversion"),
        pytest.param(ADMIN, False, id="admin"),
        pytest.param(MULTIATTACH, True, id="multiattach"),
    ],
)
def test_both_answer_alike(steps: tuple[Step, ...], multi: bool) -> None:
    servers = {name: new_uuid() for name in ("s1", "s2", "s3")}
    login = session.Session(auth=load_auth(lab_service().login))
    token = str(login.get_token())
    noauth = f"{login.get_user_id()}:{login.get_project_id()}"
    with running_cinder(CinderModel(driver="iscsi")) as running:
        real = Side(
            endpoint=str(LAB_ENDPOINT),
            kind=LAB_TYPE,
            user={"X-Auth-Token": token},
            service={"X-Service-Token": token},
            names=dict(servers),
        )
        simulated = Side(
            endpoint=running.endpoint,
            kind="iscsi",
            user={"X-Auth-Token": noauth},
            service={"X-Service-Roles": "service"},
            names=dict(servers),
        )
        real.new_volume(multi=multi)
        simulated.new_volume(multi=multi)
        try:
            for number, one in enumerate(steps):
                assert (number, one, simulated.send(one)) == (number, one, real.send(one))
        finally:
            real.clean()
