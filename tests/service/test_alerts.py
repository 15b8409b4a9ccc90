"""Alerts, runbooks and the dashboard name what the service and the agent show, and each other."""

from __future__ import annotations

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from host_agent.line.credentials import Expiry
from host_agent.metrics import LineState, Numbers
from ledger.auth.tls import gauges
from ledger.log.application import Ledger
from tests import tools
from tests.service.api_world import Api
from tests.service.test_api_v1 import parked_detach
from tests.store.drifting import begin_look, end_look

ROOT = Path(__file__).parents[2]
RULES = ROOT / "docs/alerts/attachment-ledger.rules.yml"
TESTS = ROOT / "docs/alerts/attachment-ledger.tests.yml"
DASHBOARD = ROOT / "docs/grafana/attachment-ledger.json"
RUNBOOKS = ROOT / "docs/runbooks"

#: What Prometheus itself adds to what it scrapes.
OF_PROMETHEUS = {"up": {"job", "instance"}}
SCRAPED = {"job", "instance"}
PARTS = ("What you see", "What it means", "What to type", "When it is over")

#: Where it is installed, or put by .ci/run.
PROMTOOL = tools.found("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[tuple[str, dict[str, Any]]]:
    found = json.loads(DASHBOARD.read_text())["panels"]
    return [(panel["title"], target) for panel in found for target in panel.get("targets", ())]


ALERTS = {rule["alert"]: rule for rule in alerts()}
QUERIES = {name: str(rule["expr"]) for name, rule in ALERTS.items()} | {
    f"{title} {target['refId']}": str(target["expr"]) for title, target in panels()
}


@dataclass
class Shown:
    """What is on the pages: of each sample's name its labels, with all values of each."""

    pages: dict[str, str]
    labels: dict[str, dict[str, set[str]]]


def _labels(page: str) -> dict[str, dict[str, set[str]]]:
    found: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            values = found.setdefault(sample.name, defaultdict(set))
            for name, value in sample.labels.items():
                values[name].add(value)
    return found


class _OfTls(Collector):
    """What a service shows besides that listens with a certificate."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        return gauges(0.0, ending=True, failed=False)


@pytest.fixture
async def shown(api: Api, database_url: str) -> Shown:
    """What a service shows that has something of everything, and an agent."""
    await parked_detach(api)  # a failed step, and what succeeded before it
    await api.ask("GET", "/readyz", None)
    with Ledger(database_url) as ledger:
        end_look(ledger, begin_look(ledger))
    await api.projected()
    numbers = Numbers()
    for calls in (api.calls, numbers.calls):  # Cinder is in this process: nobody calls it
        calls.labels("cinder", "2xx").observe(0.1)
    numbers.steps.labels("connect", "succeeded").observe(0.1)
    state = LineState(registered=True, clock_skew_s=0.0, certificate=Expiry(1.0, soon=True))
    pages = {
        "service": await (await api.ask("GET", "/metrics", None)).text(),
        "agent": generate_latest(numbers.registry(lambda: state)).decode(),
    }
    of_tls = CollectorRegistry()
    of_tls.register(_OfTls())
    pages["TLS"] = generate_latest(of_tls).decode()
    labels = {name: all_ for page in pages.values() for name, all_ in _labels(page).items()}
    return Shown(pages, labels)


SELECTOR = re.compile(r"\b(up|ledger_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")


def unknown(query: str, shown: Shown) -> Iterator[str]:
    """What a query names that is not there: metrics, labels, values of labels."""
    labels = set(SCRAPED)
    for name, matchers in SELECTOR.findall(query):
        there = shown.labels.get(name, {})
        if name not in shown.labels and name not in OF_PROMETHEUS:
            yield name
        labels |= there.keys()
        for label, operator, value in MATCHER.findall(matchers):
            if label in SCRAPED:
                continue
            if label not in there:
                yield f"{name}{{{label}}}"
            elif operator in {"=", "!="} and value not in there[label]:
                yield f'{name}{{{label}="{value}"}}'
    for group in GROUPING.findall(query):
        yield from {label.strip() for label in group.split(",")} - labels


async def test_what_a_rule_or_the_dashboard_asks_for_is_there(shown: Shown) -> None:
    """And legends name labels that their queries leave."""
    assert len(QUERIES) > 50
    wrong = {name: found for name, query in QUERIES.items() if (found := [*unknown(query, shown)])}
    assert wrong == {}
    for title, target in panels():
        query = target["expr"]
        grouped = GROUPING.findall(query)
        left = {label.strip() for group in grouped for label in group.split(",")}
        if not grouped:
            names = [name for name, _ in SELECTOR.findall(query)]
            left = SCRAPED.union(*(shown.labels[name] for name in names))
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= left, title


@pytest.mark.parametrize(
    "query",
    [
        "ledger_events > 0",
        'ledger_hosts{state="asleep"}',
        'ledger_hosts{status="alive"}',
        "sum by (host) (ledger_hosts)",
        "rate(ledger_append_seconds[5m])",
    ],
)
def test_a_query_for_what_is_not_there_is_found_out(query: str) -> None:
    there = {"ledger_hosts": {"state": {"alive"}}, "ledger_append_seconds_count": {}}
    known = Shown({}, {**there, "ledger_events_total": {}})
    assert [*unknown('max without (instance) (ledger_hosts{state="alive"})', known)] == []
    assert [*unknown(query, known)]


def test_each_alert_has_its_runbook_and_each_runbook_its_alert() -> None:
    named = {name: f"docs/runbooks/{name}.md" for name in ALERTS}
    assert {name: rule["annotations"]["runbook"] for name, rule in ALERTS.items()} == named
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == set(ALERTS)


def test_each_alert_is_in_the_table_of_alerts_with_its_severity() -> None:
    table = (ROOT / "docs/alerts/README.md").read_text()
    rows = re.findall(r"^\| \[(\w+)\]\(\.\./runbooks/(\w+)\.md\) \| (\w+) \|", table, re.MULTILINE)
    assert rows == [(name, name, rule["labels"]["severity"]) for name, rule in ALERTS.items()]


def test_each_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    tried = defaultdict(set)
    for test in yaml.safe_load(TESTS.read_text())["tests"]:
        for case in test["alert_rule_test"]:
            tried[case["alertname"]].add(bool(case["exp_alerts"]))
    assert tried == {name: {True, False} for name in ALERTS}


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_a_runbook_says_what_to_see_to_know_to_type_and_when_it_is_over(name: str) -> None:
    """That its commands can be typed is tested with those of all documents."""
    text = (RUNBOOKS / f"{name}.md").read_text()
    assert re.findall(r"^# (.*)$", text, re.MULTILINE) == [name]
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    assert tuple(parts[1::2]) == PARTS
    assert all(len(part.split()) > 5 for part in parts[2::2])
    for part in (parts[6], parts[8]):
        assert re.search(r"^\$ (attachment-ledger|curl) ", part, re.MULTILINE), part


# --- promtool ------------------------------------------------------------------------------------


def promtool(*arguments: str, given: str = "") -> str:
    """What it says to that; AssertionError if it finds anything wrong."""
    assert PROMTOOL, "promtool is missing; CI=true does not let it be skipped"
    done = subprocess.run(
        [PROMTOOL, *arguments], input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_promtool
def test_the_rules_are_right_and_fire_when_they_should() -> None:
    promtool("check", "rules", str(RULES))
    promtool("test", "rules", str(TESTS))


@needs_promtool
async def test_promtool_has_nothing_to_say_to_what_is_shown(shown: Shown) -> None:
    for page in shown.pages.values():
        assert promtool("check", "metrics", given=page) == ""


@needs_promtool
def test_the_dashboards_queries_are_promql(tmp_path: Path) -> None:
    """Written as rules, with Grafana's variables filled in."""
    queries = [
        target["expr"].replace("$__rate_interval", "5m").replace("$", "") for _, target in panels()
    ]
    rules = [{"record": f"panel:{n}", "expr": query} for n, query in enumerate(queries)]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", str(path))
