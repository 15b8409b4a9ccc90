"""What the documents say of settings, commands, metrics and files is what the code says."""

from __future__ import annotations

import dataclasses
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from aggregates import catalogue
from aggregates.base import Event
from handlers.drift.classes import CLASSES
from handlers.engine.plan import Place
from host_agent import config as agent_config
from host_agent.shared import fault_calls
from host_agent.shared.contract.messages import Verb
from host_agent.verbs import GUEST_VERBS, VERBS
from ledger import config
from ledger.auth.rules import RULES
from ledger.cli import examples
from ledger.cli.errors import ExitCode
from ledger.cli.shell import COMMANDS, Shell
from ledger.trial.cinder.handlers import ROUTES as CINDER_ROUTES
from ledger.words.acts import ACTS
from projections.catalog import ALL
from tests.pages import (
    acts_page,
    commands_page,
    drift_page,
    events_page,
    flow_pages,
    policy_page,
    reference_page,
)
from tests.pages.made_pages import CELL_MAX

ROOT = Path(__file__).parents[2]
CLI = (ROOT / "docs/cli.md").read_text()
AGENT = (ROOT / "docs/host-agent.md").read_text()


def rows(text: str, heads: str) -> list[list[str]]:
    """The cells of the table with these heads."""
    lines = text.partition(f"| {heads} |\n")[2].splitlines()[1:]
    table = list(takewhile(lambda line: line.startswith("|"), lines))
    assert table, heads
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


def test_the_reference_is_what_the_code_says() -> None:
    assert (ROOT / "docs/reference.md").read_text() == reference_page.page(), "run: make docs"


@pytest.mark.parametrize(
    "page", ["acts", "commands", "events", "policy", "reconciliation", "reference"]
)
def test_no_cell_of_a_table_is_wider_than_fits_a_screen(page: str) -> None:
    lines = (ROOT / f"docs/{page}.md").read_text().splitlines()
    cells = [cell for line in lines if line.startswith("|") for cell in line.split("|")]
    assert [cell for cell in cells if len(cell.strip()) > CELL_MAX] == []


def test_the_policys_tables_and_its_sample_are_what_the_rules_say() -> None:
    text = (ROOT / "docs/policy.md").read_text()
    assert text == policy_page.page(text), "run: make docs"
    shown = re.findall(r"^\| `([^`]+)` \| `[^`]+` \| ", text, re.MULTILINE)
    assert shown == [rule.name for rule in RULES]
    assert (ROOT / "docs/policy.yaml.sample").read_text() == policy_page.sample(), "run: make docs"


def test_the_events_are_what_their_classes_say() -> None:
    text = (ROOT / "docs/events.md").read_text()
    assert text == events_page.page(text), "run: make docs"
    shown = re.findall(r"^### `(\w+\.\w+)`, version", text, re.MULTILINE)
    kinds = [kind for each in catalogue.AGGREGATES for kind in catalogue.events_of(each)]
    assert shown == [kind.TOPIC for kind in kinds]


def test_the_tables_of_what_differs_are_what_the_classes_say() -> None:
    text = (ROOT / "docs/reconciliation.md").read_text()
    assert text == drift_page.page(text), "run: make docs"
    shown = re.findall(r"^\| `(\w+)` \| (?:critical|warning|info) \|", text, re.MULTILINE)
    assert shown == [each.name for each in CLASSES]


def test_the_acts_of_the_manual_are_the_rows_of_the_table() -> None:
    text = (ROOT / "docs/acts.md").read_text()
    assert text == acts_page.page(text), "run: make docs"
    assert re.findall(r"^### (.+)", text, re.MULTILINE) == [act.title for act in ACTS]


def test_the_commands_of_the_manual_are_those_of_the_program() -> None:
    text = (ROOT / "docs/commands.md").read_text()
    assert text == commands_page.page(), "run: make docs"
    assert re.findall(r"^### (.+)", text, re.MULTILINE) == sorted(COMMANDS)


@pytest.mark.parametrize("name", ["acts", "api", "cli", "commands"])
def test_a_page_of_the_manual_fits_a_screen(name: str) -> None:
    text = (ROOT / f"docs/{name}.md").read_text()
    assert max(map(len, text.splitlines())) <= 120


def test_each_command_has_an_example_in_its_help() -> None:
    assert examples.EXAMPLES.keys() == COMMANDS.keys(), "each command has one"
    for command, some in examples.EXAMPLES.items():
        shell = Shell()
        kind, name, _ = shell.command_manager.find_command(command.split())
        shown = kind(shell, None, cmd_name=name).get_parser(name).format_help()
        assert [
            what for _, what in some if f"  # {what}\n  attachment-ledger {name}" not in shown
        ] == []


def test_every_event_of_the_aggregates_is_in_the_catalogue_with_its_meaning() -> None:
    shown = {kind for aggregate in catalogue.AGGREGATES for kind in catalogue.events_of(aggregate)}
    declared = {
        kind for kind in Event.__subclasses__() if kind.__module__.startswith("aggregates.")
    }
    assert shown == declared
    assert len({kind.TOPIC for kind in shown}) == len(shown) > 40
    assert [
        kind.TOPIC for kind in shown if not kind.__doc__ or kind.__doc__.startswith(kind.__name__)
    ] == []


