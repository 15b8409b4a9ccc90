"""Runs: order, reports, what is never done twice, and stopping."""

from __future__ import annotations

import io
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from host_agent.reporting import Verdict
from host_agent.shared.contract.messages import ErrorKind, Report, Verb
from tests.agent.bench import (
    ATTACH,
    DETACH,
    WAIT_S,
    Bench,
    Gauge,
    Reports,
    command,
    eventually,
    running_executor,
)
from tests.doubles.host_checks import broken_invariants, connected_paths


def test_steps_run_in_order_and_each_is_reported(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    given = command(bench.lane())
    with running_executor(bench.world(), tmp_path, reports) as executor:
        assert executor.submit(given)
        got = reports.wait(len(ATTACH))
    assert reports.steps() == [verb.value for verb in ATTACH]
    ids = (given.operation_id, given.run, given.epoch)
    assert all((r.operation_id, r.run, r.epoch) == ids for r in reports.got)
    assert all(r.error is None and r.took_ms >= 0 for r in got)
    assert got[0].outputs["driver"] == "iscsi"
    assert broken_invariants(bench.store) == []


def test_next_step_waits_for_the_ledgers_word(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    reports.gate.clear()
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(command(bench.lane()))
        reports.wait(1)
        before = list(bench.calls)
        assert reports.steps() == ["attachment_update"]
        assert bench.calls == before
        reports.gate.set()
        reports.wait(len(ATTACH))


@pytest.mark.parametrize("verdict", [Verdict.STOP, Verdict.STALE])
def test_run_ends_when_the_ledger_does_not_continue_it(
    bench: Bench, reports: Reports, tmp_path: Path, verdict: Verdict
) -> None:
    reports.verdicts = [Verdict.CONTINUE, verdict]
    other = bench.lane()
    with running_executor(bench.world(), tmp_path, reports, workers=1) as executor:
        executor.submit(command(bench.lane()))
        executor.submit(command(other, (Verb.VOLUME_WAIT_READY,)))
        reports.wait(3)
    assert reports.steps() == ["attachment_update", "volume_wait_ready", "volume_wait_ready"]
    assert connected_paths(bench.store) == set()


def test_first_failing_step_ends_the_run(bench: Bench, reports: Reports, tmp_path: Path) -> None:
    bench.faults.replace([{"call": "brick.connect", "do": "fail", "kind": "final", "code": "x"}])
    reports.verdicts = [Verdict.CONTINUE] * 9  # even if the ledger said otherwise
    other = bench.lane()
    with running_executor(bench.world(), tmp_path, reports, workers=1) as executor:
        executor.submit(command(bench.lane()))
        executor.submit(command(other, (Verb.VOLUME_WAIT_READY,)))
        got = reports.wait(4)
    assert reports.steps()[:3] == ["attachment_update", "volume_wait_ready", "volume_connect"]
    assert got[2].error is not None
    assert (got[2].error.kind, got[2].error.code) == (ErrorKind.FINAL, "x")
    assert reports.got[3].operation_id != reports.got[2].operation_id


def test_unexpected_exception_is_unknown_and_shows_only_its_type(
    bench: Bench, reports: Reports, tmp_path: Path, log_lines: io.StringIO
) -> None:
    lane = bench.attached()
    secret = bench.model.secrets[0]

    def broken(info: Any, device: Any = None) -> None:
        raise KeyError(f"login failed with {secret}")

    bench.brick.disconnect = broken  # type: ignore[method-assign]
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(command(lane, DETACH))
        got = reports.wait(2)
    assert got[1].error is not None
    assert (got[1].error.kind, got[1].error.code) == (ErrorKind.UNKNOWN, "internal")
    assert "KeyError" in got[1].error.message
    assert secret not in str(got)
    assert "\n    Traceback (most recent call last):" in log_lines.getvalue()
    assert secret not in log_lines.getvalue()


def test_secret_in_a_ports_message_is_masked_in_report_and_log(
    bench: Bench, reports: Reports, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lane = bench.attached()
    secret = bench.model.secrets[0]
    bench.faults.replace(
        [{"call": "brick.disconnect", "do": "fail", "message": f"CHAP says {secret} is wrong"}]
    )
    with (
        caplog.at_level(logging.DEBUG),
        running_executor(bench.world(), tmp_path, reports) as executor,
    ):
        executor.submit(command(lane, DETACH))
        got = reports.wait(2)
    assert got[1].error is not None
    assert got[1].error.message == "CHAP says *** is wrong"
    assert secret not in caplog.text


# --- what is not run twice ------------------------------------------------------------------


def test_command_that_is_queued_running_or_finished_is_not_taken_again(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    lane = bench.lane()
    given = command(lane)
    with running_executor(bench.world(), tmp_path, reports) as executor:
        reports.gate.clear()
        assert executor.submit(given)
        reports.wait(1)
        assert not executor.submit(given), "running"
        later = command(lane, DETACH)
        assert executor.submit(later)
        assert not executor.submit(later), "queued"
        reports.gate.set()
        reports.wait(len(ATTACH) + len(DETACH))
        eventually(lambda: not executor._running, "all runs to end")
        assert not executor.submit(given), "finished"
    assert len(reports.got) == len(ATTACH) + len(DETACH)


def test_command_dropped_as_stale_may_be_handed_out_again(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    dropped = threading.Event()
    reports.verdicts = [Verdict.STALE]
    given = command(bench.lane())
    with running_executor(bench.world(), tmp_path, reports, dropped=dropped.set) as executor:
        executor.submit(given)
        assert dropped.wait(WAIT_S), "the ledger is to be asked again"
        assert executor.submit(given)
        reports.wait(1 + len(ATTACH))


def test_command_of_an_old_epoch_is_refused_without_touching_anything(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    dropped = threading.Event()
    lane = bench.lane()
    bench.calls.clear()
    hooks: dict[str, Any] = {"is_current": lambda epoch: epoch == 2, "dropped": dropped.set}
    with running_executor(bench.world(), tmp_path, reports, **hooks) as executor:
        executor.submit(command(lane))
        assert dropped.wait(WAIT_S)
    assert bench.calls == []
    assert reports.got == []


def test_run_is_dropped_at_the_next_step_once_the_host_was_fenced(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    epochs, dropped = [1], threading.Event()

    def fencing(report: Report) -> Verdict:
        epochs[0] = 2
        return reports(report)

    hooks: dict[str, Any] = {"is_current": lambda e: e == epochs[0], "dropped": dropped.set}
    with running_executor(bench.world(), tmp_path, fencing, **hooks) as executor:
        executor.submit(command(bench.lane()))
        assert dropped.wait(WAIT_S)
    assert reports.steps() == ["attachment_update"]


# --- bounds and stopping ------------------------------------------------------------------------


def test_full_queue_makes_submit_wait(bench: Bench, reports: Reports, tmp_path: Path) -> None:
    reports.gate.clear()
    lanes = [bench.lane() for _ in range(4)]
    taken: list[bool] = []
    with running_executor(bench.world(), tmp_path, reports, workers=1, queue_max=2) as executor:
        executor.submit(command(lanes[0]))
        reports.wait(1)
        for lane in lanes[1:3]:
            executor.submit(command(lane))
        late = threading.Thread(target=lambda: taken.append(executor.submit(command(lanes[3]))))
        late.start()
        late.join(0.2)
        assert taken == []
        reports.gate.set()
        reports.wait(4 * len(ATTACH))
        late.join(WAIT_S)
    assert taken == [True]


def test_stop_finishes_the_running_step_and_begins_nothing_new(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    gauge = Gauge()
    release = threading.Event()
    real = bench.brick.connect

    def connect(info: Any) -> Any:
        with gauge(0):
            release.wait(WAIT_S)
            return real(info)

    bench.brick.connect = connect  # type: ignore[method-assign]
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(command(bench.lane()))
        eventually(lambda: gauge.inside, "the step to run")
        stopper = threading.Thread(target=executor.stop, args=(WAIT_S,))
        stopper.start()
        eventually(executor._stop.is_set, "stopping")
        release.set()
        stopper.join()
        assert not executor.submit(command(bench.lane()))
    assert reports.steps()[-1] == "volume_connect"
