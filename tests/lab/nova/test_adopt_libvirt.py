"""A guest that Nova's libvirt driver has made goes over to the ledger while it writes, is worked on
by the agent, and goes back; Nova goes on.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import libvirt
import pytest

from handlers.drift.judge import APART_S
from ledger.cli.errors import ExitCode
from tests.lab.guest import LabGuest, libvirt_of, node_of, wait_node
from tests.lab.nova.beside import (
    NOVA_URL,
    SLOW_S,
    URL,
    Beside,
    act,
    agents_settings,
    beside,
    lab,
    waiting,
)
from tests.lab.nova.cloud import NOVA, NOVA_DOWN_S, NovaCloud, survey, wait_until
from tests.lab.settings import ENV, LAB_DIR, SETTLE_S
from tests.lab.test_encryption import MARKER, read, write
from tests.lab.world import Cloud as World
from tests.lab.world import share_file
from tests.lab.writing import Writer, assert_written
from tests.printed import printed

pytestmark = pytest.mark.lab

HOST = ENV["LAB_HOST_2"]
FAKES = (ENV["LAB_HOST"], "compute-2")
LEDGER = f"{ENV['LAB_VENV']}/bin/attachment-ledger"
RECORDS = LAB_DIR / "locks-2/connections"
#: Where nova-compute has the share mounted, and the agent finds it.
SHARE = LAB_DIR / "mnt-agent-2"
#: Where the host's libvirt keeps secrets that are not in its memory alone.
KEYS = Path(ENV["LAB_HOST_2_DIR"]) / "etc/secrets"


@pytest.fixture
def cloud() -> Iterator[NovaCloud]:
    """Nova itself, whose servers come to the host with libvirt."""
    nova = NovaCloud(f"{NOVA_URL}/v2.1")
    if "nfs" not in {each.name for each in nova.admin.volume_types.list()}:
        pytest.skip("up.sh has found no namespaces, or no mounts, to be had")
    try:
        lab("exec ./nova.sh hypervisor")
        for each in (HOST, *FAKES):
            nova.set_service(each, status="enabled" if each == HOST else "disabled")
        yield nova
    finally:
        try:
            # Not deleted: Nova would take the deleted one for that of servers made there later.
            for each in (*FAKES, HOST):
                nova.set_service(each, status="disabled" if each == HOST else "enabled")
        finally:
            lab(f"stop nova-{HOST}; ./hosts.sh down; rm -rf {RECORDS.parent}")


@pytest.fixture
def ledger(cloud: NovaCloud) -> Iterator[Beside]:
    with beside() as running:
        try:
            yield running
        finally:  # who clears the cloud needs its host
            lab("exec ./nova.sh hypervisor")


def change(ours: NovaCloud, server: str, volume: str, *, attach: bool) -> None:
    """By the ledger, in Nova's words."""
    path = f"/servers/{server}/os-volume_attachments"
    if attach:
        body = {"volumeAttachment": {"volumeId": volume}}
        asked = ours.of_member.post(path, json=body, headers=NOVA, raise_exc=False)
    else:
        asked = ours.of_member.delete(f"{path}/{volume}", headers=NOVA, raise_exc=False)
    assert asked.ok, asked.text
    ours.wait_status(volume, "in-use" if attach else "available")


def assert_has(guest: LabGuest, *volumes: str) -> None:
    """These disks and no others, by their serials, live and defined alike, each on its file."""
    assert guest.disks() == (len(volumes), len(volumes))
    for volume in volumes:
        assert guest.disk(volume) == guest.disk(volume, persistent=True) is not None
        source = str(guest.source(volume))
        assert source == guest.source(volume, persistent=True)
        assert Path(source).parent.parent == SHARE
        assert Path(source).name == f"volume-{volume}"


def assert_seen(guest: LabGuest, *volumes: str) -> None:
    """The guest boots, and finds these."""
    with guest.console() as console:
        console.wait_booted()
        for volume in volumes:
            wait_node(console, volume)