def test_a_field_of_an_event_is_shown_with_its_type_and_what_its_lack_means() -> None:
    table = rows(
        events_page.catalogue().partition("### `Attachment.AttachmentCreated`, version 1")[2],
        "field | type | missing",
    )
    assert ["`volume_id`", "string", ""] in table
    assert ["`legacy`", "boolean", "`false`"] in table
    assert ["`access_mode`", "string or null", "`null`"] in table


# --- settings --------------------------------------------------------------------------------

#: Values that are an example and not the default: names of this deployment, secrets, choices.
EXAMPLES = {
    "agent": {"agent.host", "ledger.url", "ledger.token_file", "keys.fixed_key_file"}
    | {"keys.barbican"},
    "service": {"database_url", "auth", "listen.host"}
    | {"keystone.www_authenticate_uri", "keystone.cacert", "policy.file"}
    | {"tracing.endpoint"}
    | {f"observe.{name}" for name in ("region_name", "compute_endpoint", "volume_endpoint")}
    | {"observe.cacert", "observe.notifications", "observe.pass_on_to"},
}
#: Of entries, whose keys are compared apart.
TABLES = {"tokens", "flavors", "cells"}
#: Given in another way in the example, as the comment beside it says.
ELSEWHERE = {
    "agent": {"ledger.token", "keys.fixed_key", "keys.auth"},
    "service": {*TABLES, "keystone.auth", "observe.auth"},
}


def _examples(text: str) -> list[dict[str, Any]]:
    return [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)]


def _leaves(data: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _defaults(settings: Any) -> dict[str, Any]:
    leaves = _leaves(dataclasses.asdict(settings))
    return {key: list(value) if isinstance(value, tuple) else value for key, value in leaves}


@pytest.mark.parametrize("program", ["agent", "service"])
def test_the_example_of_the_settings_has_every_key_with_its_default(program: str) -> None:
    text, kind = (
        (AGENT, agent_config.AgentSettings) if program == "agent" else (CLI, config.Settings)
    )
    shown = dict(_leaves(_examples(text)[0]))
    defaults = {
        key: value for key, value in _defaults(kind()).items() if not key.startswith("cinder.")
    }
    assert set(shown) - TABLES == set(defaults) - ELSEWHERE[program]
    compared = set(shown) - TABLES - EXAMPLES[program]
    assert {key: shown[key] for key in compared} == {key: defaults[key] for key in compared}


def test_the_examples_of_a_token_a_flavor_and_a_cell_have_every_key() -> None:
    [token], [flavor], [cell] = (_examples(CLI)[0][name] for name in ("tokens", "flavors", "cells"))
    assert set(cell) == {field.name for field in dataclasses.fields(config.CellSettings)}
    assert {*token, "token"} == {field.name for field in dataclasses.fields(config.Token)}
    assert set(flavor) == {field.name for field in dataclasses.fields(config.Flavor)}


def test_the_example_of_cinders_settings_has_every_key_with_its_default() -> None:
    shown = _examples(AGENT)[1]["cinder"]
    defaults = _defaults(agent_config.AgentSettings().cinder)
    backoff = dict(_leaves(shown.pop("backoff"), "backoff."))
    assert {*shown, *backoff} == set(defaults)
    given = {key: value for key, value in defaults.items() if value is not None}
    assert {key: {**shown, **backoff}[key] for key in given} == given


# --- commands --------------------------------------------------------------------------------


def test_the_exit_codes_are_those_of_the_program() -> None:
    said = [int(code) for code, _ in rows(CLI, "code | meaning")]
    assert said == [code.value for code in ExitCode]


# --- what an agent logs ----------------------------------------------------------------------


def test_codes_and_events_of_the_agents_table_of_troubles_exist() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "host_agent").rglob("*.py"))
    named = re.findall(r"^\| ((?:`\w+`(?:, )?)+)", AGENT.partition("what you see")[2], re.MULTILINE)
    words = [word for cell in named for word in re.findall(r"`(\w+)`", cell)]
    assert len(words) > 15
    assert [word for word in words if f'"{word}"' not in code] == []


# --- what else the code has a list of --------------------------------------------------------


def _first_cells(text: str, heads: str) -> set[str]:
    return {name for row in rows(text, heads) for name in re.findall(r"`([\w.]+)`", row[0])}


def test_the_agents_verbs_are_all_in_its_table() -> None:
    assert _first_cells(AGENT, "verb | what it ensures | what it looks at first") == set(Verb)
    assert sorted([*VERBS, *GUEST_VERBS]) == sorted(Verb), "each is one function of its name"


