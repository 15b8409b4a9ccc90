"""`event verify|archive|restore` on the service's machine, and events out of an archive."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from aggregates.attachment import Attachment
from aggregates.base import Actor, EventContext
from ledger.cli import shell
from ledger.log.application import Ledger
from projections.catalog import ALL
from projections.running.runner import catch_up
from tests.service.api_world import running_api
from tests.store.histories import stored_events
from tests.store.months import backdate, day
from tests.tokens import token_of
from tests.world import World

EVENTS = 6
ATTACHMENT, VOLUME, SERVER = (str(uuid4()) for _ in range(3))
WHY = EventContext(actor=Actor(name="ada"), request_id="req-1", cause="api")


@pytest.fixture
def db(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def log(database_url: str, db: psycopg.Connection[Any]) -> str:
    """An attachment that lived in March, and the option that names its database."""
    with Ledger(database_url) as ledger:
        attachment = Attachment(UUID(ATTACHMENT))
        attachment.record(Attachment.AttachmentCreated, volume_id=VOLUME, server_id=SERVER)
        attachment.record(Attachment.ConnectorUpdated, host="hv1")
        attachment.record(Attachment.Connected)
        attachment.record(Attachment.Disconnected)
        attachment.record(Attachment.Deleted)
        ledger.save(attachment, context=WHY)
        other = Attachment(uuid4())
        other.record(Attachment.AttachmentCreated, volume_id=VOLUME, server_id=SERVER)
        ledger.save(other, context=WHY)
    backdate(db, (5, day(3, 9)), (6, day(4, 9)))
    catch_up(database_url, ALL)
    return f"--database-url={database_url}"


Out = pytest.CaptureFixture[str]


def test_a_log_is_proven_and_the_checkpoint_is_printed(
    log: str, capsys: Out, tmp_path: Path
) -> None:
    assert shell.main(["event", "verify", log]) == 0
    printed, told = capsys.readouterr()
    assert json.loads(printed)["position"] == EVENTS
    assert f"verify: {EVENTS} of {EVENTS} events (100 %)" in told
    kept = tmp_path / "kept.json"
    kept.write_text(printed)
    assert shell.main(["event", "verify", log, "--checkpoint", str(kept)]) == 0
    assert capsys.readouterr().out == printed
    assert shell.main(["event", "verify", log, "--since", str(kept)]) == 0
    assert f"behind position {EVENTS}" in capsys.readouterr().err


def test_a_log_that_was_changed_is_refused_with_the_position(
    log: str, db: psycopg.Connection[Any], capsys: Out
) -> None:
    db.execute("UPDATE events SET actor = 'bob' WHERE position = 6")
    assert shell.main(["event", "verify", log]) == 4
    told = capsys.readouterr()
    assert "not what was stored: position 6" in told.err
    assert told.out == ""


def test_a_log_that_breaks_a_rule_is_refused_with_position_and_event(
    log: str, tmp_path: Path, capsys: Out
) -> None:
    """This one was not written by flows: an attachment in it is nobody's."""
    assert shell.main(["event", "verify", log, "--rules"]) == 4
    told = capsys.readouterr()
    assert "position 6, Attachment " in told.err
    assert ": owned: Every reservation" in told.err
    assert "the log breaks rules of the ledger in 1 place(s)" in told.err
    assert json.loads(told.out)["position"] == EVENTS, "it is proven all the same"
    kept = tmp_path / "kept.json"
    kept.write_text(told.out)
    assert shell.main(["event", "verify", log, "--rules", "--since", str(kept)]) == 2
    assert "leave --since out" in capsys.readouterr().err


def test_a_log_that_flows_wrote_breaks_no_rule(database_url: str, capsys: Out) -> None:
    world = World()
    world.done(world.attach())
    together = groupby(stored_events(world), key=lambda each: id(each[1]))
    with Ledger(database_url) as ledger:
        for pairs in (list(group) for _, group in together):
            events, [context, *_] = [event for event, _ in pairs], [each for _, each in pairs]
            ledger.log_recorder.insert_events(events, context=context)
    assert shell.main(["event", "verify", f"--database-url={database_url}", "--rules"]) == 0
    assert "breaks none of the ledger's rules" in capsys.readouterr().err


