"""The Brick and Storage ports over real iSCSI, multipath and NVMe over TCP.

They need those kernel modules, root, and the group `fab`: `make lab TIER=fabric` runs them in its
virtual machine, and says so by LEDGER_LAB_KERNEL.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from host_agent.config import BrickSection
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import ConnectionInfo, Encryption, OtherVolumeError, PortError
from host_agent.storage.brick import OsBrick
from host_agent.storage.kernel import KernelStorage
from tests.contracts import targets
from tests.contracts.targets import MIB, IscsiTarget, NvmeTarget, beginning, disks, run, sessions

pytestmark = [
    pytest.mark.lab,
    pytest.mark.filterwarnings("ignore:Using fork:DeprecationWarning"),
    pytest.mark.skipif(
        not os.environ.get("LEDGER_LAB_KERNEL"), reason="not in the virtual machine of the fabric"
    ),
]

AES = Encryption(provider="luks", key_id="k", cipher="aes-xts-plain64", key_size=256)
Make = Callable[..., Any]


@pytest.fixture
def brick(tmp_path: Path) -> Make:
    """os-brick as the agent has it, with other settings if a test asks."""

    def make(**settings: Any) -> OsBrick:
        chosen = {"use_multipath": True, "device_scan_attempts": 15} | settings
        section = BrickSection(my_ip="10.90.0.1", mount_point_base=str(tmp_path), **chosen)
        return OsBrick(section, "fabric-1", tmp_path / "locks")

    return make


def _clean() -> None:
    """Whatever a test that failed has left."""
    for command in ("multipath -F", "iscsiadm -m node -u", "nvme disconnect-all"):
        os.system(f"{command} >/dev/null 2>&1")


@pytest.fixture(params=[IscsiTarget, NvmeTarget])
def target(request: pytest.FixtureRequest) -> Iterator[IscsiTarget | NvmeTarget]:
    """Of each kind in turn; what a test leaves connected fails it."""
    made = request.param()
    try:
        yield made
        targets.until(lambda: not disks(), f"the devices to go: {disks()}")
        assert sessions() == []
    finally:
        _clean()
        made.remove()


iscsi = pytest.mark.parametrize("target", [IscsiTarget], indirect=True)
nvme = pytest.mark.parametrize("target", [NvmeTarget], indirect=True)


def new() -> str:
    return f"volume-{uuid.uuid4()}"


def present(device: Any, info: ConnectionInfo) -> bool | None:
    return KernelStorage().look().present(device, info)


def test_connect_answers_where_the_data_is_and_again_the_same(brick: Make, target: Any) -> None:
    name, port = new(), brick()
    info = target.add(name, 1)
    first = port.connect(info)
    assert first["type"] == "block"
    assert beginning(first["path"]) == name
    assert port.connect(info) == first
    assert present(first["device"], info)
    assert port.size(first) == KernelStorage().look().size(first["path"]) == 64 * MIB
    port.disconnect(info, first["device"])
    targets.until(lambda: not present(first["device"], info), "the device to go")
    port.disconnect(info, first["device"])


@pytest.mark.parametrize("encrypted", [False, True])
def test_what_nova_compute_has_connected_goes_without_a_record(
    brick: Make, target: Any, encrypted: bool
) -> None:
    """Its os-brick had other locks and the same names; one of two paths may be dead by then."""
    port, info = brick(), {**target.add(new(), 1), "encrypted": encrypted}
    connected = port.connect(info)
    if target.kind == "iscsi":
        [first] = Path("/dev/disk/by-path").glob(f"ip-{info['target_portal']}-*")
        Path(f"/sys/class/block/{first.resolve().name}/device/state").write_text("offline\n")
    brick().disconnect(info)
    targets.until(lambda: not present(connected["device"], info), "the device to go")
    assert not list(Path("/dev/disk/by-id").glob("os-brick*"))


def test_a_guest_gets_a_name_of_the_volumes_own_identity(brick: Make, target: Any) -> None:
    name, port = new(), brick()
    info = target.add(name, 1)
    connected = port.connect(info)
    at = Path(connected["path"])
    assert at.parent == Path("/dev/disk/by-id")
    kind = "dm-uuid-mpath-" if target.kind == "iscsi" else f"nvme-uuid.{info['vol_uuid']}"
    assert at.name.startswith(kind)
    port.disconnect(info, connected["device"])


def test_of_two_volumes_of_a_target_one_goes_and_the_other_stays(brick: Make, target: Any) -> None:
    one, other, port = new(), new(), brick()
    info, stays = target.add(one, 1), target.add(other, 2)
    gone, kept = port.connect(info), port.connect(stays)
    before = sessions()
    assert len(before) == (2 if target.kind == "iscsi" else 0)
    port.disconnect(info, gone["device"])
    target.take(one)  # as Cinder does then
    targets.until(lambda: not present(gone["device"], info), "the device to go")
    assert sessions() == before
    assert beginning(kept["path"]) == other
    assert present(kept["device"], stays)
    port.disconnect(stays, kept["device"])


def test_lp1419577_a_number_used_again_at_once_is_the_new_volumes(brick: Make, target: Any) -> None:
    """While another volume of the target keeps it connected."""
    first, second, keeper, port = new(), new(), new(), brick()
    stays = target.add(keeper, 2)
    kept = port.connect(stays)
    info = target.add(first, 1)
    was = port.connect(info)
    port.disconnect(info, was["device"])
    target.take(first)
    again = target.add(second, 1)
    got = port.connect(again)
    assert beginning(got["path"]) == second
    assert got["path"] != was["path"]
    assert not present(was["device"], info), "the recorded device is another volume's now"
    assert present(got["device"], again)
    assert beginning(kept["path"]) == keeper
    port.disconnect(again, got["device"])
    target.take(second)  # as Cinder does: a namespace goes only then
    port.disconnect(stays, kept["device"])


@iscsi
def test_lp1419577_a_lun_used_again_under_the_host_is_not_the_former_volume(
    brick: Make, target: Any
) -> None:
    """Taken away by the storage while it is connected here, and its number given to another one.

    The kernel keeps the disk, with the identity and size of the former volume.
    """
    keeper, first, second, port = new(), new(), new(), brick()
    stays, info = target.add(keeper, 2), target.add(first, 1)
    kept, was = port.connect(stays), port.connect(info)
    every = [was["path"], kept["path"]]
    assert KernelStorage().others(every) == set()
    target.take(first)
    again = target.add(second, 1, mib=128)
    assert KernelStorage().others(every) == {was["path"]}, "what a survey says of its guest"
    with pytest.raises(OtherVolumeError) as refused:
        port.connect(again)
    assert refused.value.code == "stale_device"
    port.disconnect(again, refused.value.device)  # as an operation does that cannot go on
    got = port.connect(again)
    assert beginning(got["path"]) == second
    assert got["path"] != was["path"]
    assert port.size(got) == 128 * MIB
    assert beginning(kept["path"]) == keeper
    port.disconnect(again, got["device"])
    port.disconnect(stays, kept["device"])


@contextlib.contextmanager
def opened(path: str) -> Iterator[int]:
    """As a guest's QEMU has it: past all caches."""
    file = os.open(path, os.O_RDWR | os.O_DIRECT)
    try:
        yield file
    finally:
        os.close(file)


