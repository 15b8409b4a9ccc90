"""What somebody does by hand on a hypervisor with real storage: found, mended, all else left."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from handlers.drift.judge import APART_S
from tests.lab.fabric.world import (
    ENV,
    OUTSIDE_S,
    Server,
    beginning,
    cinder,
    ledger,
    lv,
    operations,
    sessions,
    settled,
    vm,
    volumes,
    wait_until,
)

pytestmark = pytest.mark.lab
Make = Callable[[str], str]
Found = dict[tuple[str, str], Any]

RECORDS = "/var/lib/agent/locks/connections"
FILE = "/run/by-hand"
MAP = "/dev/disk/by-id/dm-uuid-mpath-"
GIB = 1 << 30
BOTH = "for a in 1 2; do ip address {} 10.90.0.$a/32 dev lo; done"
#: What other things than storage say of the servers that tests before this one had.
ELSEWHERE = frozenset({"volume_of_nobody"})


def look() -> None:
    """At everything, until it has ended."""
    asked = ledger("POST", "/v1/drift/runs", {})["look_id"]

    def ended() -> Any:
        found = ledger("GET", "/v1/drift/runs")["looks"]
        return [each for each in found if each["look_id"] == asked and each["state"] == "ended"]

    [seen] = wait_until(ended, "the look to end", OUTSIDE_S)
    assert seen["outcome"] == "completed", seen
    assert not seen["braked"], seen


def findings(state: str) -> Found:
    found = ledger("GET", f"/v1/drift?state={state}&limit=1000")["findings"]
    every = {(each["drift_class"], each["key"]): each for each in found}
    return {key: each for key, each in every.items() if key[0] not in ELSEWHERE}


def confirmed() -> Found:
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
    return str(ledger("GET", f"/v1/operations/{begun['operation_id']}")["outcome"])


def attachment(volume: str) -> str:
    [found] = cinder("GET", f"/attachments?volume_id={volume}")["attachments"]
    return str(found["id"])


class Behind:
    """A server with a volume of each storage, and what is done behind its back."""

    def __init__(self, server: Server, new_volume: Make) -> None:
        self.server = server
        self._new_volume = new_volume
        self.lio, self.nvmet = (self.attached(kind) for kind in ("lio", "nvmet"))

    def attached(self, kind: str) -> str:
        volume = self._new_volume(kind)
        self.server.ask_attach(volume)
        settled()
        assert volume in self.server.attachments()
        return volume

    @property
    def wwid(self) -> str:
        return self.server.sources()[self.lio].removeprefix(MAP)

    def leave_record(self) -> str:
        """As if the agent had died before it removed it."""
        volume = self.attached("lio")
        left = attachment(volume)
        vm(f"cp -p {RECORDS}/{left}.json /run/kept.json")
        self.server.ask_detach(volume)
        settled()
        vm(f"cp -p /run/kept.json {RECORDS}/{left}.json")
        return left

    def copy_record(self) -> str:
        """Of an attachment that never was: of a volume that stays connected by its own."""
        own, other = attachment(self.lio), str(uuid4())
        vm(f"sed s/{own}/{other}/ {RECORDS}/{own}.json >{RECORDS}/{other}.json")
        return other

    def assert_untouched(self) -> None:
        for volume in (self.lio, self.nvmet):
            assert volumes()[volume] == "in-use"
            assert beginning(self.server.sources()[volume]) == volume


def maps() -> set[str]:
    return set(vm("dmsetup ls --target multipath | grep -v '^No' | cut -f1").split())


@pytest.fixture
def behind(server: Server, new_volume: Make) -> Behind:
    return Behind(server, new_volume)


@pytest.fixture
def targets() -> Iterator[list[str]]:
    """Of nobody's, one of each storage: their names (by_hand.py)."""
    command = f"PYTHONPATH=. python3 tests/lab/fabric/by_hand.py {FILE}"
    vm(f"cd /opt/project; setsid env {command} >/var/log/by-hand.log 2>&1 </dev/null &")
    wait_until(lambda: vm(f"cat {FILE} 2>/dev/null || true"), "the targets")
    iqn, nqn = vm(f"cat {FILE}").split()
    yield [iqn, nqn]
    vm(f"nvme disconnect -n {nqn}; iscsiadm -m node -T {iqn} -u", check=False)
    vm(f"rm -f {FILE}")
    wait_until(lambda: not vm("pgrep -f [b]y_hand.py || true"), "the targets to go")