def test_a_file_that_is_no_checkpoint_is_a_usage_error(
    log: str, tmp_path: Path, capsys: Out
) -> None:
    missing = tmp_path / "missing.json"
    assert shell.main(["event", "verify", log, "--since", str(missing)]) == 2
    missing.write_text("{}")
    assert shell.main(["event", "verify", log, "--since", str(missing)]) == 2
    assert "no checkpoint" in capsys.readouterr().err


def test_a_disk_that_is_full_is_told_and_is_left_as_it_was(
    log: str, tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert shell.main(["event", "archive", log, "--to", str(tmp_path), "--before=2026-05"]) == 1
    assert "cannot be read or written: [Errno 28] No space left" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_months_go_to_files_and_come_back(log: str, tmp_path: Path, capsys: Out) -> None:
    to = ["event", "archive", log, "--to", str(tmp_path), "--before"]
    assert shell.main([*to, "2026-03"]) == 0
    assert capsys.readouterr().out == ""
    assert shell.main([*to, "2026-05", "--detach"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/events-2026-03.jsonl.gz\n"
    assert shell.main(["event", "verify", log]) == 4
    assert "--archive" in capsys.readouterr().err
    assert shell.main(["event", "verify", log, "--archive", str(tmp_path)]) == 0
    assert shell.main(["event", "restore", log, "--from", str(tmp_path)]) == 0
    assert shell.main(["event", "verify", log]) == 0
    with pytest.raises(SystemExit):
        shell.main([*to, "May"])
    assert "must be a month like 2026-06" in capsys.readouterr().err


async def test_events_come_out_of_archive_and_service_as_one_log(
    log: str, database_url: str, tmp_path: Path
) -> None:
    archive = ["event", "archive", log, f"--to={tmp_path}", "--before=2026-05"]
    with_files = ["--archive", str(tmp_path)]
    listed = ["event", "list", "-f", "value", "-c", "Position"]
    story = ["history", "volume", VOLUME]
    then = ["attachment", "show", ATTACHMENT, "--at", "2026-03-08T23:59:58Z", "-f", "json"]
    async with running_api(database_url) as api:
        client = Client(str(api.http.make_url("/")))
        assert await client.run(*archive) == (0, f"{tmp_path}/events-2026-03.jsonl.gz\n")
        whole = [await client.run(*words) for words in (listed, story, then)]
        assert whole[0] == (0, "".join(f"{n}\n" for n in range(1, EVENTS + 1)))
        assert json.loads(whole[2][1])["state"] == "connected"

        assert (await client.run(*archive, "--detach"))[0] == 0
        part = [await client.run(*words) for words in (listed, story, then)]
        assert [code for code, _ in part] == [4, 0, 4]
        assert part[1] != whole[1]
        assert [await client.run(*words, *with_files) for words in (listed, story, then)] == whole
        page = await client.run(*listed, *with_files, "--after=2", "--limit=3")
        assert page == (0, "3\n4\n5\n")
        newest = [*story, *listed[2:], "--reverse", "--limit=3", *with_files]
        assert await client.run(*newest) == (0, "6\n5\n4\n")


class Client:
    """The program beside the service that it asks: (exit code, what it printed)."""

    def __init__(self, url: str) -> None:
        self._environment = {**os.environ, "LEDGER_URL": url, "LEDGER_TOKEN": token_of("admin")}

    async def run(self, *words: str) -> tuple[int | None, str]:
        command = [sys.executable, "-m", "ledger", *words]
        process = await asyncio.create_subprocess_exec(
            *command, env=self._environment, stdout=PIPE, stderr=DEVNULL
        )
        printed, _ = await process.communicate()
        return process.returncode, printed.decode()
