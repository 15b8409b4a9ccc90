"""A survey through all processes: wanted in the database, made by an agent, kept by the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from projections.surveys import Standing, Surveys
from projections.tables import prepare
from tests.stack import Stack, eventually, running_stack

SILENT_S = 30.0


@pytest.fixture
def stack(tmp_path: Path, database_url: str) -> Iterator[Stack]:
    with running_stack(tmp_path, database_url) as running:
        running.add_server()
        running.start_service()
        running.start_agent()
        running.wait_for_host()
        yield running


@pytest.fixture
def surveys(database_url: str) -> Iterator[Surveys]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        prepare(connection)
        yield Surveys(connection)


def answered(surveys: Surveys) -> Standing:
    asked = eventually(lambda: surveys.want(None, silent_after_s=SILENT_S), "a host to ask")

    def look() -> Standing | None:
        [found] = surveys.standings(["compute-1"], silent_after_s=SILENT_S)
        return found if found.token == asked["compute-1"] else None

    return eventually(look, "its answer")


def test_a_host_shows_what_it_has_and_what_was_planted_there(
    stack: Stack, surveys: Surveys
) -> None:
    [server], volume = stack.servers, stack.add_volume(driver="iscsi")
    stack.completed(stack.attach(server, volume))
    first = answered(surveys)
    assert (first.why_unknown, first.epoch) == (None, 0)
    survey = surveys.survey("compute-1", first.token or "")
    assert survey is not None
    [guest] = survey.guests
    assert (guest.server_id, [disk.serial for disk in guest.disks]) == (server, [volume])
    assert [(each.present, each.used) for each in survey.connections] == [(True, True)]
    assert [(each.recorded, each.used) for each in survey.storage] == [(True, True)]

    again = answered(surveys)
    assert (again.digest, again.boot_id) == (first.digest, first.boot_id)
    assert again.token != first.token

    with stack.host().edit() as state:
        state["connected"]["planted"] = {"driver": "iscsi", "path": "/dev/planted"}
    third = answered(surveys)
    survey = surveys.survey("compute-1", third.token or "")
    assert survey is not None
    assert ("/dev/planted", False, False) in [
        (each.name, each.recorded, each.used) for each in survey.storage
    ]


def test_an_agent_that_was_killed_answers_when_it_is_back(stack: Stack, surveys: Surveys) -> None:
    stack.agents["compute-1"].kill()
    asked = surveys.want(None, silent_after_s=SILENT_S)
    assert asked, "it was heard of just now"
    stack.start_agent()

    def look() -> bool:
        [found] = surveys.standings(["compute-1"], silent_after_s=SILENT_S)
        return found.token == asked["compute-1"]

    assert eventually(look, "its answer")
