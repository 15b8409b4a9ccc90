"""Surveys on the line: what is wanted is made and sent, and nothing else waits for it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from host_agent.shared.contract.messages import Commands
from host_agent.shared.contract.survey import Survey
from host_agent.shared.contract.wire import WireError, read
from tests.agent.bench import WAIT_S, Bench, command, eventually
from tests.agent.fake_ledger import FakeLedger
from tests.agent.test_link import Agent, finished


@pytest.fixture
def agent(bench: Bench, fake_ledger: FakeLedger, tmp_path: Path) -> Iterator[Agent]:
    with Agent(bench, fake_ledger, tmp_path).running() as running:
        eventually(lambda: fake_ledger.registrations, "a registration")
        yield running


def want(ledger: FakeLedger, digest: str | None = None) -> str:
    token = str(uuid.uuid4())
    ledger.wanted = {"token": token, "digest": digest}
    return token


def answered(ledger: FakeLedger) -> None:
    eventually(lambda: ledger.wanted is None, "the survey")


def test_what_is_wanted_is_sent_once(agent: Agent, fake_ledger: FakeLedger) -> None:
    server_id = agent.bench.server()
    token = want(fake_ledger)
    answered(fake_ledger)
    [(answer, survey)] = fake_ledger.surveys
    assert (answer.token, answer.epoch) == (token, fake_ledger.epoch)
    assert survey is not None
    assert [guest.server_id for guest in survey.guests] == [server_id]
    assert answer.digest == survey.digest()


def test_what_the_ledger_has_is_not_sent_again(agent: Agent, fake_ledger: FakeLedger) -> None:
    want(fake_ledger)
    answered(fake_ledger)
    want(fake_ledger, fake_ledger.surveys[0][0].digest)
    answered(fake_ledger)
    agent.bench.server()
    want(fake_ledger, fake_ledger.surveys[0][0].digest)
    answered(fake_ledger)
    assert [survey is None for _, survey in fake_ledger.surveys] == [False, True, False]
    assert len({answer.digest for answer, _ in fake_ledger.surveys}) == 2


def test_a_ledger_that_has_lost_it_gets_it(agent: Agent, fake_ledger: FakeLedger) -> None:
    want(fake_ledger)
    answered(fake_ledger)
    fake_ledger.lost_surveys = True
    want(fake_ledger, fake_ledger.surveys[0][0].digest)
    answered(fake_ledger)
    assert [survey is None for _, survey in fake_ledger.surveys] == [False, True, False]
    assert agent.link.is_current(fake_ledger.epoch)


def test_it_is_sent_for_as_long_as_it_takes(agent: Agent, fake_ledger: FakeLedger) -> None:
    fake_ledger.fail_surveys = [503, 500]
    want(fake_ledger)
    answered(fake_ledger)
    assert len(fake_ledger.surveys) == 1
    assert agent.link.is_current(fake_ledger.epoch)


def test_a_poll_says_which_question_is_known_and_an_older_ledger_is_told_nothing(
    agent: Agent, fake_ledger: FakeLedger
) -> None:
    eventually(lambda: len(fake_ledger.polls) > 2, "polls")
    assert set(fake_ledger.got) == {None}
    token = want(fake_ledger)
    answered(fake_ledger)
    eventually(lambda: fake_ledger.got[-1] == token, "a poll that says so")
    assert agent.link.is_current(fake_ledger.epoch)


def test_commands_and_reports_do_not_wait_for_a_survey(
    agent: Agent, fake_ledger: FakeLedger
) -> None:
    inside, go_on = threading.Event(), threading.Event()
    make = agent.look

    def slow(epoch: int) -> Survey:
        inside.set()
        assert go_on.wait(WAIT_S)
        return make(epoch)

    agent.look = slow
    want(fake_ledger)
    assert inside.wait(WAIT_S)
    given = fake_ledger.give(command(agent.bench.lane()))
    finished(fake_ledger, given)
    polls = len(fake_ledger.polls)
    eventually(lambda: len(fake_ledger.polls) > polls, "polls go on")
    assert len(fake_ledger.polls) < polls + 50, "and wait, though the question stands"
    assert fake_ledger.surveys == []
    go_on.set()
    answered(fake_ledger)


def test_an_agent_that_ends_does_not_wait_for_a_survey(
    bench: Bench, fake_ledger: FakeLedger, tmp_path: Path
) -> None:
    inside, never = threading.Event(), threading.Event()

    def hangs(epoch: int) -> Survey:
        inside.set()
        never.wait(WAIT_S * 10)
        raise AssertionError(epoch)

    agent = Agent(bench, fake_ledger, tmp_path)
    agent.look = hangs
    with agent.running():
        want(fake_ledger)
        assert inside.wait(WAIT_S)
    never.set()


def test_the_newest_question_counts(agent: Agent, fake_ledger: FakeLedger) -> None:
    """While the answer to the one before cannot be sent."""
    fake_ledger.fail_surveys = [503] * 1000
    want(fake_ledger)
    eventually(lambda: len(fake_ledger.fail_surveys) < 999, "it is tried")
    second = want(fake_ledger)
    eventually(lambda: second in fake_ledger.got, "it is told")
    fake_ledger.fail_surveys = []
    answered(fake_ledger)
    assert fake_ledger.surveys[-1][0].token == second
    assert agent.link.is_current(fake_ledger.epoch)


def test_a_survey_of_another_epoch_is_dropped_and_the_next_one_is_of_the_new(
    agent: Agent, fake_ledger: FakeLedger
) -> None:
    want(fake_ledger)
    answered(fake_ledger)
    before = fake_ledger.epoch
    fake_ledger.epoch += 1
    want(fake_ledger)
    answered(fake_ledger)
    last, survey = fake_ledger.surveys[-1]
    assert survey is not None
    assert last.epoch == survey.epoch == before + 1
    assert agent.link.is_current(before + 1)


def test_a_fault_in_a_survey_ends_nothing(agent: Agent, fake_ledger: FakeLedger) -> None:
    make, failed = agent.look, threading.Event()

    def fails(epoch: int) -> Survey:
        failed.set()
        raise RuntimeError(epoch)

    agent.look = fails
    want(fake_ledger)
    assert failed.wait(WAIT_S)
    agent.look = make
    want(fake_ledger)
    answered(fake_ledger)
    assert len(fake_ledger.surveys) == 1


@pytest.mark.parametrize("told", ["x", {}, {"token": 1}, {"token": None}, []])
def test_what_is_no_question_is_an_answer_that_is_not_understood(told: Any) -> None:
    with pytest.raises(WireError, match="survey"):
        read({"commands": [], "after": 0, "survey": told}, Commands)
