"""A host goes from a real Nova to the ledger, is worked on, and goes back; Nova goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from host_agent.shared.contract.messages import PowerState
from host_agent.shared.contract.ports import Disk
from host_agent.shared.faults import Faults
from host_agent.simulated.adapters import SimulatedBrick, SimulatedGuests
from host_agent.simulated.host_state import HostState
from ledger.cli.errors import ExitCode
from tests.lab.nova.beside import NOVA_URL, Beside, act, beside, lab, waiting
from tests.lab.nova.cloud import NOVA_DOWN_S, NovaCloud, survey, wait_until
from tests.lab.settings import ENV, LAB_DIR, SETTLE_S
from tests.printed import printed

pytestmark = pytest.mark.lab

HOST = ENV["LAB_HOST"]


@pytest.fixture
def ledger() -> Iterator[Beside]:
    with beside() as running:
        try:
            yield running
        finally:  # who clears the cloud needs its host
            lab("exec ./nova.sh up")


@pytest.fixture
def cloud() -> Iterator[NovaCloud]:
    """Nova itself, as it is without us."""
    nova = NovaCloud(f"{NOVA_URL}/v2.1")
    try:
        yield nova
    finally:
        nova.openstack(f"openstack compute service set --enable {HOST} nova-compute")


def at(cloud: NovaCloud) -> str:
    """A server of Nova's on HOST."""
    server = cloud.server()
    if cloud.host(server) != HOST:
        cloud.migrate(server)
    return server


def as_connected(state: Path, cloud: NovaCloud, server: str) -> None:
    """What nova-compute has connected and put into the guest there."""
    shown = cloud.shown(server)
    guest = {"server_id": server, "power_state": PowerState.RUNNING.value, "name": shown["name"]}
    with HostState(state).edit() as stored:
        stored.setdefault("define", []).append({**guest, "project_id": shown["tenant_id"]})
    host = HostState(state, {})
    brick, guests = SimulatedBrick(host, Faults(), HOST), SimulatedGuests(host, Faults(), HOST)
    path = f"/servers/{server}/os-volume_attachments"
    for each in cloud.of_admin.get(path).json()["volumeAttachments"]:
        attachment = cloud.mappings(server)[each["volumeId"]]
        info = cloud.as_service.attachments.show(attachment).connection_info
        found = brick.connect({"driver_volume_type": info.get("driver_volume_type"), "data": info})
        source = {name: said for name, said in found.items() if name not in {"device", "format"}}
        name = each["device"].removeprefix("/dev/")
        guests.plug(
            server, Disk(serial=each["volumeId"], source=source, device_name=name, bus="virtio")
        )


def test_a_call_that_its_nova_compute_has_not_begun_is_seen_at_the_bus(cloud: NovaCloud) -> None:
    """Also one that is in its hands: the broker has given it away, and has no word of it yet.

    Our own question, a passive declaration, would not see that one (docs/decisions/0139).
    """
    server = at(cloud)
    pid = int((LAB_DIR / f"run/nova-{HOST}.pid").read_text().split()[0])
    assert not any(waiting(HOST).values())
    os.kill(pid, signal.SIGSTOP)
    try:
        cloud.act(server, reboot={"type": "HARD"})
        wait_until(lambda: waiting(HOST)[f"compute.{HOST}"], "it to wait")
    finally:
        os.kill(pid, signal.SIGCONT)
    cloud.wait_server(server)
    wait_until(lambda: not any(waiting(HOST).values()), "it to be taken")


def test_a_host_is_adopted_worked_on_and_handed_back(cloud: NovaCloud, ledger: Beside) -> None:
    server, first, second = at(cloud), cloud.volume(), cloud.volume()
    cloud.attach(server, first)
    ledger.until(first, "BlockDeviceMapping.DevicePlugged")
    cloud.openstack(printed("adopt.md", "openstack compute service set", hv1=HOST))
    assert not any(waiting(HOST).values())
    assert act(cloud, f"adopt {HOST} --dry-run", server)["state"] == "adoptable"
    lab(f"stop nova-{HOST}")
    assert act(cloud, f"adopt {HOST} --reason 'rack 3 first'", server)["state"] == "adopted"

    as_connected(ledger.home / "host.json", cloud, server)
    with ledger.agent(ledger.home / "host.json"):
        registered = lambda: ledger.get(f"/hosts/{HOST}").get("service_version")  # noqa: E731
        what = "the agent, which says more than that it is there"
        wait_until(registered, what, NOVA_DOWN_S + SETTLE_S)
        cloud.openstack(f"openstack server add volume {server} {second}")
        cloud.wait_status(second, "in-use")
        cloud.openstack(f"openstack server remove volume {server} {first}")
        cloud.wait_status(first, "available")
        cloud.openstack(f"openstack server reboot --hard --wait {server}")
    wait_until(lambda: not ledger.get(f"/hosts/{HOST}").get("alive"), "it to be known as away")

    refused = act(cloud, f"hand-back {HOST} --dry-run", server, code=ExitCode.NOT_ALL)
    assert refused["state"] == "stays"
    cloud.nova_row(refused["sql"])
    passed = act(cloud, f"hand-back {HOST} --reason 'not yet after all'", server)
    assert passed["state"] == "handed_back"

    lab("exec ./nova.sh up")
    cloud.openstack(f"openstack compute service set --enable {HOST} nova-compute")
    services = f"/os-services?binary=nova-compute&host={HOST}"
    up = lambda: '"up"' in cloud.of_admin.get(services).text  # noqa: E731
    wait_until(up, "Nova to hear of its host again")
    root = set(cloud.mappings(server)) - {second}
    assert len(root) == 1
    cloud.bring(server, "ACTIVE", reboot={"type": "HARD"})
    assert set(cloud.mappings(server)) == {*root, second}
    assert {cloud.status(each) for each in (*root, second)} == {"in-use"}
    cloud.detach(server, second)
    given = cloud.attach(server, first)
    ledger.until(second, "Attachment.Deleted")
    told = lambda: given in {each["attachment_id"] for each in ledger.history(first)}  # noqa: E731
    wait_until(told, "the attach to be seen")
    cloud.migrate(server)
    ledger.until(first, "BlockDeviceMapping.AttachmentSwitched")
    assert survey("--apart", "1s")[:2] == (0, [])
