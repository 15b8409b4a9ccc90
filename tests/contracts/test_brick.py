"""The Brick port: one behaviour, simulated and over the real os-brick.

The LOCAL connector needs neither root, sudo nor a backend, so it runs anywhere; NFS needs
root and a `mount.nfs`, so it is of the lab (LEDGER_LAB_NFS_EXPORT=<server:/path>).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from oslo_concurrency import processutils

from host_agent.config import BrickSection
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import (
    Brick,
    ConnectionInfo,
    Encryption,
    OtherVolumeError,
    PortError,
)
from host_agent.shared.faults import Faults
from host_agent.simulated.adapters import SimulatedBrick
from host_agent.simulated.host_state import HostState
from host_agent.storage.brick import OsBrick

# oslo.privsep imports eventlet, which warns at every fork from then on.
pytestmark = pytest.mark.filterwarnings("ignore:Using fork:DeprecationWarning")

RBD = {
    "driver_volume_type": "rbd",
    "name": "volumes/volume-1",
    "hosts": ["192.0.2.11", "[2001:db8::1]"],
    "ports": ["6789", "6790"],
    "auth_enabled": True,
    "auth_username": "cinder",
    "secret_uuid": "457eb676-33da-42ec-9a8c-9293d545c337",
    "keyring": "[client.cinder] key = topsecret==",
}


@pytest.fixture(autouse=True)
def _without_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    """What os-brick does as root it does in this process; none of it needs root here."""
    monkeypatch.setattr("os.geteuid", lambda: 0)


@pytest.fixture
def volume(tmp_path: Path) -> ConnectionInfo:
    path = tmp_path / "volume-1"
    path.write_bytes(b"\0" * 4096)
    return {"driver_volume_type": "local", "device_path": str(path), "volume_id": "volume-1"}


def real(tmp_path: Path, **settings: Any) -> OsBrick:
    section = BrickSection(my_ip="192.0.2.1", mount_point_base=str(tmp_path / "mnt"), **settings)
    return OsBrick(section, "compute-1", tmp_path / "locks")


@pytest.fixture(params=["simulated", "os-brick"])
def brick(request: pytest.FixtureRequest, tmp_path: Path) -> Brick:
    if request.param == "simulated":
        return SimulatedBrick(HostState(), Faults(), "compute-1")
    return real(tmp_path)


def test_connector_names_this_host_and_its_address(brick: Brick) -> None:
    connector = brick.connector()
    assert connector["host"] == "compute-1"
    assert connector["ip"] == "192.0.2.1"
    assert connector["platform"]
    assert connector["multipath"] is False


def test_connect_answers_where_the_data_is_and_again_the_same(
    brick: Brick, volume: ConnectionInfo
) -> None:
    first = brick.connect(volume)
    assert first["path"] == volume["device_path"]
    assert first["type"] in ("file", "block")
    assert first["format"] == "raw"
    assert brick.connect(volume) == first


def test_format_is_what_the_driver_says(brick: Brick, volume: ConnectionInfo) -> None:
    assert brick.connect({**volume, "format": "qcow2"})["format"] == "qcow2"


def test_disconnect_is_success_again_and_again(brick: Brick, volume: ConnectionInfo) -> None:
    brick.connect(volume)
    brick.disconnect(volume)
    brick.disconnect(volume)


def test_disconnect_of_what_was_never_connected_is_success(
    brick: Brick, volume: ConnectionInfo
) -> None:
    brick.disconnect(volume)


def test_rbd_is_a_network_disk_and_its_key_stays_behind(brick: Brick) -> None:
    source = brick.connect(RBD)
    assert source == {
        "type": "network",
        "protocol": "rbd",
        "name": "volumes/volume-1",
        "hosts": [["192.0.2.11", "6789"], ["2001:db8::1", "6790"]],
        "auth": {"user": "cinder", "secret_uuid": RBD["secret_uuid"]},
        "format": "raw",
    }
    brick.disconnect(RBD)


@pytest.mark.parametrize(
    "broken",
    [{}, {"driver_volume_type": "rbd", "name": "no-pool"}, {**RBD, "hosts": ["192.0.2.11"]}],
)
def test_unusable_connection_information_is_final_and_not_shown(
    brick: Brick, broken: ConnectionInfo
) -> None:
    with pytest.raises(PortError) as raised:
        brick.connect(broken)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "bad_connection_info")
    assert "topsecret" not in raised.value.message
    assert "192.0.2.11" not in raised.value.message


AES = Encryption(provider="luks", key_id="k", cipher="aes-xts-plain64", key_size=256)


def test_file_is_never_made_luks_for_cinder_has_done_that(
    brick: Brick, volume: ConnectionInfo
) -> None:
    source = brick.connect(volume)
    before = Path(volume["device_path"]).read_bytes()
    brick.format_luks(source, "passphrase", AES)
    assert Path(volume["device_path"]).read_bytes() == before


def test_an_image_of_ceph_is_never_made_luks_for_cinder_has_done_that(brick: Brick) -> None:
    source = brick.connect(RBD)
    brick.format_luks(source, "passphrase", AES)
    assert brick.connect(RBD) == source


# --- what only the real one can show ----------------------------------------------------------


def test_every_protocol_of_os_brick_is_offered(tmp_path: Path) -> None:
    offered = real(tmp_path).drivers()
    assert {"iscsi", "fibre_channel", "nvmeof", "nfs", "rbd", "local"} <= set(offered)


def test_unknown_protocol_is_final(tmp_path: Path) -> None:
    with pytest.raises(PortError) as raised:
        real(tmp_path).connect({"driver_volume_type": "carrier_pigeon"})
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "not_connectable")


@pytest.mark.parametrize("encrypted", [True, False])
def test_encrypted_file_is_what_it_is_and_any_other_what_the_driver_says(
    tmp_path: Path, volume: ConnectionInfo, encrypted: bool
) -> None:
    """A guest may have written the other one's beginning."""
    Path(volume["device_path"]).write_bytes(b"QFI\xfb" + b"\0" * 4092)
    source = real(tmp_path).connect({**volume, "format": "raw", "encrypted": encrypted})
    assert source["format"] == ("qcow2" if encrypted else "raw")