def first_sector(file: int) -> str:
    with mmap.mmap(-1, 512) as sector:
        os.preadv(file, [sector], 0)
        return sector[:].rstrip(b"\0").decode()


@iscsi
@pytest.mark.parametrize("multipath", [True, False])
def test_who_has_the_former_volume_open_gets_errors_at_most(
    brick: Make, target: Any, multipath: bool
) -> None:
    """With multipath os-brick refuses while it has it, and it reads the other one's data.

    Without, the disk goes under it: it reads nothing, of which QEMU makes zeros, and cannot write.
    So an undo asks first which guest has it (refuse_if_open).
    """
    first, second, port = new(), new(), brick(use_multipath=multipath)
    info = target.add(first, 1)
    was = port.connect(info)
    with opened(was["path"]) as guest:
        assert first_sector(guest) == first
        target.take(first)
        again = target.add(second, 1)
        assert first_sector(guest) == second
        with pytest.raises(OtherVolumeError) as refused:
            port.connect(again)
        if multipath:
            with pytest.raises(PortError):
                port.disconnect(again, refused.value.device)
            assert first_sector(guest) == second
        else:
            port.disconnect(again, refused.value.device)
            assert first_sector(guest) == ""
            with pytest.raises(OSError, match="No space left"), mmap.mmap(-1, 512) as sector:
                os.pwritev(guest, [sector], 0)
    port.disconnect(again, refused.value.device)
    got = port.connect(again)
    assert beginning(got["path"]) == second
    port.disconnect(again, got["device"])


