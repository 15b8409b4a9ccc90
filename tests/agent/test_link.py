"""The line to the ledger: registers, resumes, and loses nothing while the ledger is away."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from host_agent.clock import StopClock
from host_agent.executor import Executor, Hooks
from host_agent.leftovers import LeftoversRelease
from host_agent.line import link
from host_agent.line.client import LinkSettings
from host_agent.line.link import Link
from host_agent.locks import Locks
from host_agent.shared.contract.messages import Command, ErrorKind, Guest, PowerState, Registration
from host_agent.shared.contract.ports import PortError
from host_agent.shared.contract.survey import Survey
from host_agent.shared.contract.wire import plain
from host_agent.shared.platform.masking import MESSAGE_CHARS_MAX
from host_agent.simulated.host_state import set_power
from tests.agent import fake_ledger as fake_ledger_module
from tests.agent.bench import ATTACH, DETACH, WAIT_S, Bench, command, eventually
from tests.agent.fake_ledger import FakeLedger
from tests.doubles.host_checks import broken_invariants

STEPS = [verb.value for verb in ATTACH]


def settings(ledger: FakeLedger, **over: Any) -> LinkSettings:
    fast = LinkSettings(
        url=ledger.url,
        token=FakeLedger.TOKEN,
        host="compute-1",
        wait_s=0.3,
        inventory_interval_s=5.0,
        backoff_first_s=0.01,
        backoff_max_s=0.05,
        denied_retry_s=0.05,
    )
    return replace(fast, **over)


class Agent:
    """Link and executor over a bench, as the agent's process wires them."""

    def __init__(self, bench: Bench, ledger: FakeLedger, lock_path: Path, **over: Any) -> None:
        self.bench = bench
        self.describe: Callable[[], Registration] = self._describe
        self.look: Callable[[int], Survey] = bench.surveyor().survey
        self.link = Link(
            settings(ledger, **over),
            lambda: self.describe(),  # noqa: PLW0108 - tests replace it
            lambda epoch: self.look(epoch),  # noqa: PLW0108 - the same
            bench.guests.guest,
        )
        hooks = Hooks(
            report=self.link.report,
            is_current=self.link.is_current,
            progress=self.link.progress,
            guests_changed=self.link.wake,
            dropped=self.link.resync,
            occurred=self.link.occurred,
        )
        locks, world = Locks(lock_path), replace(bench.world(), users=self.link)
        self.executor = Executor(world, locks, hooks)
        self.leftovers = LeftoversRelease(world, locks, StopClock(threading.Event()))

    def _describe(self) -> Registration:
        guests = tuple(self.bench.guests.inventory())
        return Registration(
            service_version=1,
            capabilities={"multiattach": True},
            guests=guests,
            connections=tuple(self.bench.records),
        )

    @contextmanager
    def running(self) -> Iterator[Agent]:
        thread = threading.Thread(target=self.link.run, args=(self.executor, self.leftovers.clear))
        self.executor.start()
        thread.start()
        try:
            yield self
        finally:
            self.executor.stop(1.0)
            self.link.close()
            thread.join(WAIT_S)
            assert not thread.is_alive()
            assert self.executor.stop(WAIT_S)


@pytest.fixture
def agent(bench: Bench, fake_ledger: FakeLedger, tmp_path: Path) -> Iterator[Agent]:
    with Agent(bench, fake_ledger, tmp_path).running() as running:
        eventually(lambda: fake_ledger.registrations, "a registration")
        yield running


def finished(ledger: FakeLedger, given: Any) -> None:
    eventually(lambda: ledger.is_done(given), f"the end of {given.id}: {ledger.steps_of(given)}")


def test_commands_are_run_and_reported(agent: Agent, fake_ledger: FakeLedger) -> None:
    given = fake_ledger.give(command(agent.bench.lane()))
    finished(fake_ledger, given)
    assert fake_ledger.steps_of(given) == STEPS
    assert fake_ledger.refused == []


def test_whatever_a_tool_wrote_its_failure_is_reported(
    agent: Agent, fake_ledger: FakeLedger
) -> None:
    """A byte that is no UTF-8 (oslo decodes as os.fsdecode does), more than a report may have."""
    text = f"multipath: caf\udce9\n{'no path ' * 10_000}"
    agent.bench.faults.replace(
        [{"call": "brick.connect", "do": "fail", "kind": "final", "message": text}]
    )
    given = fake_ledger.give(command(agent.bench.lane()))
    eventually(lambda: fake_ledger.steps_of(given)[-1:] == ["volume_connect"], "the failure")
    error = fake_ledger.reports[-1].results[-1].error
    assert error is not None
    assert error.message.startswith(r"multipath: caf\udce9 no path no path ")
    assert len(error.message) == MESSAGE_CHARS_MAX