def test_device_that_is_not_there_after_connecting_is_retryable(
    tmp_path: Path, volume: ConnectionInfo
) -> None:
    Path(volume["device_path"]).unlink()
    with pytest.raises(PortError) as raised:
        real(tmp_path).connect(volume)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.RETRYABLE, "device_missing")


def test_ceph_without_a_secret_says_what_to_do(tmp_path: Path) -> None:
    nameless = {key: value for key, value in RBD.items() if key != "secret_uuid"}
    with pytest.raises(PortError, match="rbd_secret_uuid"):
        real(tmp_path).connect(nameless)
    own = real(tmp_path, rbd_secret_uuid="s-1").connect(nameless)
    assert own["auth"]["secret_uuid"] == "s-1"


class BrokenConnector:
    """Stands for a connector whose device cannot be flushed, or whose paths do not show."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.forced: list[Any] = []

    def get_volume_paths(self, _info: Any) -> list[str]:
        return ["/dev/broken"]

    def connect_volume(self, _info: Any) -> Any:
        raise self.error

    def disconnect_volume(self, _info: Any, _device: Any, **options: Any) -> None:
        self.forced.append(options)
        raise self.error


@pytest.fixture
def broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Exception], tuple[OsBrick, BrokenConnector]]:
    def make(error: Exception) -> tuple[OsBrick, BrokenConnector]:
        brick, connector = real(tmp_path), BrokenConnector(error)
        monkeypatch.setattr(brick, "_connector_for", lambda _kind, _info, **_: connector)
        return brick, connector

    return make


def test_lp1502534_failed_flush_is_an_error_and_never_forced(broken: Any) -> None:
    error = processutils.ProcessExecutionError(
        cmd="blockdev --flushbufs /dev/broken", exit_code=1, stderr="Input/output error"
    )
    brick, connector = broken(error)
    with pytest.raises(PortError) as raised:
        brick.disconnect({"driver_volume_type": "iscsi"})
    assert raised.value.code == "flush_failed"
    assert raised.value.kind is ErrorKind.UNKNOWN
    assert connector.forced == [{}]


def test_a_host_that_cannot_tell_its_connector_now_may_tell_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """multipathd may come up again; nothing has happened."""

    def fail(*_args: Any, **_options: Any) -> None:
        raise RuntimeError("multipathd is down")

    brick = real(tmp_path)
    monkeypatch.setattr("os_brick.initiator.connector.get_connector_properties", fail)
    with pytest.raises(PortError, match="multipathd is down") as raised:
        brick.connector()
    assert (raised.value.kind, raised.value.code) == (ErrorKind.RETRYABLE, "no_connector")


def test_lp2035695_paths_that_do_not_show_yet_are_retryable(broken: Any) -> None:
    import os_brick.exception

    brick, _ = broken(os_brick.exception.VolumeDeviceNotFound(device="/dev/x"))
    with pytest.raises(PortError) as raised:
        brick.connect({"driver_volume_type": "nvmeof"})
    assert raised.value.kind is ErrorKind.RETRYABLE


def test_any_other_failure_of_a_connect_is_unknown(broken: Any) -> None:
    brick, _ = broken(RuntimeError("half of the paths are there"))
    with pytest.raises(PortError, match="half of the paths are there") as raised:
        brick.connect({"driver_volume_type": "iscsi"})
    assert raised.value.kind is ErrorKind.UNKNOWN


def test_what_this_os_brick_does_not_know_is_final_whatever_is_asked(broken: Any) -> None:
    from os_brick.exception import InvalidConnectorProtocol

    brick, _ = broken(InvalidConnectorProtocol("x"))
    for ask in (brick.connect, brick.disconnect):
        with pytest.raises(PortError, match="InvalidConnectorProtocol") as raised:
            ask({"driver_volume_type": "iscsi"})
        assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "not_connectable")


@pytest.mark.parametrize(
    ("told", "code", "words"),
    [({}, "no_device_path", "of type local"), ({"path": "."}, "bad_device", "neither a block")],
    ids=["no path", "a directory"],
)
def test_what_no_guest_can_have_as_a_disk_is_final(
    volume: ConnectionInfo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    told: dict[str, str],
    code: str,
    words: str,
) -> None:
    from os_brick.initiator.connectors.local import LocalConnector

    monkeypatch.setattr(LocalConnector, "connect_volume", lambda *_: told)
    with pytest.raises(PortError, match=words) as raised:
        real(tmp_path).connect(volume)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, code)


def test_eventlets_resolver_is_not_loaded() -> None:
    told = "import sys, host_agent.storage.brick; print({'eventlet', 'dns'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", told], check=True, capture_output=True, text=True)
    assert done.stdout == "{'eventlet'}\n"


def test_a_disk_that_is_another_volume_by_now_is_final(
    volume: ConnectionInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is given to a guest.  By a real kernel: test_block.py."""
    from os_brick.initiator.connectors.local import LocalConnector

    asked = []

    def others(path: str) -> list[str]:
        asked.append(path)
        return ["/dev/sdb"]

    disk = {"path": "/dev/disk/by-id/dm-uuid-mpath-3"}
    monkeypatch.setattr(LocalConnector, "connect_volume", lambda *_: disk)
    monkeypatch.setattr("host_agent.storage.brick._source", _block)
    monkeypatch.setattr("host_agent.storage.identity.other_volumes", others)
    with pytest.raises(PortError, match=r"/dev/sdb at .*mpath-3 as another volume") as raised:
        real(tmp_path).connect(volume)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "stale_device")
    assert asked == [disk["path"]]
    assert isinstance(raised.value, OtherVolumeError)
    device, given = raised.value.device, []
    assert device == {**disk, "use_multipath": False, OtherVolumeError.OTHER: True}
    monkeypatch.setattr(LocalConnector, "disconnect_volume", lambda *told: given.append(told[-1]))
    real(tmp_path).disconnect(volume, device)
    assert given == [disk], "os-brick is given its own words alone"


