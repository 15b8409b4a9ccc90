"""Files of a running disk: simulated, and over the real libvirt and QEMU."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from host_agent.clock import Stopping
from host_agent.libvirt import disk_xml
from host_agent.libvirt.guest_rules import CHANGES_MAX
from host_agent.libvirt.hypervisor import HypervisorError, Trouble
from host_agent.shared.contract.messages import ErrorKind, PowerState
from host_agent.shared.contract.ports import Merge, PortError
from host_agent.simulated.host_state import release
from tests.contracts.machines import Following, Machine, SimulatedMachine, disk


class Files:
    """A running guest with a disk, and the files of it."""

    def __init__(self, machine: Machine, power: PowerState = PowerState.RUNNING) -> None:
        self.machine, self.disk = machine, disk(machine)
        self.server_id = machine.new_guest(power)
        self.serial = self.disk.serial
        self.path = str(self.disk.source["path"])
        self.base = Path(self.path).name
        machine.guests.plug(self.server_id, self.disk)

    def make(self, name: str) -> str:
        """A file that is still nobody's, above the one that the disk writes to."""
        self.path = self.machine.file_above(self.path, name)
        return name

    def take(self, name: str) -> str:
        """A snapshot: the guest writes to this file."""
        self.machine.guests.snapshot(self.server_id, self.serial, self.make(name))
        return name

    def revert(self, name: str, watch: Following | None = None) -> None:
        guests = self.machine.guests
        guests.unsnapshot(self.server_id, self.serial, name, watch or Following())

    def merge(self, file: str | None, into: str | None, watch: Following | None = None) -> None:
        what = Merge(file=file, into=into)
        self.machine.guests.merge(self.server_id, self.serial, what, watch or Following())

    def chain(self) -> list[str | None]:
        """What libvirt shows, which has to be what both copies write to."""
        domain = self.machine.hypervisor.domain(self.server_id)
        assert domain is not None
        assert domain.live_xml is not None
        live = disk_xml.parse(domain.live_xml).disk_of(self.serial)
        assert live is not None
        state = self.machine.guests.disk(self.server_id, self.serial)
        assert (state.sources, state.differs) == ((live.chain[0].path,), ())
        return [layer.name for layer in live.chain]

    def names(self, *ends: str) -> list[str]:
        return [f"{self.base}.{end}" for end in ends]


@pytest.fixture
def files(machine: Machine) -> Files:
    return Files(machine)


def test_a_guest_writes_to_each_new_file_above_its_present_one(files: Files) -> None:
    one, two = files.names("one", "two")
    files.take(one)
    assert files.chain() == [one, files.base]
    files.machine.guests.snapshot(files.server_id, files.serial, one)
    assert files.chain() == [one, files.base], "again"
    files.take(two)
    assert files.chain() == [two, one, files.base]


def test_a_paused_guest_has_snapshots_as_one_that_runs(machine: Machine) -> None:
    files = Files(machine, PowerState.PAUSED)
    [one] = files.names("one")
    files.take(one)
    files.merge(None, None)
    assert files.chain() == [one]


def test_a_guest_goes_back_to_the_file_below_which_then_has_all(files: Files) -> None:
    one, two = files.names("one", "two")
    files.take(one)
    files.take(two)
    files.revert(two)
    assert files.chain() == [one, files.base]
    files.revert(two)
    assert files.chain() == [one, files.base], "again"


def test_a_file_in_the_middle_goes_into_the_one_below(files: Files) -> None:
    """Cinder deletes a snapshot that is not the newest: by libvirt, blockCommit."""
    one, two, three = files.names("one", "two", "three")
    for name in (one, two, three):
        files.take(name)
    files.merge(two, one)
    assert files.chain() == [three, one, files.base]
    files.merge(two, one)
    assert files.chain() == [three, one, files.base], "again"
    files.merge(one, files.base)
    assert files.chain() == [three, files.base]


def test_what_is_below_goes_into_the_first_file(files: Files) -> None:
    """Cinder deletes the newest snapshot: by libvirt, blockRebase; at last nothing is below."""
    one, two = files.names("one", "two")
    files.take(one)
    files.take(two)
    files.merge(files.base, None)
    assert files.chain() == [two, files.base]
    files.merge(files.base, None)
    assert files.chain() == [two, files.base], "again"
    files.merge(None, None)
    assert files.chain() == [two]
    files.merge(None, None)
    assert files.chain() == [two], "again"


