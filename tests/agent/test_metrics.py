"""The agent's own numbers: counted by outcome, shown where the settings say."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from host_agent import metrics
from host_agent.line.credentials import Ending
from host_agent.metrics import Family, Numbers, State, serving
from host_agent.reporting import Verdict
from host_agent.shared.cinder.client import CinderClient
from host_agent.shared.cinder.settings import CinderSettings, RetryLimits
from host_agent.shared.contract import ErrorKind, Report, StepError, StepResult
from host_agent.shared.ports import PortError
from host_agent.shared.settings import ConfigError
from host_agent.shared.telemetry import CALL_BOUNDS_S, Tallies
from tests.doubles.running_cinder import running_cinder
from tests.doubles.simulated_keystone import Fault, running_keystone

REGISTERED = State(registered=True, clock_skew_s=-0.25)


def samples(page: str) -> dict[str, float]:
    """Every sample by its name and the values of its labels."""
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_steps_are_counted_by_name_and_outcome_before_they_are_reported() -> None:
    numbers = Numbers()
    told: list[Report] = []

    def send(report: Report) -> Verdict:
        assert samples(numbers.page(REGISTERED))["ledger_agent_step_seconds_count plug final"] == 1
        told.append(report)
        return Verdict.CONTINUE

    done = StepResult(step="connect", took_ms=300)
    failed = StepResult(
        step="plug", took_ms=20, error=StepError(kind=ErrorKind.FINAL, code="no", message="no")
    )
    report = Report(operation_id="o", run=1, epoch=0, results=(done, done, failed))
    assert numbers.counting(send)(report) is Verdict.CONTINUE
    assert told == [report]
    page = samples(numbers.page(REGISTERED))
    seconds = "ledger_agent_step_seconds"
    assert page[f"{seconds}_count connect succeeded"] == 2
    assert page[f"{seconds}_sum connect succeeded"] == pytest.approx(0.6)
    assert page[f"{seconds}_bucket connect succeeded 0.25"] == 0
    assert page[f"{seconds}_bucket connect succeeded 1.0"] == 2
    assert page[f"{seconds}_bucket connect succeeded +Inf"] == 2


def test_how_it_stands_with_the_ledger_is_told_and_a_clock_nobody_knows_is_not() -> None:
    page = samples(Numbers().page(REGISTERED))
    assert page["ledger_agent_registered"] == 1
    assert page["ledger_agent_clock_skew_seconds"] == -0.25
    page = samples(Numbers().page(State(registered=False, clock_skew_s=None)))
    assert page["ledger_agent_registered"] == 0
    assert "ledger_agent_clock_skew_seconds" not in page


def test_how_long_the_hosts_own_certificate_lasts_is_told_where_there_is_one() -> None:
    expiry, ending = (f"ledger_agent_certificate_{each}" for each in ("expiry_seconds", "ending"))
    shown = State(registered=True, clock_skew_s=None, certificate=Ending(86_400.0, soon=True))
    page = samples(Numbers().page(shown))
    assert (page[expiry], page[ending]) == (86_400.0, 1)
    assert not {expiry, ending} & samples(Numbers().page(REGISTERED)).keys()


def test_a_label_cannot_break_out_of_its_line() -> None:
    evil = 'a"} 1\nforged 2\\'
    page = metrics.text(Family("m", "gauge", "what", [("", {"step": evil}, 1.5)]))
    [family] = text_string_to_metric_families(page)
    assert [(sample.labels, sample.value) for sample in family.samples] == [({"step": evil}, 1.5)]


def test_the_page_is_at_its_path_alone() -> None:
    with serving("127.0.0.1", 0, lambda: Numbers().page(REGISTERED)) as port:
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert answer.headers["Content-Type"] == metrics.CONTENT_TYPE
            assert samples(answer.read().decode())["ledger_agent_registered"] == 1
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/../metrics")
        assert connection.getresponse().status == 404
        connection.close()


def test_a_reader_that_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "READ_S_MAX", 0.05)
    with (
        serving("127.0.0.1", 0, lambda: "") as port,
        closing(http.client.HTTPConnection("127.0.0.1", port)) as silent,
    ):
        silent.connect()
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            assert answer.status == 200


def test_an_address_that_is_taken_is_a_wrong_setting() -> None:
    with (
        serving("127.0.0.1", 0, str) as port,
        pytest.raises(ConfigError, match=rf"\[metrics\].*port {port}"),
        serving("127.0.0.1", port, str),
    ):
        pass


@contextmanager
def counted(settings: CinderSettings) -> Iterator[tuple[CinderClient, Tallies]]:
    calls = Tallies(CALL_BOUNDS_S)
    client = CinderClient(replace(settings, backoff=RetryLimits(attempts_max=1)), calls=calls)
    yield client, calls
    client.close()


def outcomes(calls: Tallies) -> dict[tuple[str, ...], int]:
    return {labels: buckets[-1][1] for labels, (buckets, _) in calls.counted().items()}


def test_calls_of_cinder_are_counted_by_outcome() -> None:
    with (
        running_cinder() as cinder,
        counted(CinderSettings(endpoint=cinder.endpoint)) as (client, calls),
    ):
        client.volume(cinder.model.add_volume().id)
        before = outcomes(calls)
        with pytest.raises(PortError):
            client.volume("6f1d9a3e-0000-4000-8000-000000000000")
        assert outcomes(calls) == {**before, ("cinder", "4xx"): 1}
    nobody = CinderSettings(endpoint="http://127.0.0.1:1/v3")
    with counted(nobody) as (client, calls):
        with pytest.raises(PortError):
            client.reach()
        assert outcomes(calls) == {("cinder", "no_answer"): 1}


def test_log_ins_are_calls_of_keystone() -> None:
    with running_keystone() as keystone, running_cinder() as cinder:
        auth = keystone.user("ledger", "admin", project="service")
        with counted(CinderSettings(auth=auth, endpoint=cinder.endpoint)) as (client, calls):
            assert client.sees_all_projects()
            assert {neighbour for neighbour, _ in outcomes(calls)} == {"keystone"}
            client.reach()
            assert outcomes(calls)["cinder", "3xx"] == 1  # its versions
        keystone.fault = Fault.AWAY
        with counted(CinderSettings(auth=auth, endpoint=cinder.endpoint)) as (client, calls):
            with pytest.raises(PortError):
                client.sees_all_projects()
            assert set(outcomes(calls)) == {("keystone", "no_answer")}


def test_the_manual_has_each_metric_with_its_labels() -> None:
    numbers, certified = Numbers(), REGISTERED._replace(certificate=Ending(1.0, soon=True))
    numbers.steps.add(("connect", "succeeded"), 0.1)
    numbers.calls.add(("cinder", "2xx"), 0.1)
    shown = {
        (family.name, family.type, ", ".join(f"`{name}`" for name in labels))
        for family in text_string_to_metric_families(numbers.page(certified))
        for labels in [[name for name in family.samples[-1].labels if name != "le"]]
    }
    manual = (Path(__file__).parents[2] / "docs/host-agent.md").read_text()
    rows = re.findall(r"^\| `(ledger_agent_\w+)` \| (\w+) \| (.*?) \|", manual, re.MULTILINE)
    assert {(name, kind, labels.strip()) for name, kind, labels in rows} == shown
