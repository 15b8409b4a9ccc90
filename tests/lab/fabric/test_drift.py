"""What somebody does by hand on a hypervisor with real storage: found, mended, all else left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from handlers.drift.judge import APART_S
from tests.lab.fabric.world import (
    Server,
    beginning,
    cinder,
    host_name,
    ledger,
    settled,
    vm,
    volumes,
    wait_until,
)

pytestmark = pytest.mark.lab
Make = Callable[[str], str]
NewServer = Callable[[int], Server]
Found = set[tuple[str, str]]

HOST = 2  # whose storage is another machine's
RECORDS = "/var/lib/agent/locks/connections"
FILE = "/run/by-hand"


def look() -> Any:
    """At everything; how it ended."""
    asked = ledger("POST", "/v1/drift/runs", {})
    path = f"/v1/drift/runs/{asked['look_id']}"

    def ended() -> Any:
        with contextlib.suppress(AssertionError):  # not written yet
            found = ledger("GET", path)
            return found["state"] == "ended" and found

    seen = wait_until(ended, "the look to end")
    assert seen["outcome"] == "completed", seen
    assert not seen["braked"], seen
    return seen


def findings(state: str) -> dict[tuple[str, str], Any]:
    found = ledger("GET", f"/v1/drift?state={state}&limit=1000")["findings"]
    return {(each["drift_class"], each["key"]): each for each in found}


def confirmed() -> dict[tuple[str, str], Any]:
    """What two looks have found."""
    look()
    first = time.monotonic()
    wait_until(lambda: time.monotonic() - first > APART_S, "the time between looks")
    look()
    return findings("confirmed")


def repair(finding: Any) -> str:
    body = {"reason": "planted by a test", "apply": True}
    begun = ledger("POST", f"/v1/drift/{finding['finding_id']}/repair", body)
    settled()
    operation = ledger("GET", f"/v1/operations/{begun['operation_id']}")
    return str(operation["outcome"])


def attachment(volume: str) -> str:
    [found] = cinder("GET", f"/attachments?volume_id={volume}")["attachments"]
    return str(found["id"])


class Behind:
    """A server with a volume of each storage, and what is done behind its back."""

    def __init__(self, server: Server, new_volume: Make) -> None:
        self.server = server
        self._new_volume = new_volume
        self.planted: Found = set()
        server.act("os-start")
        server.wait_status("ACTIVE")
        self.kept = {kind: self.attached(kind) for kind in ("lio", "nvmet")}

    def attached(self, kind: str) -> str:
        volume = self._new_volume(kind)
        self.server.ask_attach(volume)
        settled()
        assert volume in self.server.attachments()
        return volume

    def leave_record(self) -> str:
        """As if the agent had died before it removed it; of which volume."""
        volume = self.attached("lio")
        record = f"{RECORDS}/{attachment(volume)}.json"
        vm(f"cp -p {record} /run/kept.json", on=HOST)
        self.planted.add(("record_left", attachment(volume)))
        self.server.ask_detach(volume)
        settled()
        vm(f"cp -p /run/kept.json {record}", on=HOST)
        return volume

    def copy_record(self) -> None:
        """Of an attachment that never was: of a volume that stays connected by its own."""
        own, other = attachment(self.kept["lio"]), str(uuid4())
        vm(f"sed s/{own}/{other}/ {RECORDS}/{own}.json >{RECORDS}/{other}.json", on=HOST)
        self.planted.add(("connection_left", other))

    def log_in(self) -> None:
        """To a target of nobody's: two sessions, their disks, and the map over them."""
        iqn = vm(f"cat {FILE}")
        vm(
            f"iscsiadm -m discovery -t st -p 10.90.0.1 && iscsiadm -m node -T {iqn} --login &&"
            f"iscsiadm -m node -T {iqn} -R",
            on=HOST,
        )
        wwid = wait_until(lambda: maps() - {self.wwid()}, "the map of what was logged in to")
        self.planted |= {("storage_left", f"multipath_map/{each}") for each in wwid}
        self.planted.add(("storage_left", f"iscsi_session/{iqn}"))

    def connect(self, nqn: str) -> None:
        """To the subsystem of the other hypervisor."""
        vm(f"nvme connect -t tcp -a 10.90.0.1 -s 4420 -n {nqn}", on=HOST)
        self.planted.add(("storage_left", f"nvme_subsystem/{nqn}"))

    def wwid(self) -> str:
        source = self.server.sources()[self.kept["lio"]]
        return source.removeprefix("/dev/disk/by-id/dm-uuid-mpath-")

    def assert_untouched(self) -> None:
        for volume in self.kept.values():
            assert volumes()[volume] == "in-use"
            assert beginning(self.server.sources()[volume], on=HOST) == volume


def maps() -> set[str]:
    return set(vm("dmsetup ls --target multipath | grep -v '^No' | cut -f1", on=HOST).split())


@pytest.fixture
def target() -> Iterator[None]:
    """Of nobody's (by_hand.py)."""
    vm(
        f"cd /opt/project && setsid env PYTHONPATH=. python3 tests/lab/fabric/by_hand.py {FILE} "
        ">/var/log/by-hand.log 2>&1 </dev/null &"
    )
    wait_until(lambda: vm(f"cat {FILE} 2>/dev/null || true"), "the target")
    iqn = vm(f"cat {FILE}")
    yield
    vm(f"iscsiadm -m node -T {iqn} -u; multipath -f volume-by-hand; true", on=HOST, check=False)
    vm(f"rm -f {FILE}")
    wait_until(lambda: not vm("pgrep -f [b]y_hand.py || true"), "the target to go")


def test_what_is_left_by_hand_is_found_and_nothing_else_is_touched(
    new_server: NewServer, new_volume: Make, server: Server, target: None
) -> None:
    there = new_volume("nvmet")
    server.ask_attach(there)  # on the first host, which gives it its subsystem
    settled()
    behind = Behind(new_server(HOST), new_volume)
    gone = behind.leave_record()
    behind.copy_record()
    behind.log_in()
    behind.connect(subsystem(1))
    found = confirmed()
    mine = {key for key in found if key[0] not in ELSEWHERE}
    assert mine == behind.planted
    for key in sorted(behind.planted):
        if key[0] in ("record_left", "connection_left"):
            assert repair(found[key]) == "completed", key
            assert vm(f"ls {RECORDS}/{key[1]}.json 2>/dev/null || true", on=HOST) == ""
    behind.assert_untouched()
    assert volumes()[gone] == "available"
    vm(f"nvme disconnect -n {subsystem(1)}", on=HOST)
    assert beginning(server.sources()[there]) == there


#: What other things than hosts' storage say of other tests' servers.
ELSEWHERE = frozenset({"volume_of_nobody"})


def subsystem(host: int) -> str:
    """Of Cinder's: each host has one (cinder.volume.targets.nvmet)."""
    names = vm("ls /sys/kernel/config/nvmet/subsystems").split()
    return next(name for name in names if name.endswith(host_name(host)))
