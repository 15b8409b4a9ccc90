"""Which runs exclude each other, within this process and across processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from host_agent.reporting import Verdict
from host_agent.shared.contract.lane import Lane
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
    lock_held_elsewhere,
    running_executor,
)
from tests.doubles.host_checks import connected_paths


def gauged(bench: Bench, gauge: Gauge, wait_s: float) -> None:
    real: Callable[[Any], Any] = bench.brick.connect

    def connect(info: Any) -> Any:
        with gauge(wait_s):
            return real(info)

    bench.brick.connect = connect  # type: ignore[method-assign]


@pytest.mark.parametrize("shared_targets", [True, None])
def test_lp1961102_runs_on_one_shared_target_are_serial(
    bench: Bench, reports: Reports, tmp_path: Path, shared_targets: bool | None
) -> None:
    gauge = Gauge(expected=2)
    gauged(bench, gauge, 0.1)
    lanes = [bench.lane(shared_targets=shared_targets) for _ in range(3)]
    with running_executor(bench.world(), tmp_path, reports) as executor:
        for lane in lanes:
            executor.submit(command(lane))
        reports.wait(3 * len(ATTACH))
    assert gauge.most == 1


def test_lp1800515_runs_without_shared_targets_are_concurrent(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    gauge = Gauge(expected=3)
    gauged(bench, gauge, WAIT_S)
    server_id = bench.server()
    lanes = [bench.lane(server_id, shared_targets=False, device_name=f"vd{x}") for x in "bcd"]
    with running_executor(bench.world(), tmp_path, reports) as executor:
        for lane in lanes:
            executor.submit(command(lane))
        assert gauge.together.wait(WAIT_S), "all three of one server at once"
        reports.wait(3 * len(ATTACH))


def test_target_lock_covers_the_run_from_update_to_complete(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    lane = bench.lane(shared_targets=True, service_uuid="backend-9")
    seen: list[bool] = []

    def watching(report: Report) -> Verdict:
        seen.append((tmp_path / "target-backend-9.lock").exists())
        return reports(report)

    with running_executor(bench.world(), tmp_path, watching) as executor:
        executor.submit(command(lane))
        reports.wait(len(ATTACH))
    assert seen == [True] * len(ATTACH)


def _held_while(bench: Bench, reports: Reports, lane: Lane, lock: Path) -> list[bool]:
    """Whether the lock is there, at each report of a detach."""
    seen: list[bool] = []

    def watching(report: Report) -> Verdict:
        seen.append(lock.exists())
        return reports(report)

    with running_executor(bench.world(), lock.parent, watching) as executor:
        executor.submit(command(lane, DETACH))
        reports.wait(len(DETACH))
    return seen


def test_target_lock_covers_a_detach_from_the_disconnect_to_the_delete(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    """S3: else a disconnect could log out of the target that another run is logging in to."""
    lane = bench.attached(shared_targets=True, service_uuid="backend-9")
    lock = tmp_path / "target-backend-9.lock"
    assert _held_while(bench, reports, lane, lock) == [True] * len(DETACH)


def test_a_multiattach_volume_is_locked_while_a_detach_asks_who_else_has_it(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    lane, _ = bench.two_users(shared_targets=False)
    lock = tmp_path / f"volume-{lane.volume_id}.lock"
    assert _held_while(bench, reports, lane, lock) == [True] * len(DETACH)


def test_runs_of_one_server_and_volume_are_serial_and_in_the_ledgers_order(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    lane = bench.lane(shared_targets=False)
    attach, detach = command(lane), command(lane, DETACH)
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(attach)
        executor.submit(detach)
        reports.wait(len(ATTACH) + len(DETACH))
    operations = [attach.operation_id] * len(ATTACH) + [detach.operation_id] * len(DETACH)
    assert [r.operation_id for r in reports.got] == operations
    assert connected_paths(bench.store) == set()


def test_of_two_detaches_of_a_multiattach_volume_exactly_one_disconnects(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    first, second = bench.two_users(shared_targets=False)
    given = {lane.attachment_id or "": command(lane, DETACH) for lane in (first, second)}

    def recording(report: Report) -> Verdict:
        if report.results[0].step == "volume_disconnect":
            gone = next(id_ for id_, c in given.items() if c.operation_id == report.operation_id)
            del bench.users.by_attachment[gone]
        return reports(report)

    with running_executor(bench.world(), tmp_path, recording) as executor:
        for each in given.values():
            executor.submit(each)
        got = reports.wait(2 * len(DETACH))
    shared = [r.outputs["shared"] for r in got if r.step == "volume_disconnect"]
    assert sorted(shared) == [False, True]
    assert connected_paths(bench.store) == set()


def test_waits_for_a_late_service_uuid_before_it_locks(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    lane = bench.lane(shared_targets=True, service_uuid=None)
    volume = bench.model.volume(lane.volume_id)
    bench.calls.clear()
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(command(lane))
        eventually(lambda: bench.calls.count("cinder.volume") > 3, "polls")
        assert set(bench.calls) == {"cinder.volume"}
        volume.service_uuid = "late"
        reports.wait(len(ATTACH))


def test_failure_before_the_first_step_is_reported_as_its_result(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    lane = bench.lane()
    bench.faults.replace([{"call": "volume_show", "do": "fail", "status": 503}])
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(command(lane))
        got = reports.wait(1)
    assert got[0].step == "attachment_update"
    assert got[0].error is not None
    assert got[0].error.kind is ErrorKind.RETRYABLE


def test_volume_that_cinder_forgot_is_let_go_by_this_hosts_own_record(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    lane = bench.attached()
    with bench.model.lock:
        bench.model.drop_attachment(lane.attachment_id or "")
        del bench.model.volumes[lane.volume_id]
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(command(lane, DETACH))
        got = reports.wait(len(DETACH))
    assert [report.error for report in got] == [None] * len(DETACH)
    assert connected_paths(bench.store) == set()


def test_lp1947370_run_waits_for_the_target_lock_of_another_process(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    lane = bench.lane(shared_targets=None, service_uuid="backend-7")
    with (
        lock_held_elsewhere(tmp_path, "target-backend-7") as holder,
        running_executor(bench.world(), tmp_path, reports) as executor,
    ):
        executor.submit(command(lane))
        free = command(bench.lane(shared_targets=False), (Verb.VOLUME_WAIT_READY,))
        executor.submit(free)
        reports.wait(1)
        assert [r.operation_id for r in reports.got] == [free.operation_id]
        holder.release()
        reports.wait(1 + len(ATTACH))


def test_lp1794829_slow_removal_is_waited_for_and_is_no_failure(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    lane = bench.attached()
    bench.faults.replace([{"call": "brick.disconnect", "do": "delay", "seconds": 0.2}])
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(command(lane, DETACH))
        got = reports.wait(len(DETACH))
    assert all(r.error is None for r in got)
    assert got[1].took_ms >= 200