def log_in(behind: Behind, iqn: str, nqn: str) -> str:
    """To both of them; the map over the disks of the one."""
    vm(
        f"iscsiadm -m discovery -t st -p 10.90.0.1 && iscsiadm -m node -T {iqn} --login &&"
        f"iscsiadm -m node -T {iqn} -R && nvme connect -t tcp -a 10.90.0.1 -s 4421 -n {nqn}"
    )
    [wwid] = wait_until(lambda: maps() - {behind.wwid}, "the map of what was logged in to")
    return str(wwid)


def test_what_is_left_by_hand_is_found_and_nothing_else_is_touched(
    behind: Behind, targets: list[str]
) -> None:
    iqn, nqn = targets
    record, copy = behind.leave_record(), behind.copy_record()
    wwid = log_in(behind, iqn, nqn)
    left = ("iscsi_session", iqn), ("nvme_subsystem", nqn), ("multipath_map", wwid)
    found = confirmed()
    assert found.keys() == {
        ("record_left", record),
        ("connection_left", copy),
        *(("storage_left", f"{kind}/{name}") for kind, name in left),
    }
    for key in (("record_left", record), ("connection_left", copy)):
        assert repair(found[key]) == "completed"
        assert vm(f"ls {RECORDS}/{key[1]}.json 2>/dev/null || true") == ""
    behind.assert_untouched()
    assert maps() == {wwid, behind.wwid}, "what is nobody's is left, and told"
    assert sessions().count(iqn) == 2
    vm(f"multipath -f {wwid}; iscsiadm -m node -T {iqn} -u; nvme disconnect -n {nqn}")
    look()
    assert not findings("open")


def test_a_volume_without_a_path_is_found_until_it_has_one(behind: Behind) -> None:
    """Nothing is done about it unasked: its paths come back."""
    state = "cat /sys/class/nvme/nvme*/state"
    session = sessions()[0]
    subsystem = vm("cat /sys/class/nvme-subsystem/nvme-subsys*/subsysnqn")
    vm(BOTH.format("del"))
    wait_until(lambda: vm("multipath -ll").count("failed") >= 2, "multipathd to see it")
    wait_until(lambda: vm(state) != "live", "the controller of NVMe to see it")
    look()
    names = (
        f"multipath_map/{behind.wwid}",
        f"iscsi_session/{session}",
        f"nvme_subsystem/{subsystem}",
    )
    found = set(findings("open"))
    vm(BOTH.format("replace"))
    assert found == {("paths_faulty", name) for name in names}
    wait_until(lambda: vm("multipath -ll").count("active ready") == 2, "both paths to be back")
    wait_until(lambda: vm(state) == "live", "the controller to be back")
    look()
    assert not findings("open")
    behind.assert_untouched()


def test_a_volume_that_grew_behind_its_guest_is_found_and_told_to_it(behind: Behind) -> None:
    """As if Cinder's word of it had been lost."""
    server, both = behind.server, [behind.lio, behind.nvmet]
    database = f"{ENV['LAB_DIR']}/cinder/cinder.sqlite"
    for volume in both:
        vm(f"lvextend -q -L 2G {lv(volume)}")
        with sqlite3.connect(database, timeout=60) as cinders:
            cinders.execute("UPDATE volumes SET size = 2 WHERE id = ?", [volume])
    look()
    expected = {("disk_size_differs", f"{server.id}/{volume}") for volume in both}
    assert set(findings("open")) == expected
    about = {"name": "volume-extended", "server_uuid": server.id}
    events = [{**about, "tag": volume} for volume in both]
    ledger("POST", "/v2.1/os-server-external-events", {"events": events})
    wait_until(lambda: {server.size(each) for each in both} == {2 * GIB}, "the guest to see it")
    look()
    assert not findings("open")
    behind.assert_untouched()


def replace(server: Server, serial: str, after: str) -> None:
    """The device of a disk of the guest, live and as it is defined."""
    before, name = server.sources()[serial], server.name
    xml = f"/tmp/{name}-disk.xml"
    vm(
        f"set -e; virsh -q dumpxml {name} | python3 -c '{CUT}' {serial} >{xml};"
        f"virsh -q detach-device {name} {xml} --persistent;"
        f"sed -i s#{before}#{after}# {xml}; virsh -q attach-device {name} {xml} --persistent"
    )


