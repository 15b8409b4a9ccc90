"""An image is written to the root volume of a server: `openstack server rebuild --image`.

The tests bring a Glance, which nothing else here needs.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from keystoneauth1 import adapter

from tests.lab.control import VOLUME_ACTION, Lab, Process
from tests.lab.guest import LabGuest
from tests.lab.people import person
from tests.lab.settings import ENV, LAB_DIR, LAB_SRC, without_deaths
from tests.lab.world import CliError, boot_image

pytestmark = pytest.mark.lab

#: pip may have to fetch it.
FILL_S = 600


@pytest.fixture(scope="module")
def glance() -> Iterator[adapter.Adapter]:
    """As the lab's member asks it."""
    process = Process("glance", "glance.sh", "up")
    there = process.runs()  # the lab of the conformance run
    if not there:
        subprocess.run([LAB_SRC / "glance.sh", "fill"], check=True, timeout=FILL_S)
        process.start()
    yield adapter.Adapter(person("member").session, endpoint_override=ENV["LAB_GLANCE_URL"])
    if not there:
        subprocess.run([LAB_SRC / "glance.sh", "down"], check=True, timeout=FILL_S)


@pytest.fixture
def image(glance: adapter.Adapter) -> Iterator[tuple[str, bytes]]:
    """One of the member's own that boots a blue system; its id, and its data."""
    wanted = {"name": "blue", "disk_format": "raw", "container_format": "bare"}
    made = str(glance.post("/v2/images", json=wanted).json()["id"])
    with tempfile.NamedTemporaryFile(dir=LAB_DIR / "run") as file:
        boot_image(Path(file.name), "blue")
        data = Path(file.name).read_bytes()
    kind = {"Content-Type": "application/octet-stream"}
    glance.put(f"/v2/images/{made}/file", data=data, headers=kind)
    yield made, data
    glance.delete(f"/v2/images/{made}")


@pytest.fixture
def root(lab: Lab, new_volume: Callable[[str], str], backend: str) -> str:
    volume = new_volume(backend)
    lab.cloud.make_bootable(volume, "red")
    return volume


@pytest.fixture
def guest(lab: Lab, root: str) -> Iterator[LabGuest]:
    """A server that runs from the red root."""
    server = lab.ledger.build("lab-imaged", {"volume_id": root, "boot_index": 0})
    built = LabGuest(f"instance-{server[:8]}", server)
    assert lab.ledger.wait_outcome("boot", root)["outcome"] == "completed"
    lab.ledger.wait_status(server, "ACTIVE")
    yield built
    built.remove()


def rebuild(lab: Lab, guest: LabGuest, image: str, version: str = "2.93") -> None:
    words = ["server", "rebuild", guest.id, "--image", image]
    words += ["--reimage-boot-volume"] if version == "2.93" else []
    lab.cloud.openstack(*words, OS_COMPUTE_API_VERSION=version)


def assert_imaged(lab: Lab, root: str) -> None:
    done = lab.ledger.wait_outcome("reimage", root)
    assert (done["outcome"], done["error"]) == ("completed", None)
    assert [item.status for item in lab.cloud.attachments(root)] == ["attached"]
    shown = lab.cloud.cinder.volumes.get(root)
    assert (shown.status, shown.bootable) == ("in-use", "true")


def assert_boots(guest: LabGuest, system: str) -> None:
    [host] = guest.running_on()
    guest.moved_to(host)
    with guest.console() as console:
        console.wait_booted()
        assert f"system={system}" in console.run("cat /proc/cmdline")


def test_a_running_server_boots_from_the_image_that_its_root_got(
    lab: Lab, guest: LabGuest, root: str, image: tuple[str, bytes]
) -> None:
    image_id, _ = image
    with pytest.raises(CliError, match="different image"):
        rebuild(lab, guest, image_id, version="2.92")
    rebuild(lab, guest, image_id)
    assert_imaged(lab, root)
    lab.ledger.wait_status(guest.id, "ACTIVE")
    assert_boots(guest, "blue")


@pytest.mark.parametrize(
    "dies",
    [pytest.param(False, marks=without_deaths, id="nobody-dies"), pytest.param(True, id="dies")],
)
def test_a_stopped_server_has_the_image_on_its_root_and_stays_stopped(
    dies: bool, lab: Lab, guest: LabGuest, root: str, image: tuple[str, bytes]
) -> None:
    """Cinder has taken the request, and its event finds nobody, if the service dies."""
    image_id, data = image
    lab.cloud.openstack("server", "stop", guest.id)
    lab.ledger.wait_status(guest.id, "SHUTOFF")
    assert lab.cloud.data(root, 0, len(data)) != data
    with lab.dying(lab.service, VOLUME_ACTION, "after") if dies else nullcontext():
        rebuild(lab, guest, image_id)
    assert_imaged(lab, root)
    lab.ledger.wait_status(guest.id, "SHUTOFF")
    assert lab.cloud.data(root, 0, len(data)) == data
    lab.cloud.openstack("server", "start", guest.id)
    lab.ledger.wait_status(guest.id, "ACTIVE")
    assert_boots(guest, "blue")
