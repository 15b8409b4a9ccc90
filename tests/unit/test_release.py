"""A release has one version, which both programs and the changelog say."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from host_agent.__main__ import main

ROOT = Path(__file__).parents[2]
LINES_MAX = 150  # of one version: what a user notices, and no more
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
HEAD = re.compile(r"(\d+)\.(\d+)\.(\d+) - \d{4}-\d\d-\d\d\n")


def test_what_is_installed_is_this_version() -> None:
    assert version("attachment-ledger") == VERSION, "run: make setup"


def test_the_agent_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"attachment-ledger-agent {VERSION}\n"


def test_the_changelog_has_each_version_with_its_day_and_what_is_to_come_above() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    _, to_come, *released = re.split(r"^## ", changelog, flags=re.MULTILINE)
    assert to_come.startswith("Unreleased\n")
    heads = [HEAD.match(part) for part in released]
    assert all(heads)
    versions = [tuple(map(int, head.groups())) for head in heads if head]
    assert versions == sorted(versions, reverse=True)
    assert ".".join(map(str, versions[0])) == VERSION
    assert all(len(part.splitlines()) <= LINES_MAX for part in (to_come, *released))
