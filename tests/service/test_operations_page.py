"""docs/operations.md, typed: what needs neither systemd nor apt; with two processes, and one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.stack import ADMIN, Stack

PAGE = (Path(__file__).parents[2] / "docs/operations.md").read_text()
#: What the machine's own programs do, and other tests: `apt` and units those of tests/packages.
ELSEWHERE = (
    *("apt install ", "install -m ", "systemctl ", "export ", "runuser -u postgres "),
    *("echo ", "editor "),
)
#: The user that the package makes.
AS_THE_SERVICE = "runuser -u attachment-ledger -- "


def section(title: str) -> list[str]:
    """What is typed there."""
    text = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    return [line[2:] for line in "".join(blocks).splitlines() if line[:2] in {"$ ", "# "}]


def type_section(title: str, home: Path, **exported: str) -> str:
    """What it prints; `exported` as the page has it, and in `home`."""
    lines = [
        line.removeprefix(AS_THE_SERVICE)
        for line in section(title)
        if not line.startswith(ELSEWHERE)
    ]
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
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
    operator = {**settings, "LEDGER_TOKEN": ADMIN}
    assert "compute-1" in type_section(
        "Check it", tmp_path, LEDGER_URL=ready.url("", 0), **operator
    )
    assert ready.components[0].stop() == 0
    operator["LEDGER_URL"] = ready.url("", 1)
    assert "compute-1" in type_section("Check it", tmp_path, **operator)
    type_section("Each day", tmp_path, **operator)
    assert (tmp_path / "checkpoint.json").stat().st_size


def test_a_digest_made_so_is_the_tokens(stack: Stack, tmp_path: Path) -> None:
    digest = type_section("Tokens", tmp_path).strip()
    token = (tmp_path / "token").read_text().strip()
    stack.settings = (
        f'[[tokens]]\nname = "new"\ntoken_sha256 = "{digest}"\nuser_id = "new"\n'
        'project_id = "p"\nroles = ["reader"]\n'
    )
    stack.start_service()
    assert stack.session(token).get(stack.url("/v1/hosts"), timeout=10).status_code == 403
    assert stack.session(f"{token}0").get(stack.url("/v1/hosts"), timeout=10).status_code == 401


def test_what_is_not_typed_here_is_known() -> None:
    titles = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    typed = {"Tokens", "Check it", "Each day", "The service"}
    others = [line for title in titles if title not in typed for line in section(title)]
    assert others
    assert [line for line in others if not line.startswith(ELSEWHERE)] == []
