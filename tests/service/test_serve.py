"""The service does not begin what it could not carry through."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.authority import Authority
from tests.doubles.running_cinder import running_cinder
from tests.doubles.supervisor import WAIT_S, supervisor


def command(home: Path, database_url: str, cinder: str) -> list[str]:
    config = home / "ledger.toml"
    config.write_text(f'database_url = "{database_url}"\n[listen]\nport = 0\n[cinder]\n{cinder}\n')
    return [sys.executable, "-m", "ledger", "serve", "--config", str(config)]


def serve(home: Path, database_url: str, cinder: str) -> subprocess.CompletedProcess[str]:
    asked = command(home, database_url, cinder)
    return subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)


def test_systemd_hears_that_it_is_ready_and_goes_on_working(
    tmp_path: Path, database_url: str
) -> None:
    with (
        running_cinder() as cinder,
        supervisor(tmp_path / "notify", watchdog_s=0.2) as systemd,
        subprocess.Popen(
            command(tmp_path, database_url, f'endpoint = "{cinder.endpoint}"'),
            env=os.environ | systemd.environ,
        ) as service,
    ):
        systemd.hears("READY=1")
        for _ in range(3):
            systemd.hears("WATCHDOG=1")
        service.terminate()
        systemd.hears("STOPPING=1")
        assert service.wait(WAIT_S) == 0


def test_a_key_that_is_being_replaced_does_not_end_it_for_good(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As wrong settings do (RestartPreventExitStatus of its unit)."""
    ours = Authority(tmp_path / "ca")
    one, other = ours.pair("ledger"), ours.pair("ledger")
    for name, value in {**one.files, "key_file": str(other.key)}.items():
        monkeypatch.setenv(f"LEDGER_LISTEN__{name.upper()}", value)
    with running_cinder() as cinder:
        ended = serve(tmp_path, database_url, f'endpoint = "{cinder.endpoint}"')
    assert "is not the key of" in ended.stderr
    assert ended.returncode == 1


def test_lp2019892_without_a_service_token_it_does_not_serve(
    tmp_path: Path, database_url: str
) -> None:
    with running_cinder() as cinder:
        settings = f'endpoint = "{cinder.endpoint}"\nservice_token = false'
        ended = serve(tmp_path, database_url, settings)
    assert ended.returncode == 4
    assert "Cinder will refuse to detach" in ended.stderr