@pytest.mark.parametrize(
    ("wwn", "name", "mere"),
    [("", None, True), ("", "/dev/disk/by-id/wwn-0x6", False), ("36", None, True)],
)
def test_one_path_is_no_volume_where_multipath_is_asked_for(
    volume: ConnectionInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wwn: str,
    name: str | None, mere: bool,
) -> None:  # fmt: skip
    """Tried again, for a map may come.  By a real kernel: test_block.py, and the fabric's tests."""
    told = {"path": "/dev/sda", "scsi_wwn": wwn}
    one_path(monkeypatch, told, name, mere=mere)
    assert real(tmp_path).connect(volume)["path"] == (name or "/dev/sda")
    with pytest.raises(PortError, match="no multipath map of /dev/sda") as raised:
        real(tmp_path, use_multipath=True).connect(volume)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.RETRYABLE, "map_missing")


@pytest.mark.parametrize(("wwn", "name"), [("36", "/dev/disk/by-id/wwn-0x6"), ("", None)])
def test_a_disk_of_which_there_is_no_map_is_the_volume(
    volume: ConnectionInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wwn: str,
    name: str | None,
) -> None:  # fmt: skip
    """multipathd was asked, and makes none; or the disk has no identity."""
    one_path(monkeypatch, {"path": "/dev/sda", "scsi_wwn": wwn}, name, mere=False)
    found = real(tmp_path, use_multipath=True).connect(volume)
    assert found["path"] == (name or "/dev/sda")