def assert_no_finding(cloud: NovaCloud, ledger: Beside) -> None:
    cloud.openstack(f"{LEDGER} drift run --host {HOST} --wait")
    found = [each for state in ("suspected", "confirmed") for each in ledger.findings(state)]
    assert found == []


def adopt(cloud: NovaCloud, server: str) -> None:
    cloud.openstack(printed("adopt.md", "openstack compute service set", hv1=HOST))
    assert not any(waiting(HOST).values())
    assert act(cloud, f"adopt {HOST} --dry-run", server)["state"] == "adoptable"
    lab(f"stop nova-{HOST}")
    assert act(cloud, f"adopt {HOST} --reason 'rack 3 first'", server)["state"] == "adopted"


def wait_shown(ledger: Beside, server: str) -> None:
    def shown() -> bool:
        topics = [each["topic"] for each in ledger.events(f"/servers/{server}")]
        return "Instance.InstanceObserved" in topics[topics.index("Instance.Adopted") :]

    wait_until(shown, "the agent to show the guest as it was adopted", NOVA_DOWN_S + SETTLE_S)


def connect_anew(cloud: NovaCloud, ledger: Beside, *volumes: str) -> None:
    """So that the agent has records of what nova-compute has connected."""
    cloud.openstack(f"{LEDGER} attachment refresh --host {HOST} --wait")
    recorded = {json.loads(each.read_text())["serial"] for each in RECORDS.glob("*.json")}
    assert recorded == {*volumes}
    assert_no_finding(cloud, ledger)


def hand_back(cloud: NovaCloud, ledger: Beside, server: str) -> None:
    wait_until(lambda: not ledger.get(f"/hosts/{HOST}").get("alive"), "it to be known as away")
    told = act(cloud, f"hand-back {HOST} --dry-run", server, code=ExitCode.NOT_ALL)
    cloud.nova_row(told["sql"])
    passed = act(cloud, f"hand-back {HOST} --reason 'not yet after all'", server)
    assert passed["state"] == "handed_back"
    lab("exec ./nova.sh hypervisor")
    cloud.set_service(HOST, status="enabled")
    wait_until(lambda: cloud.service(HOST)["state"] == "up", "Nova to hear of its host")
    # By its hard reboot Nova would leave out each volume that it has no connection of.
    for act_, status in (("shelve", "SHELVED_OFFLOADED"), ("unshelve", "ACTIVE")):
        cloud.openstack(printed("adopt.md", f"openstack server {act_}", SERVER=server))
        cloud.wait_server(server, status)


def test_a_guest_of_libvirt_is_adopted_worked_on_and_handed_back(
    cloud: NovaCloud, ledger: Beside
) -> None:
    world, ours = World(), NovaCloud(f"{URL}/v2.1")
    root, first, second, third = (cloud.volume("nfs") for _ in range(4))
    world.make_bootable(root, "root")
    server = cloud.server(root)
    assert cloud.host(server) == HOST
    cloud.attach(server, first)
    cloud.attach(server, second)
    ledger.until(second, "BlockDeviceMapping.DevicePlugged")
    guest = LabGuest("of Nova", server, HOST)
    assert_has(guest, root, first, second)
    assert_seen(guest, root, first, second)

    with guest.console() as console:
        writer = Writer(console, wait_node(console, first))
        defined = guest.domain.XMLDesc()
        adopt(cloud, server)
        with ledger.real_agent():
            wait_shown(ledger, server)
            connect_anew(cloud, ledger, root, first, second)
            assert guest.domain.XMLDesc() == defined
            writer.wait_progress(console)
            change(ours, server, third, attach=True)
            wait_node(console, third)
            change(ours, server, second, attach=False)
            assert node_of(console, second) is None
            change(ours, server, second, attach=True)
            wait_node(console, second)
            last = writer.stop(console)
            change(ours, server, first, attach=False)
            assert_written(lambda offset, length: world.data(first, offset, length), last)
            assert_has(guest, root, second, third)
            ours.bring(server, "ACTIVE", reboot={"type": "HARD"})
            assert_has(guest, root, second, third)
            assert_seen(guest, root, second, third)
            assert_no_finding(cloud, ledger)
    hand_back(cloud, ledger, server)
    assert_has(guest, root, second, third)
    cloud.bring(server, "ACTIVE", reboot={"type": "HARD"})
    assert set(cloud.mappings(server)) == {root, second, third}
    assert_has(guest, root, second, third)
    assert_seen(guest, root, second, third)
    cloud.detach(server, second)
    cloud.attach(server, first)
    assert_has(guest, root, third, first)
    cloud.detach(server, first)
    assert_written(lambda offset, length: world.data(first, offset, length), last)
    ledger.until(first, "Attachment.Deleted", 2)
    assert survey("--apart", "1s")[:2] == (0, [])


