"""The service does not begin what it could not carry through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.doubles.running_cinder import running_cinder


def serve(home: Path, database_url: str, cinder: str) -> subprocess.CompletedProcess[str]:
    config = home / "ledger.toml"
    config.write_text(f'database_url = "{database_url}"\n[listen]\nport = 0\n[cinder]\n{cinder}\n')
    command = [sys.executable, "-m", "ledger", "serve", "--config", str(config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_database_without_the_schema_is_refused(tmp_path: Path, empty_database_url: str) -> None:
    ended = serve(tmp_path, empty_database_url, 'endpoint = "http://127.0.0.1:1/v3"')
    assert ended.returncode == 4
    assert "db upgrade" in ended.stderr


def test_lp2019892_without_a_service_token_it_does_not_serve(
    tmp_path: Path, database_url: str
) -> None:
    with running_cinder() as cinder:
        settings = f'endpoint = "{cinder.endpoint}"\nservice_token = false'
        ended = serve(tmp_path, database_url, settings)
    assert ended.returncode == 4
    assert "Cinder will refuse to detach" in ended.stderr