@nvme
def test_a_namespace_used_again_is_not_the_recorded_one(brick: Make, target: Any) -> None:
    """Taken away by the storage, and its number given to another volume, under the host."""
    keeper, first, second, port = new(), new(), new(), brick()
    stays, info = target.add(keeper, 2), target.add(first, 1)
    kept, was = port.connect(stays), port.connect(info)
    target.take(first)
    again = target.add(second, 1)
    own = was["device"]["path"]
    targets.until(lambda: present({"path": own}, {}) and beginning(own) == second, "the other one")
    view = KernelStorage().look()
    assert view.present({"path": own}, info) is False
    assert view.present({"path": own}, again) is True
    port.disconnect(again, {"path": own})
    target.take(second)
    port.disconnect(stays, kept["device"])


@iscsi
def test_a_map_without_a_working_path_is_faulty(brick: Make, target: Any) -> None:
    """The disks below it say "running" all the time."""
    name, port = new(), brick()
    info = target.add(name, 1)
    connected = port.connect(info)

    def faulty() -> bool:
        [found] = [each for each in KernelStorage().look().things if each.kind == "multipath_map"]
        return found.faulty

    assert not faulty()
    target.hide(name)
    targets.until(faulty, "the survey to see it")
    states = [path.read_text() for path in targets.BLOCK.glob("sd*/device/state")]
    assert set(states) == {"running\n"}
    target.show(name)
    targets.until(lambda: not faulty(), "the survey to see it again")
    port.disconnect(info, connected["device"])


def test_a_volume_in_use_grows(brick: Make, target: Any) -> None:
    name, port = new(), brick()
    info = target.add(name, 1)
    connected = port.connect(info)
    target.grow(name, 128)
    assert port.extend(info, connected) == 128 * MIB
    assert port.size(connected) == 128 * MIB
    port.disconnect(info, connected["device"])


@iscsi
@pytest.mark.parametrize("then", [True, False])
def test_lp1785669_use_multipath_is_changed_while_it_is_connected(
    brick: Make, target: Any, then: bool
) -> None:
    name = new()
    info = target.add(name, 1)
    connected = brick(use_multipath=then).connect(info)
    assert beginning(connected["path"]) == name
    brick(use_multipath=not then).disconnect(info, connected["device"])


@iscsi
def test_portals_in_another_order_are_the_same_connection(brick: Make, target: Any) -> None:
    name, port = new(), brick()
    info = target.add(name, 1)
    turned = {**info, "target_portals": info["target_portals"][::-1]}
    turned["target_portal"] = turned["target_portals"][0]
    connected = port.connect(info)
    assert port.connect(turned) == connected
    assert len(sessions()) == len(targets.ADDRESSES)
    port.disconnect(turned, connected["device"])


@iscsi
def test_lp2116553_sessions_logged_in_by_hand_are_in_nobodys_way_and_go_with_the_others(
    brick: Make, target: Any
) -> None:
    """Two by one portal, which have scanned nothing so far; os-brick 7.1.1 scans one of them."""
    name, port = new(), brick()
    info = target.add(name, 1)
    node = ("iscsiadm", "-m", "node", "-T", target.iqn, "-p", info["target_portals"][1])
    run("iscsiadm", "-m", "discovery", "-t", "st", "-p", targets.ADDRESSES[1])
    run(*node, "-o", "update", "-n", "node.session.nr_sessions", "-v", "2")
    run(*node, "--login")
    assert (len(sessions()), disks()) == (2, [])
    connected = port.connect(info)
    assert beginning(connected["path"]) == name
    assert len(sessions()) == 3
    assert len([each for each in disks() if each.startswith("sd")]) >= len(targets.ADDRESSES)
    port.disconnect(info, connected["device"])


@iscsi
def test_lp1924652_multipathd_forgets_the_paths_of_what_is_disconnected(
    brick: Make, target: Any
) -> None:
    port, info = brick(), target.add(new(), 1)
    connected = port.connect(info)
    assert len(paths_kept()) == len(targets.ADDRESSES)
    port.disconnect(info, connected["device"])
    targets.until(lambda: not paths_kept(), "multipathd to forget the paths")