def test_registration_tells_version_capabilities_and_all_guests(
    bench: Bench, fake_ledger: FakeLedger, tmp_path: Path
) -> None:
    server_id = bench.server(name="web-1", project_id="p-1", user_id="u-1")
    with Agent(bench, fake_ledger, tmp_path).running():
        eventually(lambda: fake_ledger.registrations, "a registration")
    sent = fake_ledger.registrations[0]
    assert sent.service_version == 1
    assert "<domain>" in str(sent.guests[0].definition)
    assert [replace(guest, definition=None) for guest in sent.guests] == [
        Guest(
            server_id=server_id,
            name="web-1",
            power_state=PowerState.RUNNING,
            devices=("vda",),
            project_id="p-1",
            user_id="u-1",
        )
    ]


def test_changed_inventory_is_sent_and_an_unchanged_one_is_not(
    agent: Agent, fake_ledger: FakeLedger
) -> None:
    server_id = agent.bench.server()
    agent.link.wake()
    eventually(lambda: len(fake_ledger.registrations) == 2, "the new guest")
    agent.bench.calls.clear()
    agent.link.wake()
    eventually(lambda: "guests.inventory" in agent.bench.calls, "the inventory to be read again")
    set_power(agent.bench.store, server_id, PowerState.SHUTDOWN)
    agent.link.wake()
    eventually(lambda: len(fake_ledger.registrations) == 3, "the stopped guest")
    assert fake_ledger.registrations[-1].guests[0].power_state is PowerState.SHUTDOWN


def test_between_registrations_only_what_has_changed_is_sent(
    agent: Agent, fake_ledger: FakeLedger
) -> None:
    first, second = agent.bench.server(), agent.bench.server()
    agent.link.wake()
    eventually(lambda: len(fake_ledger.changes) == 1, "the new guests")
    set_power(agent.bench.store, first, PowerState.SHUTDOWN)
    with agent.bench.store.edit() as state:
        del state["guests"][second]
    agent.link.wake()
    eventually(lambda: len(fake_ledger.changes) == 2, "what has become of them")
    said = fake_ledger.changes[1]
    assert [(guest.server_id, guest.power_state) for guest in said.guests] == [
        (first, PowerState.SHUTDOWN)
    ]
    assert said.gone == (second,)
    [left] = fake_ledger.registrations[-1].guests
    assert left == said.guests[0]


def _attached(
    agent: Agent, ledger: FakeLedger, busy: AbstractContextManager[Any] | None = None
) -> str:
    """A server that the ledger knows, whose guest has got a disk since."""
    server_id = agent.bench.server()
    agent.link.wake()
    eventually(lambda: len(ledger.changes) == 1, "the new guest")
    with busy or nullcontext():
        finished(ledger, ledger.give(command(agent.bench.lane(server_id))))
    return server_id


def _shown_later(agent: Agent, ledger: FakeLedger) -> list[Guest]:
    """What was sent of guests from the attach until another one came."""
    other = agent.bench.server()
    agent.link.wake()
    eventually(lambda: other in str(ledger.changes[-1]), "the other guest")
    return [each for said in ledger.changes[1:] for each in said.guests if each.server_id != other]


def test_what_a_run_has_changed_of_a_guest_is_in_its_report_and_not_sent_again(
    agent: Agent, fake_ledger: FakeLedger
) -> None:
    look, alone = agent.link._guest, list[bool]()

    def looking(server_id: str) -> Guest | None:
        alone.append(agent.link._showing.locked())
        return look(server_id)

    agent.link._guest = looking
    server_id = _attached(agent, fake_ledger)
    [(step, guest)] = [
        (report.results[-1].step, report.guest) for report in fake_ledger.reports if report.guest
    ]
    assert (step, guest.server_id, guest.devices) == ("disk_plug", server_id, ("vda", "vdb"))
    assert guest.definition is None
    assert alone == [True], "no inventory is looked at meanwhile"
    assert _shown_later(agent, fake_ledger) == []


