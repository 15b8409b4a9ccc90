"""The agent's own numbers: counted by outcome, shown where the settings say."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from host_agent import metrics
from host_agent.line.credentials import Expiry
from host_agent.metrics import LineState, Numbers, serving
from host_agent.reporting import Verdict
from host_agent.shared.cinder.client import CinderClient
from host_agent.shared.cinder.settings import CinderSettings, RetryLimits
from host_agent.shared.contract.messages import ErrorKind, Report, StepError, StepResult
from host_agent.shared.contract.ports import PortError
from host_agent.shared.platform.settings import ConfigError
from host_agent.shared.platform.telemetry import call_seconds
from tests.counted import outcomes
from tests.doubles.running_cinder import running_cinder
from tests.doubles.simulated_keystone import Fault, running_keystone

REGISTERED = LineState(registered=True, clock_skew_s=-0.25)


def page(numbers: Numbers, state: LineState = REGISTERED) -> str:
    return generate_latest(numbers.registry(lambda: state)).decode()


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

    def send(report: Report, changed: str | None) -> Verdict:
        assert changed == "server"
        assert samples(page(numbers))["ledger_agent_step_seconds_count final plug"] == 1
        told.append(report)
        return Verdict.CONTINUE

    done = StepResult(step="connect", took_ms=300)
    failed = StepResult(
        step="plug", took_ms=20, error=StepError(kind=ErrorKind.FINAL, code="no", message="no")
    )
    report = Report(operation_id="o", run=1, epoch=0, results=(done, done, failed))
    assert numbers.counting(send)(report, "server") is Verdict.CONTINUE
    assert told == [report]
    shown = samples(page(numbers))
    seconds = "ledger_agent_step_seconds"
    assert shown[f"{seconds}_count succeeded connect"] == 2
    assert shown[f"{seconds}_sum succeeded connect"] == pytest.approx(0.6)
    assert shown[f"{seconds}_bucket 0.25 succeeded connect"] == 0
    assert shown[f"{seconds}_bucket 1.0 succeeded connect"] == 2
    assert shown[f"{seconds}_bucket +Inf succeeded connect"] == 2


def test_how_it_stands_with_the_ledger_is_told_and_a_clock_nobody_knows_is_not() -> None:
    shown = samples(page(Numbers()))
    assert shown["ledger_agent_registered"] == 1
    assert shown["ledger_agent_clock_skew_seconds"] == -0.25
    shown = samples(page(Numbers(), LineState(registered=False, clock_skew_s=None)))
    assert shown["ledger_agent_registered"] == 0
    assert "ledger_agent_clock_skew_seconds" not in shown


def test_how_long_the_hosts_own_certificate_lasts_is_told_where_there_is_one() -> None:
    expiry, ending = (f"ledger_agent_certificate_{each}" for each in ("expiry_seconds", "ending"))
    state = LineState(registered=True, clock_skew_s=None, certificate=Expiry(86_400.0, soon=True))
    shown = samples(page(Numbers(), state))
    assert (shown[expiry], shown[ending]) == (86_400.0, 1)
    assert not {expiry, ending} & samples(page(Numbers())).keys()


def test_a_label_cannot_break_out_of_its_line() -> None:
    evil, numbers = 'a"} 1\nforged 2\\', Numbers()
    numbers.steps.labels(evil, "final").observe(1)
    names = {
        sample.labels["step"]
        for family in text_string_to_metric_families(page(numbers))
        for sample in family.samples
        if "step" in sample.labels
    }
    assert names == {evil}


def test_the_page_is_served_where_the_settings_say() -> None:
    with (
        serving("127.0.0.1", 0, Numbers().registry(lambda: REGISTERED)) as port,
        urlopen(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        assert samples(answer.read().decode())["ledger_agent_registered"] == 1


def test_a_reader_that_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics._Reader, "timeout", 0.05)
    with (
        serving("127.0.0.1", 0, CollectorRegistry()) as port,
        socket.create_connection(("127.0.0.1", port), timeout=5) as silent,
    ):
        assert silent.recv(1) == b""


def test_an_address_that_is_taken_is_a_wrong_setting() -> None:
    nothing = CollectorRegistry()
    with (
        serving("127.0.0.1", 0, nothing) as port,
        pytest.raises(ConfigError, match=rf"\[metrics\].*port {port}"),
        serving("127.0.0.1", port, nothing),
    ):
        pass


@contextmanager
def counted(settings: CinderSettings) -> Iterator[tuple[CinderClient, Histogram]]:
    calls = call_seconds()
    client = CinderClient(replace(settings, backoff=RetryLimits(attempts_max=1)), calls=calls)
    yield client, calls
    client.close()


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
    numbers, certified = Numbers(), REGISTERED._replace(certificate=Expiry(1.0, soon=True))
    numbers.steps.labels("connect", "succeeded").observe(0.1)
    numbers.calls.labels("cinder", "2xx").observe(0.1)
    shown = {
        (family.name, family.type, frozenset(family.samples[-1].labels) - {"le"})
        for family in text_string_to_metric_families(page(numbers, certified))
    }
    manual = (Path(__file__).parents[2] / "docs/host-agent.md").read_text()
    rows = re.findall(r"^\| `(ledger_agent_\w+)` \| (\w+) \| (.*?) \|", manual, re.MULTILINE)
    told = {(name, kind, frozenset(re.findall(r"\w+", labels))) for name, kind, labels in rows}
    assert told == shown
