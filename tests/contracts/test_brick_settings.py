"""What os-brick is asked by this host's settings, and of what it is asked nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from host_agent.shared.contract.ports import PortError
from tests.contracts.test_brick import RBD, BrokenConnector, _without_sudo, broken, real

__all__ = ["_without_sudo", "broken"]  # fixtures

# oslo.privsep imports eventlet, which warns at every fork from then on.
pytestmark = pytest.mark.filterwarnings("ignore:Using fork:DeprecationWarning")


def test_the_hosts_own_user_of_ceph_is_for_backends_that_name_none(tmp_path: Path) -> None:
    brick = real(tmp_path, rbd_user="nova", rbd_secret_uuid="s")
    assert brick.connect(RBD)["auth"] == {"user": "cinder", "secret_uuid": RBD["secret_uuid"]}
    silent = {**RBD, "auth_username": None, "secret_uuid": None}
    assert brick.connect(silent)["auth"] == {"user": "nova", "secret_uuid": "s"}


def test_os_brick_is_asked_as_the_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connector of a file system mounts below our own place, which may be there."""
    asked: list[Any] = []

    def factory(*args: Any, **options: Any) -> Any:
        asked.append((args, options))
        return BrokenConnector(RuntimeError("enough"))

    def properties(*args: Any, **options: Any) -> dict[str, Any]:
        asked.append((args, options))
        return {}

    module = "os_brick.initiator.connector"
    monkeypatch.setattr(f"{module}.InitiatorConnector.factory", factory)
    monkeypatch.setattr(f"{module}.get_connector_properties", properties)
    chosen = {"use_multipath": True, "enforce_multipath": True, "device_scan_attempts": 7}
    brick = real(tmp_path, root_helper="helper", **chosen)
    brick.connector()
    for kind in ("iscsi", "nfs", "nfs"):
        with pytest.raises(PortError, match="enough"):
            brick.connect({"driver_volume_type": kind})
    scan, base = {"use_multipath": True, "device_scan_attempts": 7}, str(tmp_path / "mnt")
    nfs = {"conn": {"driver_volume_type": "nfs"}, "nfs_mount_point_base": base}
    assert asked == [
        (("helper", "192.0.2.1", True, True), {"host": "compute-1"}),
        (("ISCSI", "helper"), {**scan, "conn": {"driver_volume_type": "iscsi"}}),
        (("NFS", "helper"), {**scan, **nfs}),
        (("NFS", "helper"), {**scan, **nfs}),
    ]


def test_os_bricks_own_locks_are_where_it_is_told(tmp_path: Path) -> None:
    from oslo_config import cfg

    real(tmp_path)
    assert cfg.CONF.os_brick.lock_path == str(tmp_path / "locks/os-brick")


def test_a_guest_gets_the_name_that_stays_and_os_brick_its_own_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Connector:
        def connect_volume(self, info: dict[str, Any]) -> dict[str, Any]:
            info.clear()  # as os-brick takes keys out of NVMe's older form
            return {"type": "block", "path": "/dev/nvme0n1"}

        def disconnect_volume(self, info: dict[str, Any], device: dict[str, Any]) -> None:
            asked.append((info, device))

    stays = "/dev/disk/by-id/nvme-uuid.1"
    monkeypatch.setattr(
        "os_brick.initiator.connector.InitiatorConnector.factory", lambda *_, **__: Connector()
    )
    block = {"type": "block", "path": "/dev/nvme0n1"}
    monkeypatch.setattr("host_agent.storage.brick._source", lambda path: {**block, "path": path})
    monkeypatch.setattr("host_agent.storage.names.stable", {"/dev/nvme0n1": stays}.get)
    brick, info = real(tmp_path), {"driver_volume_type": "nvmeof", "nqn": "n"}
    connected = brick.connect(info)
    assert info == {"driver_volume_type": "nvmeof", "nqn": "n"}
    assert connected["path"] == connected["device"]["stable_path"] == stays
    brick.disconnect(info, connected["device"])
    assert asked == [(info, block)]


def test_of_what_qemu_opens_itself_os_brick_is_asked_nothing(broken: Any) -> None:
    brick, connector = broken(RuntimeError("asked"))
    brick.connect(RBD)
    brick.disconnect(RBD)
    assert brick.extend(RBD, {"type": "network"}) is None
    assert connector.forced == []