# --- not adopted: what its host shows -----------------------------------------------------------


def unplug_by_hand(guest: LabGuest, volume: str) -> None:
    """From the guest and its definition, as with virsh."""
    both = libvirt.VIR_DOMAIN_AFFECT_LIVE | libvirt.VIR_DOMAIN_AFFECT_CONFIG
    disks = ET.fromstring(guest.domain.XMLDesc()).iterfind("devices/disk")
    [disk] = [each for each in disks if each.findtext("serial") == volume]
    guest.domain.detachDeviceFlags(ET.tostring(disk, encoding="unicode"), both)
    wait_until(lambda: guest.disk(volume) is None, "the guest to let it go")


def test_what_a_host_of_novas_sends_is_a_finding_that_is_over_once_it_is_mended(
    cloud: NovaCloud, ledger: Beside
) -> None:
    """It runs no agent: its survey is sent again and again, as by the timer."""
    root, volume = cloud.volume("nfs"), cloud.volume("nfs")
    World().make_bootable(root, "root")
    server = cloud.server(root)
    cloud.attach(server, volume)
    ledger.until(volume, "BlockDeviceMapping.DevicePlugged")
    guest = LabGuest("of Nova", server, HOST)
    assert_seen(guest, root, volume)
    program = f"{ENV['LAB_VENV']}/bin/attachment-ledger-agent"
    send = f"$(enter 2) {program} survey --send --config {agents_settings()}"

    def open_ones() -> list[dict[str, Any]]:
        lab(send)
        return [each for state in ("suspected", "confirmed") for each in ledger.findings(state)]

    def surveyed() -> bool:
        """Whether a look had the host's survey."""
        assert open_ones() == []
        return '"hosts": 1' in ledger.log.read_text() or "hosts=1" in ledger.log.read_text()

    wait_until(surveyed, "a look with a survey", SETTLE_S + 2 * APART_S + SLOW_S)
    unplug_by_hand(guest, volume)
    [found] = wait_until(open_ones, "what is missing", SETTLE_S + 3 * APART_S + SLOW_S)
    assert (found["drift_class"], found["host"]) == ("disk_missing", HOST)
    assert (found["server_id"], found["volume_id"]) == (server, volume)
    told = ledger.get(f"/drift/{found['finding_id']}")["by_hand"]
    [command] = re.findall(r"`(openstack [^`]+)`", told)
    cloud.openstack(command)
    cloud.wait_server(server)
    assert_has(guest, root, volume)
    wait_until(lambda: not open_ones(), "it to be over", SETTLE_S + 3 * APART_S + SLOW_S)
    [host] = ledger.get("/hosts?observed=true")["observed"]
    assert (host["host"], host["surveyed_at"] is not None) == (HOST, True)
    assert not RECORDS.exists(), "it has connected nothing"


# --- encrypted volumes --------------------------------------------------------------------------