def one_path(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], name: str | None, *, mere: bool
) -> None:
    """What os-brick tells of a disk that it has connected, and what udev and the kernel do."""
    from os_brick.initiator.connectors.local import LocalConnector

    monkeypatch.setattr(LocalConnector, "connect_volume", lambda *_: told)
    monkeypatch.setattr("host_agent.storage.brick._source", _block)
    monkeypatch.setattr("host_agent.storage.names.stable", lambda _path: name)
    monkeypatch.setattr("host_agent.storage.names.is_mere_path", lambda _path: mere)


def _block(path: str) -> dict[str, Any]:
    return {"type": "block", "path": path}


@pytest.mark.parametrize("kind", ["rbd", "nfs"])
def test_of_what_qemu_opens_itself_the_host_sees_no_size(brick: Brick, kind: str) -> None:
    export = {"driver_volume_type": "nfs", "export": "192.0.2.1:/share", "name": "volume-1"}
    info = RBD if kind == "rbd" else export
    if isinstance(brick, SimulatedBrick):
        brick.connect(info)
    assert brick.extend(info, {"type": "file", "path": "/mnt/volume-1"}) is None


@pytest.mark.lab
def test_blank_device_becomes_luks_once_and_its_data_stay(tmp_path: Path) -> None:
    """A file stands for the device: cryptsetup and os-brick see no difference."""
    path = tmp_path / "device"
    path.write_bytes(b"\0" * (16 << 20))
    source, brick = {"type": "block", "path": str(path)}, real(tmp_path)
    brick.format_luks(source, "passphrase", AES)
    first = path.read_bytes()
    assert first.startswith(b"LUKS\xba\xbe\x00\x01"), "of version 1, which QEMU knows"
    assert b"aes" in first[:64]
    brick.format_luks(source, "passphrase", AES)
    assert path.read_bytes() == first
    qemu = ["qemu-img", "info", "--object", "secret,id=k,data=passphrase", "--image-opts"]
    opened = [*qemu, f"driver=luks,key-secret=k,file.filename={path}"]
    assert subprocess.run(opened, check=False, capture_output=True).returncode == 0


def test_a_device_that_cannot_be_looked_at_is_not_formatted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """os-brick says "no LUKS" of any failure: with 4 the device is gone, for a moment perhaps."""
    asked = []

    def execute(*command: str, **_options: Any) -> None:
        asked.append(command[:2])
        raise processutils.ProcessExecutionError(cmd=command[0], exit_code=4, stderr="No access.")

    monkeypatch.setattr("os_brick.privileged.rootwrap.execute", execute)
    with pytest.raises(PortError, match="No access") as raised:
        real(tmp_path).format_luks({"type": "block", "path": "/dev/x"}, "passphrase", AES)
    assert raised.value.kind is ErrorKind.RETRYABLE, "nothing has happened"
    assert asked == [("cryptsetup", "isLuks")]


