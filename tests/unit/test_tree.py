"""Rules of the house that ruff, mypy and import-linter cannot say."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("ledger", "aggregates", "projections", "handlers", "host_agent", "sql")
PURE = ("aggregates", "handlers")

LOCKS = ("requirements.lock", "requirements-agent.lock", "requirements-service.lock")
FILES_MAX = 15
FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 600
#: A screen and a half.
FLOW_LINES_MAX = 75

PRODUCT = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

#: A call of one of these makes a result depend on when and where it is computed.
IMPURE_CALLS = {"now", "utcnow", "today", "uuid1", "uuid4", "open", "print", "input", "urandom"}

SQL_STATEMENT = re.compile(
    r"^\s*(SELECT\s.+\sFROM\s|INSERT\s+INTO\s|UPDATE\s+\w+\s+SET\s|DELETE\s+FROM\s"
    r"|(CREATE|ALTER|DROP)\s+(TABLE|INDEX|VIEW|FUNCTION)\s)",
    re.IGNORECASE | re.DOTALL,
)
#: Most files need not be parsed.
SQL_WORD = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP)\b", re.IGNORECASE)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def where(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines without the docstring: explaining costs nothing."""
    first = function.body[0]
    lines = (function.end_lineno or 0) - function.lineno + 1
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        lines -= (first.end_lineno or 0) - first.lineno + 1
    return lines