#: The disk of a definition that has this serial, without what libvirt added.
CUT = (
    "import sys; from xml.etree import ElementTree as E; "
    'd = next(d for d in E.parse(sys.stdin).iterfind("devices/disk") '
    'if d.findtext("serial") == sys.argv[1]); '
    '[d.remove(d.find(t)) for t in ("alias", "backingStore") if d.find(t) is not None]; '
    'print(E.tostring(d, "unicode"))'
)


def test_another_volume_under_the_right_serial_is_found_and_is_not_let_go(
    behind: Behind, new_volume: Make
) -> None:
    """One that no guest has, or QEMU itself would refuse it."""
    server, volume = behind.server, behind.lio
    right, wrong = server.sources()[volume], lv(new_volume("lio"))
    replace(server, volume, wrong)
    look()
    assert ("disk_source_differs", f"{server.id}/{volume}") in findings("open")
    server.ask_detach(volume)
    settled()
    assert volumes()[volume] != "available"
    assert beginning(right) == volume, "it is connected still"
    assert server.sources()[volume] == wrong, "nobody has touched the guest's disk"
    replace(server, volume, right)
    server.ask_detach(volume)
    settled()
    assert volumes()[volume] == "available"


def test_what_dm_crypt_keeps_open_is_not_disconnected(behind: Behind) -> None:
    """All that is connected is left as it is, until it is closed: then the detach goes on."""
    server, volume = behind.server, behind.lio
    device = server.sources()[volume]
    vm(f"echo secret | cryptsetup open --type plain -c aes-xts-plain64 -s 256 {device} left")
    look()
    assert set(findings("open")) == {("storage_left", "crypt/left")}
    server.ask_detach(volume)
    wait_until(refused, "the host not to disconnect it")
    assert "map in use" in refused()
    assert volumes()[volume] != "available"
    assert beginning(device) == volume
    assert len(sessions()) == 2
    vm("cryptsetup close left")
    settled()
    assert volumes()[volume] == "available"
    assert sessions() == []
    look()
    assert not findings("open")
    assert beginning(server.sources()[behind.nvmet]) == behind.nvmet


#: Shell: gives the LUN of a volume's target to another store of LIO, in place of its own or back.
GIVE = (
    "cd /sys/kernel/config/target/iscsi/*{volume}/tpgt_1; "
    "lun=$(echo lun/lun_*); acl=$(echo acls/*/lun_*); "
    "rm $(find $acl/ -maxdepth 1 -type l) $(find $lun/ -maxdepth 1 -type l); "
    "ln -s {store} $lun/it; ln -s $PWD/$lun $acl/it"
)


def store_of(volume: str) -> str:
    at = f"/sys/kernel/config/target/iscsi/*{volume}/tpgt_1/lun/lun_*/"
    return vm(f"readlink -f $(find {at} -maxdepth 1 -type l)")


def new_store(volume: str) -> str:
    """Of LIO, over a volume that nobody has."""
    at = f"/sys/kernel/config/target/core/iblock_900/{volume}"
    vm(
        f"mkdir -p {at} && echo udev_path={lv(volume)} >{at}/control &&"
        f"echo {volume} >{at}/wwn/vpd_unit_serial && echo 1 >{at}/enable"
    )
    return at


def test_a_lun_that_the_storage_gives_to_another_volume_is_found(
    behind: Behind, new_volume: Make
) -> None:
    """Under a guest that runs: the kernel shows what it was, and the guest has the other one."""
    server, volume, other = behind.server, behind.lio, new_volume("lio")
    own, given = store_of(volume), new_store(other)
    vm(GIVE.format(volume=volume, store=given))
    assert beginning(server.sources()[volume]) == other
    look()
    assert set(findings("open")) == {("disk_source_differs", f"{server.id}/{volume}")}
    vm(GIVE.format(volume=volume, store=own))
    vm(f"rmdir {given} {given.rpartition('/')[0]}")
    look()
    assert not findings("open")
    behind.assert_untouched()


def refused() -> str:
    """Why a step did not work so far."""
    [at] = [each["at"] for each in operations()]
    return str((at["error"] or {}).get("message", ""))
