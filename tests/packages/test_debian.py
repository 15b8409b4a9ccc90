"""The Debian package of the service runs where it is installed, and needs nothing else of Python's.

It is unpacked below a directory that is `/opt` for the test's commands alone (a mount namespace).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("dpkg-deb") is None, reason="needs root on Debian"
    ),
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("debian")
    build = [str(ROOT / "deploy/debian/build.sh"), "service", str(made)]
    package = subprocess.run(build, check=True, capture_output=True, text=True).stdout.strip()
    subprocess.run(["dpkg", "-x", package, made / "tree"], check=True)
    subprocess.run(["dpkg", "-e", package, made / "tree/DEBIAN"], check=True)
    return made / "tree"


def run(tree: Path, *command: str) -> str:
    """Its output, with `/opt` as the package has it and without what the tests run in."""
    within = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount --bind "$1/opt" /opt && shift && exec "$@"',
        "-",
    ]
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    done = subprocess.run(
        [*within, str(tree), *command],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
        cwd="/",
    )
    return done.stdout


def test_it_runs(tree: Path) -> None:
    program = str((tree / "usr/bin/attachment-ledger").readlink())
    commit = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    built = subprocess.run(commit, check=True, capture_output=True, text=True).stdout.strip()
    assert run(tree, program, "--version").endswith(f" (commit {built})\n")
    assert "reserve, bind" in run(tree, program, "flow", "list", "-f", "csv")


def test_its_installation_compiles_it(tree: Path) -> None:
    """Nobody else can: the service's user writes nowhere."""
    script = (tree / "DEBIAN/postinst").read_text()
    [line] = [line for line in script.splitlines() if " compileall " in line]
    run(tree, "sh", "-ec", line)
    [ours] = (tree / "opt/attachment-ledger").glob("lib/python3*/site-packages/ledger")
    assert len(list((ours / "__pycache__").iterdir())) == len(list(ours.glob("*.py")))


def test_its_modules_are_its_own(tree: Path) -> None:
    """`sql` and `handlers` are names that others use, too."""
    where = (
        "import sql, handlers, psycopg; print(sql.__file__, handlers.__file__, psycopg.__file__)"
    )
    for path in run(tree, "/opt/attachment-ledger/bin/python", "-c", where).split():
        assert path.startswith("/opt/attachment-ledger/")


def test_it_says_what_is_in_it(tree: Path) -> None:
    """What is installed and is not ours is named, with the version that is there."""
    said = json.loads((tree / "opt/attachment-ledger/sbom.cdx.json").read_text())["components"]
    named = {(each["name"], each["version"]) for each in said}
    code = (
        "import importlib.metadata as m, json; "
        "print(json.dumps([[d.metadata['Name'], d.version] for d in m.distributions()]))"
    )
    there = json.loads(run(tree, "/opt/attachment-ledger/bin/python", "-c", code))
    ours = {(re.sub(r"[-_.]+", "-", name).lower(), version) for name, version in there}
    assert {each for each in ours if each[0] != "attachment-ledger"} <= named


def test_it_has_the_services_units_and_ends_all_of_them(tree: Path) -> None:
    """Names that the shell has made of a pattern, and scripts that a shell has written."""
    units = {path.name for path in (tree / "lib/systemd/system").iterdir()}
    ours = {path.name for path in (ROOT / "deploy/systemd").iterdir() if "agent" not in path.name}
    assert units == {name for name in ours if name.endswith((".service", ".timer"))}
    for name in ("postinst", "prerm", "postrm"):
        subprocess.run(["sh", "-n", tree / "DEBIAN" / name], check=True)
    ended = (tree / "DEBIAN/prerm").read_text()
    assert all(name in ended for name in units if name != "attachment-ledger-sign.service")
    stopped = re.findall("systemctl (?:disable --now|stop) (.*)", ended)
    assert stopped
    # A template cannot be stopped: systemctl would fail, and `apt remove` with it.
    assert [names for names in stopped if "@." in names] == []


def test_it_holds_nothing_of_where_it_was_built(tree: Path) -> None:
    texts = [path for path in tree.rglob("*") if path.is_file() and not path.is_symlink()]
    built = [str(ROOT).encode(), b"/tmp/tmp."]
    assert [path for path in texts if any(mark in path.read_bytes() for mark in built)] == []
