"""What a package says is in it: all that its lock has, with each hash, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def said(program: str) -> dict[str, Any]:
    """Made twice, for a package is to be the same each time it is made."""
    command = [str(ROOT / "deploy/sbom.sh"), program]
    one, again = (subprocess.run(command, check=True, capture_output=True) for _ in range(2))
    assert one.stdout == again.stdout
    assert one.stderr == b""
    made: dict[str, Any] = json.loads(one.stdout)
    return made


def locked(program: str) -> dict[tuple[str, str], set[str]]:
    """The hashes of each distribution and version of a lock, as it is read by eye."""
    text = (ROOT / f"requirements-{program}.lock").read_text()
    found: dict[tuple[str, str], set[str]] = {}
    for block in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]:
        name, version = re.match(r"([a-z0-9-]+)==([^ ;\\]+)", block).groups()  # type: ignore[union-attr]
        found[name, version] = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", block))
    return found


@pytest.mark.parametrize("program", ["service", "agent"])
def test_each_locked_distribution_is_named_with_its_hashes(program: str) -> None:
    made = said(program)
    hashes = {
        (each["name"], each["version"]): {
            one["content"] for link in each["externalReferences"] for one in link["hashes"]
        }
        for each in made["components"]
    }
    assert hashes == locked(program)
    assert all(hashes.values())
    assert len(hashes) > 20
    for each in made["components"]:
        assert each["purl"] == f"pkg:pypi/{each['name']}@{each['version']}"


def test_it_is_of_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    root = said("agent")["metadata"]["component"]
    assert (root["name"], root["version"]) == (project["name"], project["version"])