@pytest.mark.parametrize("why", ["older ledger", "no answer", "not seen", "inventory under way"])
def test_what_no_report_has_shown_is_a_change_like_any_other(
    agent: Agent, fake_ledger: FakeLedger, why: str
) -> None:
    look = agent.link._guest

    def looking(server_id: str) -> Guest | None:
        if why == "not seen":
            raise PortError(ErrorKind.RETRYABLE, "hypervisor_unreachable", "It is away.")
        fake_ledger.drop_answers = int(why == "no answer")
        return look(server_id)

    agent.link._guest = looking
    fake_ledger.takes_guests = why != "older ledger"
    busy = why == "inventory under way"
    server_id = _attached(agent, fake_ledger, busy=agent.link._showing if busy else None)
    said = [report.guest for report in fake_ledger.reports if report.guest]
    assert len(said) == (why in {"older ledger", "no answer"})
    _shown_later(agent, fake_ledger)
    known = {guest.server_id: guest.devices for guest in fake_ledger.registrations[-1].guests}
    assert known[server_id] == ("vda", "vdb")


def test_a_change_that_was_not_looked_at_is_sent_again(
    agent: Agent, fake_ledger: FakeLedger
) -> None:
    fake_ledger.again = True
    agent.bench.server()
    agent.link.wake()
    eventually(lambda: len(fake_ledger.changes) == 1, "the new guest")
    fake_ledger.again = False
    agent.link.wake()
    eventually(lambda: len(fake_ledger.changes) == 2, "the new guest, again")
    assert fake_ledger.changes[0] == fake_ledger.changes[1]


def test_a_ledger_that_knows_no_changes_is_shown_everything(
    agent: Agent, fake_ledger: FakeLedger
) -> None:
    fake_ledger.knows_no_changes = True
    agent.bench.server()
    agent.link.wake()
    eventually(lambda: len(fake_ledger.registrations) == 2, "a registration")
    assert len(fake_ledger.registrations[-1].guests) == 1


def test_a_ledger_in_another_epoch_is_shown_everything(
    agent: Agent, fake_ledger: FakeLedger
) -> None:
    fake_ledger.epoch = 2
    agent.bench.server()
    agent.link.wake()
    eventually(lambda: agent.link.is_current(2), "the new epoch")
    assert fake_ledger.changes == []
    assert len(fake_ledger.registrations[-1].guests) == 1


def test_an_unchanged_inventory_is_sent_again_after_a_while(
    bench: Bench, fake_ledger: FakeLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "REGISTER_AGAIN_S", 0.0)
    bench.server()
    with Agent(bench, fake_ledger, tmp_path).running() as agent:
        eventually(lambda: len(fake_ledger.registrations) == 1, "a registration")
        agent.link.wake()
        eventually(lambda: len(fake_ledger.registrations) >= 2, "the same again")
    assert fake_ledger.registrations[0] == fake_ledger.registrations[1]
    assert fake_ledger.changes == [], "all of it"


def test_what_the_ledger_could_not_look_at_is_shown_at_the_next_look(
    agent: Agent, fake_ledger: FakeLedger
) -> None:
    fake_ledger.again = True
    agent.bench.server()
    agent.link.wake()
    eventually(lambda: len(fake_ledger.registrations) == 2, "the new guest")
    fake_ledger.again = False
    agent.link.wake()
    eventually(lambda: len(fake_ledger.registrations) == 3, "the same again")
    assert fake_ledger.registrations[-1] == fake_ledger.registrations[-2]


def test_inventory_is_read_again_after_a_run_moved_a_disk(
    agent: Agent, fake_ledger: FakeLedger
) -> None:
    fake_ledger.give(command(agent.bench.lane()))
    eventually(
        lambda: any("vdb" in g.devices for r in fake_ledger.registrations for g in r.guests),
        "vdb in an inventory",
    )


