"""Servers that the service builds: they boot from a volume, or from another one instead."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from cinderclient import exceptions as cinder_errors

from tests.lab.control import (
    COMPLETE,
    CREATE,
    DELETE,
    SHOW,
    UPDATE,
    VOLUME_CREATE,
    VOLUME_DELETE,
    Lab,
    name_of,
)
from tests.lab.guest import MEMORY_MIB, LabGuest, node_of, wait_node, wait_until
from tests.lab.settings import SETTLE_S, WHEN, neighbours_in_quick, some, without_deaths
from tests.lab.world import VOLUME_GB, CliError

pytestmark = pytest.mark.lab

NewVolume = Callable[[str], str]
Build = Callable[..., LabGuest]


@pytest.fixture
def bootable(lab: Lab, new_volume: NewVolume, backend: str) -> Callable[[str], str]:
    """Makes volumes with a system that can be told from others."""

    def make(system: str) -> str:
        volume = new_volume(backend)
        lab.cloud.make_bootable(volume, system)
        return volume

    return make


@pytest.fixture
def build(lab: Lab, backend: str) -> Iterator[Build]:
    made: list[LabGuest] = []

    def built(root: str, *, by_client: bool = False) -> LabGuest:
        """A server that was asked for: it boots from that volume, and has another disk."""
        server = (client_builds if by_client else api_builds)(lab, root, backend)
        made.append(LabGuest(f"instance-{server[:8]}", server))
        return made[-1]

    yield built
    for guest in made:
        guest.remove()


def api_builds(lab: Lab, root: str, backend: str) -> str:
    wanted = {"size_gb": VOLUME_GB, "volume_type": backend}
    disks: list[Any] = [{"volume_id": root, "boot_index": 0}]
    disks += [{"create": wanted, "delete_on_termination": True}]
    return lab.ledger.build("lab-built", *disks)


def client_builds(lab: Lab, root: str, backend: str) -> str:
    """The same by Nova's POST /servers; the client waits until the server is ACTIVE."""
    disk = f"source_type=blank,destination_type=volume,volume_size={VOLUME_GB}"
    disk += f",volume_type={backend},delete_on_termination=true,tag=data"
    words = ["server", "create", "lab-built", "--flavor", f"c1.m{MEMORY_MIB}", "--no-network"]
    words += ["--volume", root, "--block-device", disk, "--wait", "-f", "json"]
    shown = lab.cloud.openstack(*words, OS_COMPUTE_API_VERSION="2.90")
    assert shown["status"] == "ACTIVE"
    return str(shown["id"])


def assert_built(lab: Lab, guest: LabGuest, root: str) -> str:
    assert lab.ledger.wait_outcome("boot", root)["outcome"] == "completed"
    lab.ledger.wait_status(guest.id, "ACTIVE")
    return assert_runs(lab, guest, root)


def assert_runs(lab: Lab, guest: LabGuest, root: str) -> str:
    """On one host, with two volumes; the one that was made for it."""
    [host] = guest.running_on()
    guest.moved_to(host)
    found = lab.cloud.openstack("server", "volume", "list", guest.id, "-f", "json")
    volumes = [str(item["Volume ID"]) for item in found]
    assert root in volumes
    [made] = [volume for volume in volumes if volume != root]
    for volume in volumes:
        assert [item.status for item in lab.cloud.attachments(volume)] == ["attached"]
        assert lab.cloud.attached_hosts(volume) == lab.cloud.users(volume) == [host]
    return made


def assert_boots(guest: LabGuest, system: str, disk: str) -> None:
    with guest.console() as console:
        console.wait_booted()
        assert f"system={system}" in console.run("cat /proc/cmdline")
        wait_node(console, disk)


def assert_deleted(lab: Lab, guest: LabGuest, root: str, made: str) -> None:
    """What was made for it is gone with it; what was there before is free."""
    assert lab.ledger.wait_outcome("delete", root)["outcome"] == "completed"
    assert lab.ledger.server_status(guest.id) is None
    assert guest.defined_on() == guest.running_on() == []
    assert lab.cloud.volume_status(root) == "available"
    assert lab.cloud.users(root) == []

    def gone() -> bool:
        try:
            return lab.cloud.volume_status(made) == ""
        except cinder_errors.NotFound:
            return True

    wait_until(gone, f"volume {made} to be deleted", SETTLE_S)


def delete(lab: Lab, guest: LabGuest) -> None:
    lab.cloud.openstack("server", "delete", guest.id)


@without_deaths
def test_a_server_boots_from_its_volume_and_what_was_made_for_it_goes_with_it(
    lab: Lab, build: Build, bootable: Callable[[str], str]
) -> None:
    root = bootable("red")
    guest = build(root)
    made = assert_built(lab, guest, root)
    assert_boots(guest, "red", made)
    delete(lab, guest)
    assert_deleted(lab, guest, root, made)


def test_the_unmodified_client_makes_a_server_of_a_volume_and_a_new_one(
    lab: Lab, build: Build, bootable: Callable[[str], str]
) -> None:
    root = bootable("red")
    guest = build(root, by_client=True)
    made = assert_built(lab, guest, root)
    assert_boots(guest, "red", made)
    delete(lab, guest)
    assert_deleted(lab, guest, root, made)