def test_the_calls_that_a_fault_can_strike_are_all_in_their_tables() -> None:
    of_cinder = _first_cells((ROOT / "docs/faults.md").read_text(), "call | ids")
    assert of_cinder == {name for _, _, name, _ in CINDER_ROUTES} == fault_calls.CINDER_CALLS
    simulated = (ROOT / "host_agent/simulated/adapters.py").read_text()
    calls = {
        name if "." in name else f"guests.{name}"
        for name in re.findall(r'_?around\(\s*"([\w.]+)"', simulated)
    }
    shown = _first_cells(AGENT, "call | more ids | `lie`")
    named = {f"guests{name}" if name.startswith(".") else name for name in shown}
    assert named == calls == fault_calls.HOST_CALLS


def test_the_tables_of_the_projections_are_those_of_the_code() -> None:
    log = (ROOT / "docs/log.md").read_text()
    tables = {projection.table for projection in ALL}
    tables |= {derived.table for projection in ALL for derived in projection.derived}
    assert _first_cells(log, "table | one row per | notes") == tables


def test_every_place_of_a_flow_is_explained() -> None:
    assert set(flow_pages._PLACES) == set(Place)


DOCUMENTS = sorted(
    path
    for room in ("", "docs/", "docs/decisions/", "docs/alerts/", "docs/runbooks/")
    for path in ROOT.glob(f"{room}*.md")
)
#: Files of a deployment, and names with a part to fill in.
NOT_OURS = re.compile(r"/etc/|^/openapi|^(ledger|agent)\.toml$|^events-2025|NNNN|<")


def test_a_file_that_a_document_names_exists() -> None:
    bases = (ROOT, ROOT / "ledger", ROOT / "tests", ROOT / "docs", ROOT / "sql")
    named = [
        (str(document.relative_to(ROOT)), name)
        for document in DOCUMENTS
        for name in re.findall(
            r"`([\w<>./-]+\.(?:py|sql|sh|toml|md|lock|json))`", document.read_text()
        )
    ]
    missing = [each for each in named if not any((base / each[1]).exists() for base in bases)]
    assert [each for each in missing if not NOT_OURS.search(each[1])] == []


#: Names of other programs' settings, and of ours with a part to fill in.  (Decisions and the
#: changelog tell what was.)
FOREIGN = {"admin_project_name", "GRAFANA_PASSWORD", "OS_CACERT", "LEDGER_LIMITS__NAME"}


@cache
def words_of_the_code() -> frozenset[str]:
    rooms = ("ledger", "projections", "handlers", "aggregates", "host_agent", "sql", "tests")
    files = [path for room in rooms for path in (ROOT / room).rglob("*") if path != Path(__file__)]
    code = [path for path in files if path.suffix in {".py", ".sql", ".toml", ".sh"}]
    texts = [path.read_text() for path in [*code, *ROOT.glob("docs/*/*.yml"), ROOT / "Makefile"]]
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


def test_a_name_that_a_document_quotes_is_in_the_code() -> None:
    """Renamed fields, columns, metrics, codes and constants live on in prose otherwise."""
    known = words_of_the_code() | {f"{each}_total" for each in words_of_the_code()}
    known |= FOREIGN | {act.route for act in ACTS}
    for document in DOCUMENTS:
        if {"decisions", "CHANGELOG.md", "conformance.md"} & {document.name, document.parent.name}:
            continue
        prose = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
        quoted = set(re.findall(r"`([A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+)`", prose))
        ours = {name for name in quoted if "__" not in name}  # variables, tried elsewhere
        unknown = {name.removeprefix("ATTACHMENT_LEDGER_AGENT_") for name in ours} - known
        assert unknown == set(), document


def test_a_command_line_in_a_document_can_be_typed(tmp_path: Path) -> None:
    shell, typed = Shell(), 0
    for document in DOCUMENTS:
        text = document.read_text().replace("\\\n", " ")
        for line in re.findall(r"^(?:[ ]*[$#]| {4}) ?attachment-ledger (.*)$", text, re.MULTILINE):
            try:
                _type(shell, line, tmp_path)
            except SystemExit:
                pytest.fail(f"{document}: {line}")
            typed += 1
    assert typed > 100


def _type(shell: Shell, line: str, archive: Path) -> None:
    words = shlex.split(line.partition("  #")[0].partition(" > ")[0], comments=True)
    words = shell.parser.parse_known_args(words)[1]
    kind, name, rest = shell.command_manager.find_command(words)
    kind(shell, None).get_parser(name).parse_args(
        [str(archive) if word in {"/archive", "/checkpoints"} else word for word in rest]
    )


def test_a_file_that_the_code_names_exists() -> None:
    """In comments and docstrings: renamed files are named there for years otherwise."""
    rooms = ("ledger", "projections", "handlers", "aggregates", "host_agent", "sql")
    code = _texts_in(*rooms)
    known = {path.name for path in [*code, *_texts_in("docs", "tests"), *ROOT.glob("*.md")]}
    assert len(code) > 150
    wrong = [
        (str(path.relative_to(ROOT)), name)
        for path in code
        for name in re.findall(r"\b(\w+\.(?:py|sql|md))\b", path.read_text())
        if name not in known
    ]
    assert wrong == []


def _texts_in(*rooms: str) -> list[Path]:
    files = (path for room in rooms for path in (ROOT / room).rglob("*"))
    return [path for path in files if path.suffix in {".py", ".sql", ".md"}]
