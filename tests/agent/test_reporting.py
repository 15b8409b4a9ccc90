"""Results that travel together: when they do, and what never waits (decision 0028)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from host_agent import reporting
from host_agent.reporting import Verdict
from host_agent.shared.contract.messages import Command, CommandStep, Report
from host_agent.shared.contract.wire import plain, read
from tests.agent.bench import (
    ATTACH,
    DETACH,
    WAIT_S,
    Bench,
    Reports,
    command,
    eventually,
    running_executor,
)
from tests.agent.fake_ledger import FakeLedger
from tests.agent.test_link import Agent, finished

NEVER_S = 1000.0


def together(given: Command, *durable: str) -> Command:
    """The command, with no result of which the next step waits, but these."""
    steps = (replace(step, durable=step.name in durable) for step in given.steps)
    return replace(given, steps=tuple(steps))


def told(reports: Reports) -> list[list[str]]:
    return [[result.step for result in report.results] for report in reports.got]


@pytest.fixture(autouse=True)
def _in_no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "REPORT_AFTER_S", NEVER_S)


@contextmanager
def held(bench: Bench, reports: Reports, tmp_path: Path, given: Command) -> Iterator[Any]:
    """The executor, with the run's connect under way until the test is over."""
    release, inside = threading.Event(), threading.Event()
    real = bench.brick.connect

    def connect(info: Any) -> Any:
        inside.set()
        assert release.wait(WAIT_S)
        return real(info)

    bench.brick.connect = connect  # type: ignore[method-assign]
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(given)
        assert inside.wait(WAIT_S)
        try:
            yield executor
        finally:
            release.set()