def paths_kept() -> list[str]:
    told = run("multipathd", "show", "paths", "raw", "format", "%d").split()
    return [each for each in told if each != "ok"]  # that is what it says of none


@iscsi
def test_a_target_that_refuses_this_host_is_asked_again_later(brick: Make, target: Any) -> None:
    """As if its ACL had been lost; nothing is left meanwhile, and nothing is in the way then."""
    name, port = new(), brick()
    info = target.add(name, 1)
    target.allow(False)
    with pytest.raises(PortError) as refused:
        port.connect(info)
    assert (refused.value.kind, refused.value.code) == (ErrorKind.RETRYABLE, "connect_failed")
    assert (sessions(), disks()) == ([], [])
    target.allow(True)
    connected = port.connect(info)
    assert beginning(connected["path"]) == name
    port.disconnect(info, connected["device"])


@iscsi
@pytest.mark.parametrize("undone", [True, False])
def test_while_udev_hangs_one_path_is_not_taken_for_the_volume(
    brick: Make, target: Any, undone: bool
) -> None:
    """os-brick 7.1.1 returns it, and multipathd makes its map of both when udev goes on."""
    name, port = new(), brick()
    info = target.add(name, 1)
    with targets.udev_hangs():
        with pytest.raises(PortError) as refused:
            port.connect(info)
        if undone:
            port.disconnect(info)
            assert sessions() == []
    assert (refused.value.kind, refused.value.code) == (ErrorKind.RETRYABLE, "map_missing")
    got = port.connect(info)
    assert "multipath_id" in got["device"]
    assert beginning(got["path"]) == name
    port.disconnect(info, got["device"])


def test_what_is_held_is_not_disconnected(brick: Make, target: Any, tmp_path: Path) -> None:
    """Flushing a mounted device would succeed; removing it has to fail, and leave it."""
    if target.kind == "nvmeof":
        pytest.skip("a namespace is its storage's to take away")
    port, info = brick(), target.add(new(), 1)
    connected = port.connect(info)
    run("mke2fs", "-q", "-F", connected["path"])
    run("mount", connected["path"], str(tmp_path))
    try:
        view = KernelStorage().look()
        assert view.held(view.place(connected["path"]))
        with pytest.raises(PortError):
            port.disconnect(info, connected["device"])
        assert present(connected["device"], info)
    finally:
        run("umount", str(tmp_path))
    port.disconnect(info, connected["device"])


def test_what_dm_crypt_has_open_above_a_volume_is_shown(brick: Make, target: Any) -> None:
    port, info = brick(), target.add(new(), 1)
    connected = port.connect(info)
    plain = ("--type", "plain", "-c", "aes-xts-plain64", "-s", "256", "-d", "/dev/urandom")
    run("cryptsetup", "open", *plain, connected["path"], "left")
    try:
        [crypt] = [each for each in KernelStorage().look().things if each.kind == "crypt"]
        assert (crypt.name, crypt.held) == ("left", False)
    finally:
        run("cryptsetup", "close", "left")
    assert "crypt" not in {each.kind for each in KernelStorage().look().things}
    port.disconnect(info, connected["device"])


def test_a_volume_without_a_path_is_disconnected_for_good(brick: Make, target: Any) -> None:
    """At once or by another attempt, when its paths are back; nothing of it is left over."""
    port, info = brick(), target.add(new(), 1)
    connected = port.connect(info)
    with targets.unreachable(), contextlib.suppress(PortError):
        port.disconnect(info, connected["device"])
    port.disconnect(info, connected["device"])
    targets.until(lambda: not present(connected["device"], info), "the device to go")
    got = port.connect(info)
    assert beginning(got["path"]) == info["volume_id"]
    port.disconnect(info, got["device"])


def test_a_blank_device_becomes_luks_once(brick: Make, target: Any) -> None:
    name, port = new(), brick()
    info = {**target.add(name, 1), "encrypted": True}
    connected = port.connect(info)
    port.format_luks(connected, "passphrase", AES)
    first = run("cryptsetup", "luksDump", connected["path"])
    port.format_luks(connected, "passphrase", AES)
    assert run("cryptsetup", "luksDump", connected["path"]) == first
    target.grow(name, 128)
    grown = port.extend(info, connected)
    assert grown is not None
    assert 0 < 128 * MIB - grown < 8 * MIB, "all but the head of LUKS"
    port.disconnect(info, connected["device"])