def encrypted(world: World) -> str:
    """With LUKS at its beginning, as a block backend has it.

    Cinder's NFS driver (29) makes a qcow2 file and says that it is raw; Nova (34) sees no LUKS
    there, and writes a new header over the file.
    """
    volume = world.create_encrypted("nfs")[-1]
    create = ["qemu-img", "create", "-q", "-f", "luks", "-o", "key-secret=key,iter-time=10"]
    create += ["--object", f"secret,id=key,data={ENV['LAB_FIXED_KEY']}"]
    create += [str(share_file(world.backend_name(volume))), "1020M"]  # within Cinder's GiB
    made = lambda: subprocess.run(create, check=False).returncode == 0  # noqa: E731
    wait_until(made, "qemu-img to format it")
    return volume


def secrets() -> dict[str, str]:
    """By volume: the uuid of the secret that the host's libvirt has for it."""
    found = libvirt_of(HOST).listAllSecrets()
    return {each.usageID(): each.UUIDString() for each in found}


def stored() -> set[str]:
    """The secrets that are in files, as their definitions and values."""
    return {each.stem for each in KEYS.glob("*")}


def assert_unreadable(world: World, volume: str) -> None:
    """The share has LUKS, and not what the guest wrote."""
    data = world.data(volume, 0, 8 << 20)
    assert data.startswith(b"LUKS\xba\xbe")
    assert MARKER not in data


def test_an_encrypted_volume_is_readable_whoever_has_its_guest(
    cloud: NovaCloud, ledger: Beside
) -> None:
    """By Nova's secret, until the agent connects it; then by the agent's, in memory alone."""
    world, ours = World(), NovaCloud(f"{URL}/v2.1")
    root, first, second = cloud.volume("nfs"), encrypted(world), encrypted(world)
    world.make_bootable(root, "root")
    server = cloud.server(root)
    for volume in (first, second):
        cloud.attach(server, volume)
        ledger.until(volume, "BlockDeviceMapping.DevicePlugged")
    guest = LabGuest("of Nova", server, HOST)
    assert_seen(guest, root, first, second)
    novas = secrets()
    assert (set(novas), stored()) == ({first, second}, set(novas.values()))

    with guest.console() as console:
        write(console, first)
        adopt(cloud, server)
        with ledger.real_agent():
            wait_shown(ledger, server)
            change(ours, server, second, attach=False)  # by what Cinder says alone
            assert secrets() == {first: novas[first]}
            defined = guest.domain.XMLDesc()
            connect_anew(cloud, ledger, root, first)
            assert guest.domain.XMLDesc() == defined
            assert (secrets(), stored()) == ({first: novas[first]}, set())
            assert read(console, first) == MARKER.decode()
            ours.bring(server, "ACTIVE", reboot={"type": "HARD"})
            assert_seen(guest, root, first)
            work_on_encrypted(ours, guest, first)
            assert_has(guest, root, first)
            assert_no_finding(cloud, ledger)
    assert_unreadable(world, first)
    hand_back(cloud, ledger, server)

    cloud.bring(server, "ACTIVE", reboot={"type": "HARD"})
    assert_has(guest, root, first)
    assert_seen(guest, root, first)
    with guest.console() as console:
        assert read(console, first) == MARKER.decode()
    cloud.detach(server, first)
    assert (secrets(), stored()) == ({}, set())
    assert_unreadable(world, first)
    ledger.until(first, "Attachment.Deleted", 2)
    assert survey("--apart", "1s")[:2] == (0, [])


def work_on_encrypted(ours: NovaCloud, guest: LabGuest, volume: str) -> None:
    """By the agent: its secret is there as long as the disk is."""
    with guest.console() as console:
        assert read(console, volume) == MARKER.decode()
        change(ours, guest.id, volume, attach=False)
        assert (secrets(), stored()) == ({}, set())
        change(ours, guest.id, volume, attach=True)
        assert secrets() == {volume: volume}
        assert read(console, volume) == MARKER.decode()