def test_a_device_that_is_luks_is_not_formatted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its data would be lost."""
    asked: list[tuple[str, ...]] = []
    for name in ("privileged.rootwrap.execute", "executor.priv_rootwrap.execute"):
        monkeypatch.setattr(f"os_brick.{name}", lambda *line, **_options: asked.append(line[:2]))
    real(tmp_path).format_luks({"type": "block", "path": "/dev/x"}, "passphrase", AES)
    assert asked == [("cryptsetup", "isLuks")]


def test_a_host_without_cryptsetup_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "device"
    path.write_bytes(b"\0" * 4096)
    with pytest.raises(PortError, match=r"was not run: .*No such file or directory: 'cryptsetup'"):
        real(tmp_path).format_luks({"type": "block", "path": str(path)}, "passphrase", AES)


def test_a_blank_device_is_formatted_with_the_words_of_cryptsetup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []
    typed: list[str] = []

    def execute(*command: str, process_input: str = "", **_options: Any) -> None:
        asked.append(command)
        typed.append(process_input)
        if "isLuks" in command:
            raise processutils.ProcessExecutionError(exit_code=1)

    monkeypatch.setattr("os_brick.privileged.rootwrap.execute", execute)
    monkeypatch.setattr("os_brick.executor.priv_rootwrap.execute", execute)
    real(tmp_path).format_luks({"type": "block", "path": "/dev/x"}, "passphrase", AES)
    [_, made] = asked
    assert made[0] == "cryptsetup"
    assert made[-5:] == ("--cipher", AES.cipher, "--key-size", str(AES.key_size), "/dev/x")
    assert typed == ["", "passphrase"]

    asked.clear()
    plain = replace(AES, cipher=None, key_size=None)
    real(tmp_path).format_luks({"type": "block", "path": "/dev/x"}, "passphrase", plain)
    assert not {"--cipher", "--key-size"} & set(asked[-1]), "cryptsetup knows its own"


@pytest.mark.lab
def test_nfs_volume_is_a_file_below_our_mount_point(tmp_path: Path) -> None:
    export = os.environ.get("LEDGER_LAB_NFS_EXPORT")
    if not export:
        pytest.skip("LEDGER_LAB_NFS_EXPORT names no export")
    name = "contract-volume"
    brick = real(tmp_path)
    share = Path(export.partition(":")[2]) / name
    share.write_bytes(b"\0" * 4096)
    info = {"driver_volume_type": "nfs", "export": export, "name": name, "format": "qcow2"}
    try:
        source = brick.connect(info)
        assert source["type"] == "file"
        assert source["format"] == "qcow2"
        assert Path(source["path"]).is_relative_to(tmp_path / "mnt")
        assert brick.connect(info) == source
        brick.disconnect(info)
        brick.disconnect(info)
    finally:
        share.unlink()
        for mounted in (tmp_path / "mnt").iterdir():
            os.system(f"umount {mounted}")


@pytest.mark.parametrize("chosen_now", [False, True])
def test_lp1785669_the_multipath_of_the_connect_is_what_a_disconnect_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen_now: bool
) -> None:
    """os-brick's own disconnect, up to where it removes devices; whatever is configured by now."""
    from os_brick.initiator.connectors.iscsi import ISCSIConnector
    from os_brick.initiator.linuxscsi import LinuxSCSI

    removed: list[tuple[Any, ...]] = []
    chosen: list[bool] = []

    def devices(connector: ISCSIConnector, *_: Any) -> dict[Any, Any]:
        chosen.append(connector.use_multipath)
        return {("portal", "iqn"): ({"sda", "sdb"}, set())}

    def remove(_scsi: LinuxSCSI, names: set[str], _force: bool, _exc: Any, *used: Any) -> None:
        removed.append((sorted(names), *used))

    monkeypatch.setattr(ISCSIConnector, "_get_connection_devices", devices)
    monkeypatch.setattr(ISCSIConnector, "_disconnect_connection", lambda *_, **__: None)
    monkeypatch.setattr(LinuxSCSI, "remove_connection", remove)
    info = {
        "driver_volume_type": "iscsi",
        "target_portals": ["192.0.2.1:3260", "192.0.2.2:3260"],
        "target_iqns": ["iqn:1", "iqn:1"],
        "target_luns": [1, 1],
    }
    device = {"type": "block", "path": "/dev/dm-7", "multipath_id": "3600", "use_multipath": True}
    real(tmp_path, use_multipath=chosen_now).disconnect(info, device)
    assert removed == [(["sda", "sdb"], "/dev/dm-7", True)]
    assert chosen == [True]


