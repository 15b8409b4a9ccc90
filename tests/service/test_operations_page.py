"""What docs/operations.md says of our own programs, typed; with two processes, and one.

All of it, with what is Debian's, is typed in bare machines (tests/operations).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.operations.page import PAGE, blocks, lines
from tests.stack import ADMIN, Stack

#: The user that the package makes.
AS_THE_SERVICE = "runuser -u attachment-ledger -- "
OURS = ("attachment-ledger ", AS_THE_SERVICE, "curl ", "openssl ", "tr ")


def type_section(title: str, home: Path, **exported: str) -> str:
    """What it prints; `exported` in place of what the page exports, and in `home`."""
    typed = [
        line.removeprefix(AS_THE_SERVICE)
        for block in blocks(PAGE)
        if (block.section, block.kind) == (title, "console")
        for _, line in lines(block)
        if line.startswith(OURS)
    ]
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(typed)],
        cwd=home,
        env={**os.environ, **exported, "PATH": programs},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_is_typed_and_one_process_may_go(ready: Stack, tmp_path: Path) -> None:
    ready.start_service(1)
    database = {"LEDGER_DATABASE_URL": ready.database_url}
    settings = {"LEDGER_CONFIG": str(ready.home / "ledger-0.toml")}
    told = type_section("The service", tmp_path, **settings, **database)
    assert 'TO "attachment-ledger"' in told
    assert ADMIN not in told
    (tmp_path / "ca.pem").touch()  # which HTTP has no need of
    operator = {**settings, "LEDGER_TOKEN": ADMIN, "LEDGER_CACERT": str(tmp_path / "ca.pem")}
    assert "compute-1" in type_section(
        "Check it", tmp_path, LEDGER_URL=ready.url("", 0), **operator
    )
    assert ready.components[0].stop() == 0
    operator["LEDGER_URL"] = ready.url("", 1)
    assert "compute-1" in type_section("Check it", tmp_path, **operator)
    type_section("Each day", tmp_path, **operator)
    assert (tmp_path / "checkpoint.json").stat().st_size


def test_a_digest_made_so_is_the_tokens(stack: Stack, tmp_path: Path) -> None:
    _, digest = type_section("Tokens", tmp_path).split()
    token = (tmp_path / "token").read_text().strip()
    stack.settings = (
        f'[[tokens]]\nname = "new"\ntoken_sha256 = "{digest}"\nuser_id = "new"\n'
        'project_id = "p"\nroles = ["reader"]\n'
    )
    stack.start_service()
    assert stack.session(token).get(stack.url("/v1/hosts"), timeout=10).status_code == 403
    assert stack.session(f"{token}0").get(stack.url("/v1/hosts"), timeout=10).status_code == 401
