"""An agent tells when its steps ended, and how wrong its host's clock is, by the ledger's time."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from tests.agent.bench import Bench, command, eventually
from tests.agent.fake_ledger import FakeLedger
from tests.agent.test_link import Agent, finished


@pytest.mark.parametrize("ahead_s", [-7_200.0, 0.0, 14.0])
def test_a_step_ended_when_it_did_however_wrong_the_hosts_clock_is(
    bench: Bench, fake_ledger: FakeLedger, tmp_path: Path, ahead_s: float
) -> None:
    fake_ledger.ahead_s = ahead_s
    began = time.time()
    with Agent(bench, fake_ledger, tmp_path).running() as agent:
        given = fake_ledger.give(command(agent.bench.lane()))
        finished(fake_ledger, given)
    results = [result for report in fake_ledger.reports for result in report.results]
    assert results
    for result in results:
        assert result.occurred is not None
        at, offset_s, error_s = dataclasses.astuple(result.occurred)
        assert began < at < time.time(), "by the host's own clock"
        assert offset_s == pytest.approx(-ahead_s, abs=error_s + 1e-6)
        assert 0 < error_s < 5
        assert began + ahead_s - error_s < at - offset_s < time.time() + ahead_s + error_s


def test_a_step_that_is_reported_late_says_when_it_was(
    bench: Bench, fake_ledger: FakeLedger, tmp_path: Path
) -> None:
    with Agent(bench, fake_ledger, tmp_path).running() as agent:
        fake_ledger.fail_reports = [503] * 20
        given = fake_ledger.give(command(agent.bench.lane()))
        eventually(lambda: len(fake_ledger.fail_reports) < 18, "reports that fail")
        first_tried = time.time()
        finished(fake_ledger, given)
    [first, *_] = fake_ledger.reports[0].results
    assert first.occurred is not None
    assert first.occurred.at < first_tried, "not when it came through"


def test_it_says_how_far_its_hosts_clock_is_ahead(
    bench: Bench, fake_ledger: FakeLedger, tmp_path: Path
) -> None:
    fake_ledger.ahead_s = -100.0
    with Agent(bench, fake_ledger, tmp_path).running():
        eventually(lambda: any(fake_ledger.said_ahead), "what it has learnt from an answer")
    assert fake_ledger.said_ahead[0] is None, "it knows nothing before"
    [said, *_] = filter(None, fake_ledger.said_ahead)
    assert float(said) == pytest.approx(100.0, abs=5)


def test_an_older_ledger_that_tells_no_time_is_told_none(
    bench: Bench, fake_ledger: FakeLedger, tmp_path: Path
) -> None:
    fake_ledger.ahead_s = None
    with Agent(bench, fake_ledger, tmp_path).running() as agent:
        given = fake_ledger.give(command(agent.bench.lane()))
        finished(fake_ledger, given)
    assert {r.occurred for report in fake_ledger.reports for r in report.results} == {None}
    assert set(fake_ledger.said_ahead) == {None}
