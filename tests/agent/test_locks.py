"""Locks exclude threads and processes, and go when their holder dies."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from host_agent.clock import StopClock, Stopping
from host_agent.locks import (
    RETRY_S,
    AgentRunningError,
    Locks,
    _try_lock,
    names_for,
    names_for_guest,
)
from host_agent.shared.contract.messages import GuestOrder
from host_agent.shared.contract.ports import PortError, VolumeView
from tests.agent.bench import WAIT_S, Bench, FakeClock, lock_held_elsewhere


def view(**over: object) -> VolumeView:
    values: dict[str, object] = {
        "id": "v",
        "status": "in-use",
        "size_gb": 1,
        "multiattach": False,
        "shared_targets": True,
        "service_uuid": "backend-1",
        "bootable": False,
        "encrypted": False,
        "availability_zone": None,
        "project_id": None,
        "name": None,
        "migration_status": None,
        "readonly": False,
    }
    return VolumeView(**{**values, **over})  # type: ignore[arg-type]


def clock() -> StopClock:
    return StopClock(threading.Event())


@pytest.mark.parametrize(("shared_targets", "locked"), [(True, True), (None, True), (False, False)])
def test_lp1961102_lp1800515_target_lock_follows_the_tri_state(
    shared_targets: bool | None, locked: bool
) -> None:
    names = names_for(Bench().lane(), view(shared_targets=shared_targets))
    assert ("target-backend-1" in names) is locked


def test_locks_are_taken_pair_then_volume_then_target() -> None:
    lane = Bench().lane(multiattach=True)
    kinds = [name.split("-")[0] for name in names_for(lane, view())]
    assert kinds == ["server", "volume", "target"]


def test_volume_that_cinder_forgot_has_no_target_lock() -> None:
    assert [n.split("-")[0] for n in names_for(Bench().lane(), None)] == ["server"]


def test_lp1947370_lock_of_another_process_excludes_us(tmp_path: Path) -> None:
    locks, inside = Locks(tmp_path), threading.Event()

    def enter() -> None:
        with locks.hold(["target-x"], clock()):
            inside.set()

    with lock_held_elsewhere(tmp_path, "target-x") as holder:
        thread = threading.Thread(target=enter)
        thread.start()
        assert not inside.wait(0.3)
        holder.release()
        assert inside.wait(WAIT_S)
        thread.join()


def test_killed_holder_releases_by_itself(tmp_path: Path) -> None:
    with lock_held_elsewhere(tmp_path, "target-x") as holder:
        holder.kill()
        with Locks(tmp_path).hold(["target-x"], clock(), deadline_s=WAIT_S):
            pass


def test_threads_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    locks, inside, worst = Locks(tmp_path), [], []

    def work() -> None:
        for _ in range(25):
            with locks.hold(["target-x"], clock()):
                inside.append(1)
                worst.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(worst) == 75
    assert max(worst) == 1


def test_a_lock_is_a_file_of_its_name_or_of_that_names_hash(tmp_path: Path) -> None:
    odd = "target-../x"
    with Locks(tmp_path).hold(["target-x", odd], clock()):
        files = {path.name for path in tmp_path.iterdir()}
    assert files == {"target-x.lock", f"{hashlib.sha256(odd.encode()).hexdigest()}.lock"}


def test_other_names_do_not_wait(tmp_path: Path) -> None:
    locks = Locks(tmp_path)
    with locks.hold(["target-x"], clock()), locks.hold(["target-y"], clock(), deadline_s=0):
        pass


def test_lock_that_is_not_free_in_time_is_retryable(tmp_path: Path) -> None:
    locks = Locks(tmp_path)
    with locks.hold(["target-x"], clock()), pytest.raises(PortError, match="not free") as raised:  # noqa: SIM117
        with locks.hold(["server-a", "target-x"], FakeClock(), deadline_s=1):
            pass
    assert raised.value.code == "lock_busy"
    with locks.hold(["server-a"], clock(), deadline_s=0):
        pass  # what was taken before is free again


def test_waiting_ends_when_the_agent_stops(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    locks = Locks(tmp_path)
    with locks.hold(["x"], clock()), pytest.raises(Stopping), locks.hold(["x"], StopClock(stop)):
        pass


def test_released_locks_leave_no_files_and_names_cannot_escape(tmp_path: Path) -> None:
    path = tmp_path / "locks"
    with Locks(path).hold(["target-../../evil", "volume-" + "x" * 500], clock()):
        inside = list(path.iterdir())
        assert len(inside) == 2
        assert all(file.read_bytes() == b"" for file in inside)
    assert list(path.iterdir()) == []
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_is_held_until_its_file_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given up before, somebody else could lock the file, and we would remove it under them."""
    locks, path, free, real = Locks(tmp_path), tmp_path / "target-x.lock", [], Path.unlink

    def watched(self: Path, missing_ok: bool = False) -> None:
        free.append(_try_lock(path))
        real(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", watched)
    with locks.hold(["target-x"], clock()):
        pass
    assert free == [None]


def test_a_lock_whose_file_cannot_be_removed_is_free_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing would be done with that volume on this host until the agent is started again."""

    def refused(_self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refused)
    for _ in range(2):
        with Locks(tmp_path).hold(["target-x"], clock(), deadline_s=0.0):
            pass


def test_a_lock_that_cannot_be_taken_leaves_no_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again and again."""
    opened: list[int] = []

    def refused(handle: int, _flags: int) -> None:
        opened.append(handle)
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(PortError, match="No locks"), Locks(tmp_path).hold(["x"], clock()):
        pass
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_the_path_of_the_locks_is_made_and_is_not_for_everybody(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "locks"
    Locks(path)
    assert path.stat().st_mode & 0o777 == 0o750
    with Locks(path).hold(["x"], clock()):
        assert (path / "x.lock").stat().st_mode & 0o777 == 0o640


def test_the_deadline_is_for_all_locks_together(tmp_path: Path) -> None:
    """Each of them could else wait as long again."""
    locks, waiting = Locks(tmp_path), FakeClock()
    with locks.hold(["b"], clock()), pytest.raises(PortError), locks.hold(["a", "b"], waiting, 3):
        pass
    assert sum(waiting.waited) == pytest.approx(3, abs=RETRY_S)
    assert set(waiting.waited) == {RETRY_S}


def test_a_whole_server_is_locked_before_its_volumes_in_the_order_of_their_names() -> None:
    lanes = (Bench().lane(), Bench().lane(multiattach=True))
    order = GuestOrder(server_id="s", definition="<domain/>", lanes=lanes)
    volumes = {"v2": view(), "v1": view(service_uuid="backend-0"), "v3": None}
    assert names_for_guest(order, volumes) == [
        "server-s",
        *("volume-v1", "volume-v2", "volume-v3"),
        *("target-backend-0", "target-backend-1"),
    ]


def test_only_shared_volumes_of_a_server_have_locks_of_their_own() -> None:
    order = GuestOrder(server_id="s", definition="<domain/>", lanes=(Bench().lane(),))
    volumes = {"v1": view(shared_targets=False, multiattach=True), "v2": view(service_uuid=None)}
    assert names_for_guest(order, volumes) == ["server-s", "volume-v1", "target-unassigned"]


def test_unusable_lock_path_is_explained(tmp_path: Path) -> None:
    locks = Locks(tmp_path / "locks")
    (tmp_path / "locks" / "target-x.lock").mkdir()
    with pytest.raises(PortError, match="lock_path") as raised, locks.hold(["target-x"], clock()):
        pass
    assert raised.value.code == "lock_failed"


def test_second_agent_of_a_lock_path_is_refused_and_told_who_is_first(tmp_path: Path) -> None:
    second = Locks(tmp_path).agent()
    with (
        Locks(tmp_path).agent(),
        pytest.raises(AgentRunningError, match=str(os.getpid())),
        second,
    ):
        pass
    with Locks(tmp_path).agent():
        pass


def test_a_full_disk_keeps_no_agent_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can still let go of volumes, and say so; its process id is for the other's message."""

    def full(_handle: int, _text: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with ExitStack() as held:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            held.enter_context(Locks(tmp_path).agent())
        with pytest.raises(AgentRunningError, match=r"process \?"), Locks(tmp_path).agent():
            pass


def test_lock_on_a_file_that_was_removed_meanwhile_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "x.lock", fcntl.flock
    others: list[int] = []

    def overtaken(handle: int, flags: int) -> None:
        """Between our open and our lock its holder leaves, and another takes the name."""
        if not others:
            path.unlink()
            others.append(os.open(path, os.O_RDWR | os.O_CREAT))
            real(others[0], fcntl.LOCK_EX)
        real(handle, flags)

    monkeypatch.setattr(fcntl, "flock", overtaken)
    assert _try_lock(path) is None
    os.close(others[0])
    handle = _try_lock(path)
    assert handle is not None
    os.close(handle)
