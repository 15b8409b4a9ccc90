"""A survey through all processes: wanted in the database, made by an agent, kept by the service."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from projections.reads.surveys import BlockingSurveyReads, Standing
from projections.running.tables import prepare
from tests.stack import Stack, eventually

SILENT_S = 600.0  # no host is silent here, however long the machine stands still


@pytest.fixture
def surveys(database_url: str) -> Iterator[BlockingSurveyReads]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        prepare(connection)
        yield BlockingSurveyReads(connection)


def answered(surveys: BlockingSurveyReads) -> Standing:
    asked = eventually(lambda: surveys.want(None, silent_after_s=SILENT_S), "a host to ask")

    def look() -> Standing | None:
        [found] = surveys.standings(["compute-1"], silent_after_s=SILENT_S)
        return found if found.token == asked["compute-1"] else None

    return eventually(look, "its answer")


def test_a_host_shows_what_it_has_and_what_was_planted_there(
    ready: Stack, surveys: BlockingSurveyReads
) -> None:
    [server], volume = ready.servers, ready.add_volume(driver="iscsi")
    ready.completed(ready.attach(server, volume))
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

    with ready.host().edit() as state:
        state["connected"]["planted"] = {"driver": "iscsi", "path": "/dev/planted"}
    third = answered(surveys)
    survey = surveys.survey("compute-1", third.token or "")
    assert survey is not None
    assert ("/dev/planted", False, False) in [
        (each.name, each.recorded, each.used) for each in survey.storage
    ]


def test_an_agent_that_was_killed_answers_when_it_is_back(
    ready: Stack, surveys: BlockingSurveyReads
) -> None:
    ready.agents["compute-1"].kill()
    asked = surveys.want(None, silent_after_s=SILENT_S)
    assert asked, "it was heard of just now"
    ready.start_agent()

    def look() -> bool:
        [found] = surveys.standings(["compute-1"], silent_after_s=SILENT_S)
        return found.token == asked["compute-1"]

    assert eventually(look, "its answer")