def test_the_results_of_a_run_are_one_report_at_its_end(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(together(command(bench.lane())))
        reports.wait(len(ATTACH))
    assert told(reports) == [[verb.value for verb in ATTACH]]


def test_a_step_begins_when_what_must_be_durable_before_it_is(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    lane = bench.attached()
    reports.gate.clear()
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(together(command(lane, DETACH), "volume_disconnect"))
        reports.wait(2)
        assert told(reports) == [["disk_unplug", "volume_disconnect"]]
        assert "cinder.attachment_delete" not in bench.calls
        reports.gate.set()
        reports.wait(3)
    assert told(reports)[1:] == [["attachment_delete"]]


def test_a_failure_is_told_at_once_and_after_all_that_was_done_before_it(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    bench.faults.replace([{"call": "brick.connect", "do": "fail", "kind": "final", "code": "x"}])
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(together(command(bench.lane())))
        got = reports.wait(3)
    assert told(reports) == [["attachment_update", "volume_wait_ready", "volume_connect"]]
    assert [result.error and result.error.code for result in got] == [None, None, "x"]


def test_a_long_step_does_not_hide_what_came_before_it(
    bench: Bench, reports: Reports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "REPORT_AFTER_S", 0.2)
    with held(bench, reports, tmp_path, together(command(bench.lane()))):
        reports.wait(2)
        assert reports.steps() == ["attachment_update", "volume_wait_ready"]


def test_a_fault_in_a_late_report_ends_no_later_one_and_the_run_tells_what_it_lost(
    bench: Bench, reports: Reports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "REPORT_AFTER_S", 0.05)
    failed, release, connect = threading.Event(), threading.Event(), bench.brick.connect

    def report(said: Report) -> Verdict:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a bug")
        return reports(said)

    def held_back(info: Any) -> Any:
        assert release.wait(WAIT_S)
        return connect(info)

    bench.brick.connect = held_back  # type: ignore[method-assign]
    with running_executor(bench.world(), tmp_path, report) as executor:
        executor.submit(together(command(bench.lane())))
        assert failed.wait(WAIT_S)
        release.set()
        reports.wait(len(ATTACH))
        assert reports.steps() == [verb.value for verb in ATTACH]
        release.clear()
        executor.submit(together(command(bench.lane())))
        reports.wait(len(ATTACH) + 2)
        release.set()


def test_nothing_is_begun_while_a_result_is_overdue(
    bench: Bench, reports: Reports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a host that is cut off, or fenced, does not go on with a run for long."""
    monkeypatch.setattr(reporting, "REPORT_AFTER_S", 0.0)
    reports.gate.clear()
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(together(command(bench.lane())))
        reports.wait(1)
        assert reports.steps() == ["attachment_update"]
        assert "cinder.attachment_complete" not in bench.calls
        assert "brick.connect" not in bench.calls
        reports.gate.set()
        reports.wait(len(ATTACH))


def test_what_the_ledger_says_to_a_late_report_holds_for_the_run(
    bench: Bench, reports: Reports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "REPORT_AFTER_S", 0.2)
    reports.verdicts = [Verdict.STALE]
    dropped, real = threading.Event(), bench.brick.connect

    def connect(info: Any) -> Any:
        eventually(lambda: not reports.verdicts, "the ledger's word, while this goes on")
        return real(info)

    bench.brick.connect = connect  # type: ignore[method-assign]
    with running_executor(bench.world(), tmp_path, reports, dropped=dropped.set) as executor:
        executor.submit(together(command(bench.lane())))
        assert dropped.wait(WAIT_S)
    assert "guests.plug" not in bench.calls


def test_an_agent_that_stops_tells_what_it_has_done(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    with held(bench, reports, tmp_path, together(command(bench.lane()))) as executor:
        threading.Thread(target=executor.stop, args=(WAIT_S,)).start()
        eventually(executor._stop.is_set, "stopping")
    assert told(reports) == [["attachment_update", "volume_wait_ready", "volume_connect"]]


def test_an_interrupted_wait_does_not_lose_what_was_done_before_it(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    never_ready = bench.lane(shared_targets=False, service_uuid=None)
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(together(command(never_ready)))
        eventually(lambda: bench.calls.count("cinder.volume") > 2, "the volume to be waited for")
        assert reports.got == []
    assert reports.steps() == ["attachment_update"]


@pytest.mark.parametrize("how", [{}, {"resumed": False}, {"resumed": True}], ids=str)
def test_a_report_says_whether_the_run_may_have_gone_further_before(
    bench: Bench, reports: Reports, tmp_path: Path, how: dict[str, bool]
) -> None:
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(together(command(bench.lane())), **how)
        reports.wait(len(ATTACH))
    assert [report.further for report in reports.got] == [how.get("resumed", False)]


# --- over the line ---------------------------------------------------------------------------


def test_commands_given_before_the_registration_may_have_been_begun_before(
    bench: Bench, fake_ledger: FakeLedger, tmp_path: Path
) -> None:
    """By a former life of the agent, or by this one, which gave them up and asks anew."""
    old = together(command(bench.lane()))
    fake_ledger.give(old)
    fake_ledger.position = old.position
    with Agent(bench, fake_ledger, tmp_path).running():
        finished(fake_ledger, old)
        new = fake_ledger.give(together(command(bench.lane())))
        finished(fake_ledger, new)
    further = {report.operation_id: report.further for report in fake_ledger.reports}
    assert further == {old.operation_id: True, new.operation_id: False}


def test_a_command_that_is_called_off_may_have_been_begun_before(
    bench: Bench, fake_ledger: FakeLedger, tmp_path: Path
) -> None:
    """Its position is that of the word that called it off."""
    given = fake_ledger.give(replace(together(command(bench.lane())), cancel=True))
    with Agent(bench, fake_ledger, tmp_path).running():
        finished(fake_ledger, given)
    assert [report.further for report in fake_ledger.reports] == [True]


def test_a_ledger_that_does_not_say_so_is_told_each_result_by_itself() -> None:
    """It may be one that reads only the first."""
    assert read({"name": "ready", "verb": "volume_wait_ready"}, CommandStep).durable


def test_a_report_reads_as_it_was_written() -> None:
    results: list[Any] = [
        {"step": name, "took_ms": 3, "outputs": {}, "error": None} for name in "ab"
    ]
    wire = {"operation_id": str(uuid4()), "run": 1, "epoch": 2, "results": results, "further": True}
    report = read(wire, Report)
    assert [result.step for result in report.results] == ["a", "b"]
    assert read(plain(report), Report) == report