def test_files_that_are_not_so_are_told_apart_from_what_is_done(files: Files) -> None:
    one, two = files.names("one", "two")
    files.take(one)
    files.take(two)
    before = files.chain()
    for file, into in ((two, one), ("x", None), (two, None), (one, "x"), (files.base, one)):
        with pytest.raises(PortError) as refused:
            files.merge(file, into)
        assert (refused.value.kind, refused.value.code) == (ErrorKind.FINAL, "other_chain")
    with pytest.raises(PortError) as refused:
        files.machine.guests.snapshot(files.server_id, files.serial, one)
    assert refused.value.code == "other_chain"
    assert files.chain() == before


def test_a_guest_that_is_off_keeps_its_files(files: Files) -> None:
    one, two = files.names("one", "two")
    files.take(one)
    files.machine.power(files.server_id, PowerState.SHUTDOWN)
    files.make(two)
    guests, serial = files.machine.guests, files.serial
    acts: list[Callable[[], None]] = [
        lambda: guests.snapshot(files.server_id, serial, two),
        lambda: files.revert(one),
        lambda: files.merge(None, None),
    ]
    for act in acts:
        with pytest.raises(PortError) as refused:
            act()
        assert (refused.value.kind, refused.value.code) == (ErrorKind.FINAL, "guest_not_running")
    assert guests.end_merge(files.server_id, serial, Merge(file=None, into=None))
    files.revert(two)  # it never wrote to that one
    guests.snapshot(files.server_id, serial, one)  # it does so as soon as it is started
    files.machine.power(files.server_id, PowerState.RUNNING)
    assert files.chain() == [one, files.base]


def test_only_a_disk_that_is_there_has_files(machine: Machine) -> None:
    running = machine.new_guest(PowerState.RUNNING)
    for server_id, code in ((running, "disk_not_plugged"), (str(uuid.uuid4()), "guest_missing")):
        with pytest.raises(PortError) as refused:
            machine.guests.snapshot(server_id, str(uuid.uuid4()), "new")
        assert refused.value.code == code


def test_other_disks_of_the_guest_have_no_part_in_a_snapshot(files: Files) -> None:
    other = disk(files.machine, "sdc")
    files.machine.guests.plug(files.server_id, other)
    files.take(*files.names("one"))
    state = files.machine.guests.disk(files.server_id, other.serial)
    assert state.sources == (other.source["path"],)


def test_whoever_ends_a_merge_hears_whether_it_was_done(files: Files) -> None:
    one, two = files.names("one", "two")
    files.take(one)
    files.take(two)
    merge, guests = Merge(file=one, into=files.base), files.machine.guests
    assert guests.end_merge(files.server_id, files.serial, merge)
    files.merge(one, files.base)
    assert not guests.end_merge(files.server_id, files.serial, merge)
    assert files.chain() == [two, files.base]


def test_a_merge_that_does_not_fit_the_files_has_not_been_done(files: Files) -> None:
    """Cinder may not know of an earlier one that it gave up."""
    one, two = files.names("one", "two")
    files.take(one)
    guests, merge = files.machine.guests, Merge(file=two, into=None)
    assert guests.end_merge(files.server_id, files.serial, merge)
    assert files.chain() == [one, files.base]


def test_a_disk_with_files_below_is_unplugged_from_both_copies(files: Files) -> None:
    files.take(*files.names("one"))
    state = files.machine.guests.unplug(files.server_id, files.serial)
    assert (state.live, state.persistent) == (None, None)


# --- what only the simulated host can be made to do ----------------------------------------------


@pytest.fixture
def held() -> Files:
    """Work on whose files is under way until somebody lets it go on."""
    machine = SimulatedMachine()
    files = Files(machine)
    for name in files.names("one", "two"):
        files.take(name)
    rule = {"do": "lie", "code": "hold", "count": None}
    machine.faults.replace([{"call": f"guests.{call}", **rule} for call in ("merge", "unsnapshot")])
    return files