def test_what_nova_compute_has_connected_is_disconnected_without_what_connecting_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an adopted server the host has no record: by the connection os-brick finds all devices."""
    from os_brick.initiator.connectors.iscsi import ISCSIConnector
    from os_brick.initiator.linuxscsi import LinuxSCSI

    removed: list[tuple[Any, ...]] = []

    def devices(_connector: ISCSIConnector, *_: Any) -> dict[Any, Any]:
        return {("portal", "iqn"): ({"sda", "sdb"}, set())}

    def remove(_scsi: LinuxSCSI, names: set[str], force: bool, _exc: Any, *used: Any) -> None:
        removed.append((sorted(names), force, *used))

    paths = ["/dev/disk/by-path/ip-192.0.2.1:3260-iscsi-iqn:1-lun-1"]
    monkeypatch.setattr(ISCSIConnector, "get_volume_paths", lambda *_: paths)
    monkeypatch.setattr(ISCSIConnector, "_get_connection_devices", devices)
    monkeypatch.setattr(ISCSIConnector, "_disconnect_connection", lambda *_, **__: None)
    monkeypatch.setattr(LinuxSCSI, "remove_connection", remove)
    portals = {"target_portals": ["192.0.2.1:3260", "192.0.2.2:3260"], "target_luns": [1, 1]}
    info = {"driver_volume_type": "iscsi", "target_iqns": ["iqn:1", "iqn:1"], **portals}
    real(tmp_path, use_multipath=True).disconnect(info)
    assert removed == [(["sda", "sdb"], False, paths[0], False)], "both paths, flushed, not forced"


def test_without_a_record_a_multipath_is_disconnected_by_its_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LP 1785669: else os-brick flushes one path, which may be the dead one."""
    from os_brick.initiator.connectors.iscsi import ISCSIConnector

    link = tmp_path / "os-brick+dev+sdb"  # by the path that there was before the map
    link.symlink_to("/dev/sdb")
    monkeypatch.setattr("os_brick.utils.CUSTOM_LINK_PREFIX", f"{tmp_path}/os-brick")
    told: list[Any] = []
    monkeypatch.setattr(ISCSIConnector, "get_volume_paths", lambda *_: ["/dev/sda", "/dev/sdb"])
    monkeypatch.setattr(ISCSIConnector, "disconnect_volume", lambda _, *words: told.append(words))
    monkeypatch.setattr(
        "host_agent.storage.names.map_over",
        {"/dev/sda": "/dev/sda", "/dev/sdb": "/dev/dm-4", f"{link}": "/dev/dm-4"}.get,
    )
    info = {"driver_volume_type": "iscsi", "target_portals": ["192.0.2.1:3260"]}
    secret = {**info, "encrypted": True}
    for each in (info, secret):
        real(tmp_path, use_multipath=True).disconnect(each)
    mapped, linked = ({"type": "block", "path": each} for each in ("/dev/dm-4", str(link)))
    assert told == [(info, mapped), (secret, linked)]


def test_a_namespace_is_disconnected_without_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """os-brick 7.1.1 takes no dictionary for the question where it is."""
    from os_brick.initiator.connectors.nvmeof import NVMeOFConnector, Target

    told: list[Any] = []
    found = {"uuid": "/dev/nvme1n2"}
    monkeypatch.setattr(Target, "set_portals_controllers", lambda _: None)
    monkeypatch.setattr(Target, "get_devices", lambda *_: list(found.values()))
    monkeypatch.setattr(NVMeOFConnector, "disconnect_volume", lambda _, *words: told.append(words))
    portals = [["192.0.2.1", 4420, "tcp"]]
    info = {"driver_volume_type": "nvmeof", "target_nqn": "nqn.1", "portals": portals}
    info |= {"vol_uuid": "f3f7c7a1-8b8c-4a9b-9c39-0d2f0a1b2c3d"}
    real(tmp_path).disconnect(info)
    found.clear()
    real(tmp_path).disconnect(info)
    assert told == [(info, {"type": "block", "path": "/dev/nvme1n2"}), (info, None)]


def test_a_connect_tells_the_device_and_the_choice_of_multipath(
    tmp_path: Path, volume: ConnectionInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    from os_brick.initiator.connectors.local import LocalConnector

    told = {"type": "local", "path": volume["device_path"], "multipath_id": "m", "scsi_wwn": "w"}
    monkeypatch.setattr(LocalConnector, "connect_volume", lambda *_: {**told, "handle": object()})
    connected = real(tmp_path, use_multipath=True).connect(volume)
    assert connected["device"] == {**told, "use_multipath": True}