def test_inventory_that_cannot_be_read_is_not_sent(
    bench: Bench, fake_ledger: FakeLedger, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench.server()
    agent = Agent(bench, fake_ledger, tmp_path)
    failures = iter(range(3))

    def describe() -> Registration:
        if next(failures, None) is not None:
            raise PortError(ErrorKind.RETRYABLE, "hypervisor_unreachable", "libvirt is down")
        return agent._describe()

    agent.describe = describe
    with agent.running():
        eventually(lambda: fake_ledger.registrations, "a registration")
    assert len(fake_ledger.registrations[0].guests) == 1
    assert "libvirt is down" in caplog.text


def test_a_fault_in_a_look_at_this_host_ends_nothing(
    bench: Bench, fake_ledger: FakeLedger, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent(bench, fake_ledger, tmp_path)
    failures = iter([OSError("the disk is full"), RuntimeError("a bug")])

    def describe() -> Registration:
        if (fault := next(failures, None)) is not None:
            raise fault
        return agent._describe()

    agent.describe = describe
    with agent.running():
        eventually(lambda: fake_ledger.registrations, "a registration")
    assert "the disk is full" in caplog.text
    assert "a bug" in caplog.text


@pytest.mark.parametrize("of", ["registration", "poll", "report"])
def test_a_fault_that_lasts_is_told_as_no_registration_until_it_is_over(
    bench: Bench, fake_ledger: FakeLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """Not by the log alone."""
    lasts = threading.Event()
    agent = Agent(bench, fake_ledger, tmp_path, inventory_interval_s=0.05)
    link, place = agent.link, {"registration": "_show", "poll": "_poll", "report": "_insist"}[of]
    real = getattr(link, place)

    def fails(*given: Any) -> Any:
        if lasts.is_set():
            raise RuntimeError("a bug")
        return real(*given)

    monkeypatch.setattr(link, place, fails)
    with agent.running():
        eventually(lambda: link.registered, "it is registered")
        lasts.set()
        given = fake_ledger.give(command(bench.lane()))
        eventually(lambda: link._registered and not link.registered, "it is in contact, and fails")
        lasts.clear()
        finished(fake_ledger, given)
        eventually(lambda: link.registered, "nothing fails any more")


def test_a_fault_of_a_report_is_over_when_the_ledger_awaits_none(
    bench: Bench, fake_ledger: FakeLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its operation has ended without it; an idle host may have no other report for days."""
    agent = Agent(bench, fake_ledger, tmp_path)
    link, fails = agent.link, Mock(side_effect=RuntimeError("a bug"))
    monkeypatch.setattr(link, "_insist", fails)
    with agent.running():
        given = fake_ledger.give(command(bench.lane()))
        eventually(lambda: fails.called and not link.registered, "it fails")
        del fake_ledger.commands[given.id]
        eventually(lambda: link.registered, "nothing is to be reported")


def test_a_fault_in_taking_a_command_ends_nothing(
    agent: Agent,
    fake_ledger: FakeLedger,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    submit, faults = agent.executor.submit, iter([RuntimeError("a bug")])

    def fails(given: Command, *, resumed: bool = False) -> bool:
        if (fault := next(faults, None)) is not None:
            raise fault
        return submit(given, resumed=resumed)

    monkeypatch.setattr(agent.executor, "submit", fails)
    finished(fake_ledger, fake_ledger.give(command(agent.bench.lane())))
    assert "a bug" in caplog.text


def test_ledger_outage_of_a_run_is_survived_without_running_a_step_twice(
    agent: Agent, fake_ledger: FakeLedger
) -> None:
    gate, inside = threading.Event(), threading.Event()
    real = agent.bench.brick.connect
    connects: list[int] = []

    def connect(info: Any) -> Any:
        connects.append(1)
        inside.set()
        assert gate.wait(WAIT_S)
        return real(info)

    agent.bench.brick.connect = connect  # type: ignore[method-assign]
    given = fake_ledger.give(command(agent.bench.lane()))
    assert inside.wait(WAIT_S)
    fake_ledger.stop()
    gate.set()
    eventually(lambda: broken_invariants(agent.bench.store), "connected while the ledger is away")
    fake_ledger.start()
    finished(fake_ledger, given)
    assert fake_ledger.steps_of(given) == STEPS
    assert len(connects) == 1
    eventually(lambda: fake_ledger.polls.count(0) >= 2, "subscribed from the beginning again")
    assert len(connects) == 1


def test_agent_that_starts_before_the_ledger_waits_for_it(bench: Bench, tmp_path: Path) -> None:
    ledger = FakeLedger()
    ledger.start()
    ledger.stop()  # the port is known, nobody listens
    with Agent(bench, ledger, tmp_path).running(), ledger.running():
        given = ledger.give(command(bench.lane()))
        finished(ledger, given)


def test_server_errors_and_garbage_are_retried(agent: Agent, fake_ledger: FakeLedger) -> None:
    fake_ledger.fail_next = [500, 503, 502, 429]
    given = fake_ledger.give(command(agent.bench.lane()))
    finished(fake_ledger, given)
    assert fake_ledger.steps_of(given) == STEPS


def test_report_that_met_a_server_error_is_delivered_again_without_running_its_step_again(
    agent: Agent, fake_ledger: FakeLedger
) -> None:
    fake_ledger.fail_reports = [500, 503, 429]
    lane = agent.bench.lane()
    agent.bench.calls.clear()
    given = fake_ledger.give(command(lane))
    finished(fake_ledger, given)
    assert fake_ledger.steps_of(given) == STEPS
    assert agent.bench.calls.count("brick.connector") == 1
    assert fake_ledger.polls.count(0) == 1, "no run was dropped"


def test_report_whose_answer_was_lost_does_not_lose_the_run(
    agent: Agent, fake_ledger: FakeLedger
) -> None:
    fake_ledger.drop_answers = 1
    given = fake_ledger.give(command(agent.bench.lane()))
    eventually(lambda: fake_ledger.refused, "the repeated report, refused as stale")
    finished(fake_ledger, given)
    assert fake_ledger.steps_of(given) == STEPS
    assert broken_invariants(agent.bench.store) == []


def test_raised_epoch_drops_the_run_registers_again_and_takes_the_new_command(
    agent: Agent, fake_ledger: FakeLedger
) -> None:
    lane = agent.bench.lane()
    given = fake_ledger.give(command(lane))
    finished(fake_ledger, given)
    fake_ledger.epoch = 2
    fake_ledger.give(command(agent.bench.lane(), epoch=1))  # of before: never to be run
    eventually(lambda: agent.link.is_current(2), "the new epoch")
    new = fake_ledger.give(command(lane, DETACH, epoch=2))
    finished(fake_ledger, new)
    ran = {report.operation_id for report in fake_ledger.reports}
    assert ran == {given.operation_id, new.operation_id}


def test_wrong_token_is_explained_and_tried_again(
    bench: Bench, fake_ledger: FakeLedger, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake_ledger.denied = True
    with caplog.at_level(logging.WARNING), Agent(bench, fake_ledger, tmp_path).running():
        eventually(lambda: "[ledger] token" in caplog.text, "an explanation in the log")
        assert FakeLedger.TOKEN not in caplog.text
        fake_ledger.denied = False
        given = fake_ledger.give(command(bench.lane()))
        finished(fake_ledger, given)


def test_command_of_an_unknown_verb_is_declined(
    agent: Agent, fake_ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = command(agent.bench.lane())
    wire = plain(given)
    wire["steps"] = [{"name": "attachment_update", "verb": "volume_teleport"}]
    monkeypatch.setattr(fake_ledger_module, "plain", lambda _: wire)
    fake_ledger.give(given)
    finished(fake_ledger, given)
    error = fake_ledger.reports[0].results[0].error
    assert error is not None
    assert (error.kind, error.code) == (ErrorKind.FINAL, "not_understood")
    assert "volume_teleport" in error.message


def test_command_that_is_dropped_each_time_does_not_spin(
    bench: Bench, fake_ledger: FakeLedger, tmp_path: Path
) -> None:
    given = command(bench.lane())
    fake_ledger.give(given)
    fake_ledger.expects_nothing = True
    with Agent(bench, fake_ledger, tmp_path, backoff_first_s=0.5, backoff_max_s=5.0).running():
        eventually(lambda: len(fake_ledger.refused) >= 2, "a second try")
        assert len(fake_ledger.refused) == 2


def test_what_the_ledger_told_last_is_said_to_the_next_one_also_by_the_next_agent(
    bench: Bench, fake_ledger: FakeLedger, tmp_path: Path
) -> None:
    """By it a ledger that was restored is found out; a poll's positions count, too."""
    path = tmp_path / "told"
    fake_ledger.position = 7
    with Agent(bench, fake_ledger, tmp_path, told_path=path).running() as agent:
        eventually(lambda: agent.link.registered, "it is registered")
        assert (fake_ledger.said_told, path.read_text()) == ([None], "1 7")
        finished(fake_ledger, fake_ledger.give(command(bench.lane(), position=9)))
        fake_ledger.epoch, fake_ledger.position = 2, 3
        eventually(lambda: path.read_text() == "2 3", "the ledger has taken it in again")
        assert fake_ledger.said_told[1] == "1 9"
    with Agent(bench, fake_ledger, tmp_path, told_path=path).running():
        eventually(lambda: fake_ledger.said_told[-1] == "2 3", "the next agent says it")
    path.write_text("not ours")
    with Agent(bench, fake_ledger, tmp_path, told_path=path).running():
        eventually(lambda: fake_ledger.said_told[-1] is None, "it was never told anything")
