"""What the host sees of a device that has grown, by the real os-brick."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError
from host_agent.storage.luks import payload_offset
from tests.contracts.test_brick import AES, _without_sudo, broken
from tests.contracts.test_brick import real as brick_of

__all__ = ["_without_sudo", "broken"]  # fixtures

# oslo.privsep imports eventlet, which warns at every fork from then on.
pytestmark = pytest.mark.filterwarnings("ignore:Using fork:DeprecationWarning")


class Grown:
    """Stands for a connector that has looked again."""

    def __init__(self, size: int | None) -> None:
        self.size = size

    def extend_volume(self, _info: Any) -> int | None:
        return self.size


def test_a_guest_has_all_of_a_device_but_the_head_of_luks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brick, info = brick_of(tmp_path), {"driver_volume_type": "iscsi"}
    monkeypatch.setattr(brick, "_connector_for", lambda _kind, _info, **_: Grown(3 << 30))
    dump = (
        "LUKS header information for /dev/x\n\nVersion:\t1\nPayload offset:\t4096\nMK bits:\t256\n"
    )
    asked: list[Any] = []

    def execute(*command: str, **options: Any) -> tuple[str, str]:
        asked.append((command, options))
        return dump, ""

    monkeypatch.setattr("os_brick.privileged.rootwrap.execute", execute)
    source = {"type": "block", "path": "/dev/x"}
    assert brick.extend(info, source) == 3 << 30
    assert asked == []
    assert brick.extend({**info, "encrypted": True}, source) == (3 << 30) - 4096 * 512
    as_root = {"run_as_root": True, "root_helper": "sudo"}
    assert asked == [(("cryptsetup", "luksDump", "/dev/x"), as_root)]


def test_a_device_without_a_head_of_luks_is_not_taken_for_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brick, info = brick_of(tmp_path), {"driver_volume_type": "iscsi", "encrypted": True}
    monkeypatch.setattr(brick, "_connector_for", lambda _kind, _info, **_: Grown(3 << 30))
    monkeypatch.setattr("os_brick.privileged.rootwrap.execute", lambda *_, **__: ("LUKS 2", ""))
    with pytest.raises(PortError, match="/dev/x has no head of LUKS 1") as raised:
        brick.extend(info, {"type": "block", "path": "/dev/x"})
    assert raised.value.code == "extend_failed"


def test_the_host_tells_how_large_it_takes_a_device_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brick, asked = brick_of(tmp_path), list[tuple[str, ...]]()

    def execute(*command: str, **_options: Any) -> tuple[str, str]:
        asked.append(command)
        return "3221225472\n", ""

    monkeypatch.setattr("os_brick.privileged.rootwrap.execute", execute)
    assert brick.size({"type": "block", "path": "/dev/x"}) == 3 << 30
    assert brick.size({"type": "file", "path": "/mnt/volume-1"}) is None
    assert brick.size({"type": "network", "protocol": "rbd"}) is None
    assert asked == [("blockdev", "--getsize64", "/dev/x")]


def test_a_device_that_cannot_be_looked_at_again_now_may_be_later(
    broken: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brick, _ = broken(RuntimeError("no answer"))
    with pytest.raises(PortError) as raised:  # it has no extend_volume
        brick.extend({"driver_volume_type": "iscsi"}, {"type": "block", "path": "/dev/x"})
    assert (raised.value.kind, raised.value.code) == (ErrorKind.RETRYABLE, "extend_failed")
    brick = brick_of(tmp_path)
    monkeypatch.setattr(brick, "_connector_for", lambda _kind, _info, **_: Grown(None))
    with pytest.raises(PortError) as raised:
        brick.extend({"driver_volume_type": "iscsi"}, {"type": "block", "path": "/dev/x"})
    assert (raised.value.kind, raised.value.code) == (ErrorKind.RETRYABLE, "extend_failed")


def test_what_os_brick_cannot_extend_is_final(tmp_path: Path) -> None:
    """As of file systems whose connector has the call, and nothing behind it."""
    info = {"driver_volume_type": "huaweisdshypervisor"}
    with pytest.raises(PortError) as raised:
        brick_of(tmp_path).extend(info, {"type": "block", "path": "/dev/x"})
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "extend_failed")


@pytest.mark.lab
def test_qemu_and_cryptsetup_agree_on_where_the_data_of_luks_begin(tmp_path: Path) -> None:
    path = tmp_path / "device"
    path.write_bytes(b"\0" * (16 << 20))
    brick_of(tmp_path).format_luks({"type": "block", "path": str(path)}, "passphrase", AES)
    image = f"driver=luks,file.driver=file,file.filename={path}"
    command = ["qemu-img", "info", "--output=json", "--image-opts", image]
    told = subprocess.run(command, check=True, capture_output=True)
    size = json.loads(told.stdout)["virtual-size"]
    assert size == (16 << 20) - payload_offset("sudo", str(path))