def too_long(path: Path) -> Iterator[str]:
    lines = len(path.read_text().splitlines())
    if lines > MODULE_LINES_MAX:
        yield f"{path.relative_to(ROOT)}: {lines} lines"
    for node in ast.walk(parsed(path)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if body_lines(node) > FUNCTION_LINES_MAX:
            yield f"{where(path, node)} {node.name}: {body_lines(node)} lines"


def impure(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
            name = called.id if isinstance(called, ast.Name) else called
            if name in IMPURE_CALLS:
                yield f"{where(path, node)} {name}()"


def sql_in_code(path: Path) -> Iterator[str]:
    nodes = ast.walk(parsed(path)) if SQL_WORD.search(path.read_text()) else ()
    for node in nodes:
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and SQL_STATEMENT.match(text):
            yield where(path, node)


def test_a_flow_fits_a_screen_and_a_half() -> None:
    flows = {path: len(path.read_text().splitlines()) for path in ROOT.glob("handlers/flows/*.py")}
    assert len(flows) > 10
    assert {path.name: n for path, n in flows.items() if n > FLOW_LINES_MAX} == {}


def test_functions_fit_a_screen_and_modules_a_sitting() -> None:
    assert [found for path in PRODUCT + TESTS for found in too_long(path)] == []


def test_no_class_name_stands_in_two_files() -> None:
    """A name is looked for once, and tells at its import what it is (decision 0117)."""
    at: defaultdict[str, list[str]] = defaultdict(list)
    for path in PRODUCT:
        for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE):
            at[name].append(str(path.relative_to(ROOT)))
    assert len(at) > 500
    assert {name: files for name, files in at.items() if len(files) > 1} == {}


def test_every_module_says_what_it_is() -> None:
    texts = {path: path.read_text() for path in PRODUCT}
    assert [path for path, text in texts.items() if text and not re.match(r'r?"""\S', text)] == []


def test_pure_packages_ask_no_clock_and_roll_no_dice() -> None:
    pure = [path for path in PRODUCT if path.relative_to(ROOT).parts[0] in PURE]
    assert pure
    assert [found for path in pure for found in impure(path)] == []


def test_nobody_decides_by_a_wall_clock() -> None:
    """What is shared goes by the database's clock, what is not by a monotonic one (0044)."""
    reading = {
        str(path.relative_to(ROOT))
        for path in PRODUCT
        if re.search(r"time\.time(_ns)?\b|datetime\.now|utcnow|\btoday\(", path.read_text())
    }
    assert reading == {
        "host_agent/shared/platform/clocks.py",  # to tell how wrong it is
        "ledger/cli/survey/survey.py",  # how long ago, if Cinder does not tell its time
        "ledger/cli/table.py",  # how long ago, for people
        "ledger/log/clock.py",
        "ledger/trial/cinder/model/model.py",  # Cinder's own
        "ledger/trial/demo.py",  # a user's
    }


def test_sql_is_in_sql_only() -> None:
    outside = [path for path in PRODUCT if path.relative_to(ROOT).parts[0] != "sql"]
    assert [found for path in outside for found in sql_in_code(path)] == []


def test_code_of_ours_logs_events_and_their_fields() -> None:
    """Loggers of the standard library are what libraries are given, or asked for their level."""
    asked = {
        str(path.relative_to(ROOT)) for path in PRODUCT if "logging.getLogger(" in path.read_text()
    }
    assert asked == {
        "host_agent/shared/cinder/session.py",
        "host_agent/shared/platform/logs.py",
        "host_agent/storage/keys.py",
        "ledger/http/app.py",
        "ledger/http/limits/connections.py",
        "ledger/nova_beside/adapters.py",
    }


def test_packages_are_those_of_the_fixed_layout() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == list(PACKAGES)
    assert project["tool"]["importlinter"]["root_packages"] == list(PACKAGES)
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == set(PACKAGES)


def test_of_the_agent_only_shared_may_be_imported() -> None:
    """The contract names rooms, so that none of them needs an exception: it must name them all."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = next(
        each
        for each in project["tool"]["importlinter"]["contracts"]
        if each["name"] == "of the host agent others see what it shares"
    )
    children = {path.stem for path in (ROOT / "host_agent").glob("[!_]*")} | {"__main__"}
    assert set(contract["forbidden_modules"]) == {
        f"host_agent.{name}" for name in children - {"shared"}
    }


def test_no_module_imports_itself_through_others() -> None:
    """Late imports and those for types alone count: `prepare` raises with the circle."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) >= len(PRODUCT)
    TopologicalSorter(imports).prepare()


def test_a_room_is_seen_at_a_glance() -> None:
    """One sentence for each file is a page; `flows` are of one kind, and `handlers` are rooms."""
    files = Counter(path.parent.relative_to(ROOT) for path in PRODUCT if path.name[0] != "_")
    assert files[Path("ledger")] <= 4
    assert files[Path("handlers")] == 0
    full = {str(room) for room, count in files.items() if count > FILES_MAX}
    assert full <= {"handlers/flows"}


@pytest.mark.parametrize("name", LOCKS)
def test_lock_pins_by_hash_and_names_no_place(name: str) -> None:
    text = (ROOT / name).read_text()
    assert not re.search(r"://|index-url|find-links|^/| /", text, re.MULTILINE)
    pins = re.findall(
        r"^[a-z0-9][^ ]*==.*\n(?: +--hash=sha256:[0-9a-f]{64}.*\n)+", text, re.MULTILINE
    )
    assert len(pins) == len(re.findall(r"^[a-z0-9]", text, re.MULTILINE))


def test_locks_hold_every_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    declared = {
        "requirements.lock": [
            *project["project"]["dependencies"],
            *project["dependency-groups"]["build"],
            *(need for extra in ("service", "embedded", "test", "lint") for need in extras[extra]),
        ],
        "requirements-agent.lock": [*project["project"]["dependencies"], *extras["agent"]],
        "requirements-service.lock": [
            *project["project"]["dependencies"],
            *(need for extra in ("service", "otel", "notifications") for need in extras[extra]),
        ],
    }
    for name, needs in declared.items():
        assert packages(needs) - locked(name) == set()
    assert packages(extras["service"]) & locked("requirements-agent.lock") == set()


def packages(needs: list[str]) -> set[str]:
    return {re.split(r"[\[<>=~! ]", need)[0] for need in needs}


def locked(name: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+)==", (ROOT / name).read_text(), re.MULTILINE))


def test_locks_agree_on_what_they_hold() -> None:
    pins = [
        set(re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))
        for name in LOCKS
    ]
    tested = dict(pins[0])
    differing = {pin for each in pins[1:] for pin in each if tested.get(pin[0], pin[1]) != pin[1]}
    assert differing == set()


def test_what_runs_before_a_commit_is_of_this_makefile_and_fetches_nothing() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert re.findall(r"^ +- repo: (.*)$", hooks, re.MULTILINE) == ["local"]
    assert set(re.findall(r"^ +language: (.*)$", hooks, re.MULTILINE)) == {"system"}
    entries = re.findall(r"^ +entry: (.*)$", hooks, re.MULTILINE)
    assert {entry.removeprefix("make ") for entry in entries} == {"style", "types"} <= set(targets)


@pytest.mark.slow
def test_wheel_has_every_file_of_the_packages(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    present = {
        str(path.relative_to(ROOT))
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert shipped == present


def test_a_report_in_junits_form_has_what_tests_note(tmp_path: Path) -> None:
    """`record_property` is a warning, and so an error, in another `junit_family`."""
    test = "tests/flows/test_every_flow.py::test_every_pair_of_troubles"
    chosen = [
        f"{test}[detach-stopped]",
        "-m",
        "",
        "-n",
        "0",
        f"--junitxml={tmp_path / 'report.xml'}",
    ]
    environment = os.environ | {"FLOW_PAIRS": "1"}
    command = [sys.executable, "-m", "pytest", *chosen]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    assert '<property name="cases" value="1"' in (tmp_path / "report.xml").read_text()
