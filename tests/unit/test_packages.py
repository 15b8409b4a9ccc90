"""Hypervisors install nothing of the service; a program without its extra says what to install."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.metadata
import importlib.util
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest

ROOT = Path(__file__).parents[2]
#: Built against headers that this machine need not have.
LIBVIRT = {"libvirt", "libvirtmod"}
OF_THE_SERVICE = {"ledger", "aggregates", "projections", "handlers", "sql"}
OURS = {*OF_THE_SERVICE, "host_agent"}


def installed() -> dict[str, set[str]]:
    """Top-level modules that are here and not Python's, with the packages that bring them."""
    here = importlib.metadata.packages_distributions()
    named = {module: {canonical(name) for name in names} for module, names in here.items()}
    ours = {module: {"attachment-ledger"} for module in OURS}
    return named | ours | {module: {"libvirt-python"} for module in LIBVIRT}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def on_a_hypervisor() -> set[str]:
    """Those of them that are there: of requirements-agent.lock, and of the agent."""
    lock = (ROOT / "requirements-agent.lock").read_text()
    locked = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
    return {"host_agent"} | {module for module, names in installed().items() if names & locked}


class Without:
    """A finder before all others: these top-level modules are not installed."""

    def __init__(self, modules: set[str]) -> None:
        self._modules = modules

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in self._modules:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None  # the others will find it


def install_only(there: set[str]) -> None:
    """These top-level modules alone can be imported, and their packages found."""
    here = installed()
    sys.meta_path.insert(0, Without(here.keys() - there))
    packages = set().union(*(here[module] for module in here.keys() & there))
    found = importlib.metadata.Distribution.from_name

    def from_name(name: str) -> importlib.metadata.Distribution:
        if canonical(name) not in packages:
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    mock.patch.object(importlib.metadata.Distribution, "from_name", from_name).start()


def run(program: str) -> subprocess.CompletedProcess[str]:
    """The program in a Python of its own, where nothing is imported yet."""
    begin = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.unit.test_packages import *"
    command = [sys.executable, "-c", f"{begin}; {program}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def import_all_of_the_agent() -> None:
    install_only(on_a_hypervisor())
    if importlib.util.find_spec("libvirt") is None:
        sys.modules["libvirt"] = mock.MagicMock()
    import host_agent

    for module in pkgutil.walk_packages(host_agent.__path__, "host_agent."):
        importlib.import_module(module.name)
    sys.stdout.write(" ".join({name.partition(".")[0] for name in sys.modules}))


@pytest.mark.slow
def test_the_agent_imports_where_only_its_lock_is_installed() -> None:
    done = run("import_all_of_the_agent()")
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert {"host_agent", "os_brick", "cinderclient", "keystoneauth1"} <= loaded
    assert loaded & {*OF_THE_SERVICE, "psycopg", "aiohttp", "pydantic", "eventsourcing"} == set()


@pytest.mark.slow
def test_no_import_of_the_agent_however_late_asks_for_more() -> None:
    asked = set()
    for path in (ROOT / "host_agent").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                asked |= {(path.name, alias.name.partition(".")[0]) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                asked.add((path.name, str(node.module).partition(".")[0]))
    assert len(asked) > 100
    allowed = {*on_a_hypervisor(), *sys.stdlib_module_names}
    assert {(name, module) for name, module in asked if module not in allowed} == set()


@pytest.mark.slow
def test_the_services_program_without_its_extra_says_in_one_line_what_to_install() -> None:
    there = "install_only(on_a_hypervisor() | OF_THE_SERVICE)"
    done = run(f"{there}; from ledger.__main__ import main; sys.exit(main())")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("attachment-ledger: cliff is not installed")
    assert "pip install 'attachment-ledger[service]'" in line


@pytest.mark.slow
def test_the_agent_without_its_extra_says_in_one_line_what_to_install(tmp_path: Path) -> None:
    there = "install_only(on_a_hypervisor() - LIBVIRT - {'os_brick'})"
    arguments = ["run", "--lock-path", str(tmp_path)]
    done = run(f"{there}; from host_agent.__main__ import main; sys.exit(main({arguments}))")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("attachment-ledger-agent: No module named 'libvirt'")
    assert "pip install 'attachment-ledger[agent]'" in line


@pytest.mark.slow
@pytest.mark.parametrize("name", ["handlers", "sql"])
def test_a_foreign_package_before_ours_is_named_at_the_start(tmp_path: Path, name: str) -> None:
    foreign = tmp_path / name / "__init__.py"
    foreign.parent.mkdir()
    foreign.write_text("def query(): ...")
    _refused(foreign, cwd=tmp_path)


@pytest.mark.slow
def test_a_foreign_package_written_over_ours_is_named_at_the_start(tmp_path: Path) -> None:
    for name in OURS - {"sql"}:
        (tmp_path / name).symlink_to(ROOT / name)
    foreign = tmp_path / "sql" / "__init__.py"
    foreign.parent.mkdir()
    foreign.write_text("__all__ = ['Select']")
    _refused(foreign, cwd=tmp_path)
    foreign.write_text((ROOT / "sql/__init__.py").read_text())
    assert _started(tmp_path).returncode == 0


def _started(cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ledger", "--version"]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def _refused(foreign: Path, *, cwd: Path) -> None:
    done = _started(cwd)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"attachment-ledger: {foreign} is another package")
    assert "an environment of its own" in line
