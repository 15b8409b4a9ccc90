"""Errors of the service, told in the words of the command line."""

from __future__ import annotations

import pytest

from tests.service.cli_stub import SERVER, VOLUME, Run, Stub, event, refusing
from tests.service.test_cli_api import HISTORY, page


def test_fencing_a_host_that_answers_wants_force(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = "The agent of host hv1 was in contact at 10:00."
    stub.answers["POST /v1/hosts/hv1/fence"] = refusing(409, "host_answers", answers, "a key")
    assert run("host", "fence", "hv1", "--reason", "why", "--evidence", "none") == 4
    assert "--force" in capsys.readouterr().err


def test_a_history_before_its_beginning_says_when_that_is(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = refusing(404, "volume_not_found", "Nothing is known at that moment.")
    stub.answers[HISTORY] = [nothing, page(event(3, "Volume.Held", {"server_id": SERVER}))]
    assert run("history", "volume", VOLUME, "--at", "2020-01-01") == 3
    said = capsys.readouterr().err
    assert f"at 2020-01-01 00:00:00Z nothing had happened to volume {VOLUME} yet" in said
    assert "begins at 2026-11-20 10:00:03Z" in said
    stub.answers[HISTORY] = nothing
    assert run("history", "volume", VOLUME, "--at", "2020-01-01") == 3
    assert "Nothing is known" in capsys.readouterr().err