def known(lab: Lab) -> set[str]:
    return {str(volume.id) for volume in lab.cloud.cinder.volumes.list()}


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("call", some(VOLUME_CREATE, CREATE, COMPLETE), ids=name_of)
def test_the_service_dies_while_a_server_is_built_and_while_it_is_deleted(
    call: tuple[str, str], when: str, lab: Lab, build: Build, bootable: Callable[[str], str]
) -> None:
    root = bootable("red")
    before = known(lab)
    with lab.dying(lab.service, call, when):
        guest = build(root)
    made = assert_built(lab, guest, root)
    assert known(lab) - before == {made}, "it is made once"
    with lab.dying(lab.service, VOLUME_DELETE, when):
        delete(lab, guest)
    assert_deleted(lab, guest, root, made)


@pytest.mark.parametrize("when", WHEN)
def test_the_agent_dies_while_it_builds_a_server_and_while_it_deletes_it(
    when: str, lab: Lab, build: Build, bootable: Callable[[str], str]
) -> None:
    root = bootable("red")
    with lab.gate.hold(*COMPLETE, when) as wait_held:
        guest = build(root)
        wait_held()
        agent = lab.host(lab.ledger.operation("boot", root)["host"]).agent
        agent.kill()
    agent.start()
    made = assert_built(lab, guest, root)
    with lab.dying(agent, DELETE, when):
        delete(lab, guest)
    assert_deleted(lab, guest, root, made)


@neighbours_in_quick
@pytest.mark.parametrize("dies", some(True, False), ids=["nobody-dies", "agent-dies"].__getitem__)
def test_a_server_is_rebooted_by_what_cinder_says_of_its_volumes_now(
    dies: bool, lab: Lab, build: Build, bootable: Callable[[str], str]
) -> None:
    root = bootable("red")
    guest = build(root)
    made = assert_built(lab, guest, root)
    assert_boots(guest, "red", made)
    before = guest.domain.ID()
    reboot(lab, guest, root, dies=dies)
    operation = lab.ledger.wait_outcome("reboot", root)
    assert operation["outcome"] == "completed"
    done = {(step["volume_id"], step["step"]) for step in operation["steps"]}
    assert {(volume, "connect") for volume in (root, made)} <= done
    assert guest.domain.ID() != before, "a new start, with a new definition"
    assert assert_runs(lab, guest, root) == made
    assert_boots(guest, "red", made)
    delete(lab, guest)
    assert_deleted(lab, guest, root, made)


def reboot(lab: Lab, guest: LabGuest, root: str, *, dies: bool) -> None:
    """Its agent may die when libvirt is asked to stop the guest, or to start it anew."""
    ask = partial(lab.cloud.openstack, "server", "reboot", "--hard", guest.id)
    if not dies:
        ask()
        return
    host = lab.host(guest.host)
    with contextlib.ExitStack() as stopped:
        with lab.gate.hold(*SHOW, "after") as wait_held:
            ask()
            # Libvirt has said on what both disks are (decision 0090): what is left of their
            # connections is Cinder's answer and the host's own.
            wait_held(2)
            stopped.enter_context(host.libvirtd.stopped())
        lab.ledger.wait_step("reboot", root, "connect")
        host.agent.kill()
    host.agent.start()


@contextlib.contextmanager
def root_changed(
    lab: Lab, build: Build, bootable: Callable[[str], str]
) -> Iterator[tuple[LabGuest, str]]:
    """A server that had a red root and gets, meanwhile, the blue one: it boots from that."""
    red, blue = bootable("red"), bootable("blue")
    guest = build(red)
    made = assert_built(lab, guest, red)
    take_away = ("server", "remove", "volume", guest.id, red, "--wait")
    with pytest.raises(subprocess.CalledProcessError):  # it runs
        lab.ledger.as_user(*take_away)
    lab.cloud.openstack("server", "stop", guest.id)
    lab.ledger.wait_status(guest.id, "SHUTOFF")
    lab.ledger.as_user(*take_away)
    assert lab.cloud.volume_status(red) == "available"
    assert lab.cloud.attachments(red) == []
    with pytest.raises(CliError, match="without a root"):
        lab.cloud.openstack("server", "start", guest.id)

    yield guest, blue

    assert lab.ledger.wait_outcome("attach", blue)["outcome"] == "completed"
    lab.cloud.openstack("server", "start", guest.id)
    lab.ledger.wait_status(guest.id, "ACTIVE")
    assert assert_runs(lab, guest, blue) == made
    assert_boots(guest, "blue", made)
    with guest.console() as console:
        assert node_of(console, red) is None
    delete(lab, guest)
    assert_deleted(lab, guest, blue, made)


def add_root(lab: Lab, guest: LabGuest, volume: str) -> None:
    lab.ledger.as_user("server", "add", "volume", guest.id, volume, "--root")


@without_deaths
def test_a_stopped_server_boots_from_what_took_the_place_of_its_root(
    lab: Lab, build: Build, bootable: Callable[[str], str]
) -> None:
    with root_changed(lab, build, bootable) as (guest, blue):
        add_root(lab, guest, blue)


@neighbours_in_quick
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("call", some(UPDATE, COMPLETE), ids=name_of)
def test_the_agent_dies_while_a_root_is_attached(
    call: tuple[str, str], when: str, lab: Lab, build: Build, bootable: Callable[[str], str]
) -> None:
    with (
        root_changed(lab, build, bootable) as (guest, blue),
        lab.dying(lab.host(guest.host).agent, call, when),
    ):
        add_root(lab, guest, blue)