def test_a_merge_that_is_cancelled_leaves_the_files_as_they_were(held: Files) -> None:
    before = held.chain()
    one, _ = held.names("one", "two")
    with pytest.raises(PortError) as refused:
        held.merge(one, held.base, Following(cancelled_at=2))
    assert (refused.value.kind, refused.value.code) == (ErrorKind.FINAL, "cancelled")
    assert held.chain() == before


def test_a_merge_that_an_agent_left_under_way_is_followed_by_the_next_one(held: Files) -> None:
    """It is not begun a second time, and not taken for one that has failed."""
    machine = held.machine
    assert isinstance(machine, SimulatedMachine)
    one, two = held.names("one", "two")
    watch = Letting(machine, held.server_id)
    with machine.hypervisor.lying("hold"):  # type: ignore[attr-defined]
        machine.hypervisor.commit(held.server_id, held.disk.device_name, "1", "2")
    machine.faults.replace([])
    held.merge(one, held.base, watch)
    assert held.chain() == [two, held.base]
    assert watch.told


def test_a_merge_that_an_agent_left_under_way_is_ended_by_who_undoes_it(held: Files) -> None:
    machine, before = held.machine, held.chain()
    with machine.hypervisor.lying("hold"):  # type: ignore[attr-defined]
        machine.hypervisor.pull(held.server_id, held.disk.device_name, "1")
    machine.faults.replace([])  # type: ignore[attr-defined]
    assert machine.guests.end_merge(held.server_id, held.serial, Merge(file=None, into=None))
    assert machine.hypervisor.copying(held.server_id, held.disk.device_name) is None
    assert held.chain() == before


class Letting(Following):
    """Lets what is under way go on when it first hears of it."""

    def __init__(self, machine: SimulatedMachine, server_id: str) -> None:
        super().__init__()
        self._machine, self._server_id = machine, server_id

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        super().progress(done_bytes, total_bytes)
        release(self._machine.store, self._server_id)


def test_going_back_waits_until_the_file_below_has_all(held: Files) -> None:
    machine = held.machine
    assert isinstance(machine, SimulatedMachine)
    one, two = held.names("one", "two")
    watch = Letting(machine, held.server_id)
    held.revert(two, watch)
    assert held.chain() == [one, held.base]
    assert watch.told


class Stopped(Following):
    """Of an agent that is told to stop while it follows a job (RunWatch)."""

    def cancelled(self) -> bool:
        raise Stopping

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        super().progress(done_bytes, total_bytes)
        assert len(self.told) < 3, "it goes on"


def test_an_agent_that_stops_leaves_going_back_to_its_next_life(held: Files) -> None:
    machine = held.machine
    assert isinstance(machine, SimulatedMachine)
    one, two = held.names("one", "two")
    with pytest.raises(Stopping):
        held.revert(two, Stopped())
    assert machine.hypervisor.copying(held.server_id, held.disk.device_name)
    held.revert(two, Letting(machine, held.server_id))
    assert held.chain() == [one, held.base]


def test_a_guest_that_cannot_be_switched_back_keeps_its_file(files: Files) -> None:
    """As a copy, it is tried a few times, and then left as it was."""
    machine = files.machine
    if not isinstance(machine, SimulatedMachine):
        pytest.skip("no real guest can be made to")
    one = files.take(*files.names("one"))
    asked: list[bool] = []
    real = machine.hypervisor.end_copy

    def refuses(server_id: str, target: str, *, switch: bool) -> None:
        asked.append(switch)
        if switch:
            raise HypervisorError(Trouble.OTHER, "block job is not ready")
        real(server_id, target, switch=switch)

    machine.hypervisor.end_copy = refuses  # type: ignore[method-assign]
    with pytest.raises(PortError) as refused:
        files.revert(one)
    assert (refused.value.kind, refused.value.code) == (ErrorKind.FINAL, "snapshot_kept")
    assert asked[:CHANGES_MAX] == [True] * CHANGES_MAX
    assert not any(asked[CHANGES_MAX:])
    assert files.chain() == [one, files.base]


def test_a_file_without_one_below_is_not_taken_back(files: Files) -> None:
    """Whatever became of the one that it was put above: there is nowhere to go back to."""
    one = files.take(*files.names("one"))
    files.merge(None, None)
    with pytest.raises(PortError) as refused:
        files.revert(one)
    assert (refused.value.kind, refused.value.code) == (ErrorKind.FINAL, "snapshot_kept")
    assert files.chain() == [one]
