"""What somebody is told of an operation: what it does, why it stands, what each act would do."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from ledger.cli.operations import plan, top
from ledger.cli.operations.waiting import Telling
from ledger.cli.table import age
from ledger.native import schemas, schemas_attachments
from ledger.native.drift.schemas_remnants import RemnantSummary
from ledger.words.consequences import ActFacts, consequences, stands, will
from tests.service.cli_stub import (
    ATTACHMENT,
    BUSY,
    NOW,
    OPERATION,
    VOLUME,
    Run,
    Screen,
    Stub,
    acted,
    attachment,
    operation,
    operations,
    parked,
    refusing,
    step,
)
from tests.service.test_cli_api import host
from tests.service.test_cli_remnants import REMNANT

PATH = f"/v1/operations/{OPERATION}"
OTHER = "66666666-6666-4666-8666-666666666666"
THIRD = "77777777-7777-4777-8777-777777777777"


def running(**changes: Any) -> dict[str, Any]:
    return operation(updated_at="2026-11-20T10:02:38Z", **changes).model_dump(mode="json")


# --- running ----------------------------------------------------------------------------


def test_a_running_operation_says_whom_it_waits_for_since_when_and_how_often() -> None:
    steps = [step("await", "running", verb="volume_await", place="ledger", attempts=2)]
    assert plan.doing(running(steps=steps), NOW) == (
        "await: waiting for Cinder, volume show, until it is made, 42 s, attempt 3"
    )
    steps = [step("disconnect", "running", verb="volume_disconnect")]
    assert plan.doing(running(steps=steps), NOW) == (
        "disconnect on hv1: waiting for os-brick, disconnect volume, 42 s, attempt 1"
    )


def test_what_is_put_off_says_for_how_long_and_why() -> None:
    later = step("delete", "retrying", retry_at="2026-11-20T10:05:00Z", error=BUSY, attempts=4)
    assert plan.doing(running(steps=[later]), NOW) == (
        "delete is tried again in 100 s: The device is busy. (busy)"
    )


def test_a_step_of_a_newer_version_is_told_by_its_name() -> None:
    shown = plan.doing(running(steps=[step("beam", "running", verb="beam_up")]), NOW)
    assert shown == "beam on hv1: waiting for ledger, beam_up, 42 s, attempt 1"


def test_nothing_is_said_of_what_is_over_or_parked() -> None:
    assert plan.doing(parked().model_dump(mode="json"), NOW) == ""


def test_the_time_left_follows_from_the_pace_so_far() -> None:
    telling = Telling()
    known = {"run": 1, "total_bytes": 400, "updated_at": "2026-11-20T10:00:00Z"}
    at = [running(progress=[{**known, "done_bytes": done}]) for done in (100, 200, 50, 150)]
    assert telling.left_s(at[0], 10.0) is None
    assert telling.left_s(at[1], 30.0) == 40.0
    assert telling.left_s(at[2], 31.0) is None  # it began again
    assert telling.left_s(at[3], 51.0) == 50.0
    assert telling.left_s(running(), 40.0) is None


# --- parked -----------------------------------------------------------------------------


def test_each_act_says_what_it_would_do() -> None:
    shown = parked().model_dump(mode="json")
    assert will(shown, "retry") == "does disconnect again, then delete, unbind"
    assert will(shown, "skip") == "takes disconnect as done without doing it, then delete, unbind"
    assert will(shown, "unwind") == "undoes what was done: unplug"
    assert will(shown, "give_up") == "ends the operation; never done: disconnect, delete, unbind"


def test_each_act_says_what_it_leaves_or_why_it_would_be_refused() -> None:
    shown = parked().model_dump(mode="json")
    known = ActFacts(leaves={"skip": ["the disk"], "give_up": []}, refused={"unwind": "too late"})
    assert list(consequences(shown, "skip", known))[1] == "leaves behind: the disk"
    assert list(consequences(shown, "give_up", known))[1] == "leaves behind: nothing"
    assert list(consequences(shown, "unwind", known)) == ["refused now: too late"]
    assert len(list(consequences(shown, "retry", known))) == 1


def test_it_says_where_each_volume_stands() -> None:
    shown = parked().model_dump(mode="json")
    of_it = attachment(state="disconnected").model_dump(mode="json")
    assert list(stands(shown, ActFacts(attachments=[of_it]))) == [
        f"volume {VOLUME}: attachment {ATTACHMENT} disconnected on hv1"
    ]
    assert list(stands(shown, ActFacts(attachments=[]))) == [
        f"volume {VOLUME}: no attachment to this server is open"
    ]


def test_a_parked_operation_asks_where_things_stand_and_what_acts_would_leave(
    screen: Screen, stub: Stub
) -> None:
    stub.answers[f"GET {PATH}"] = parked()
    stub.answers[f"POST {PATH}/actions"] = acted(
        RemnantSummary.model_validate(REMNANT), dry_run=True
    )
    foreign = attachment(attachment_id=OTHER, volume_id=OTHER)
    rows = [attachment(state="disconnected"), foreign]
    stub.answers["GET /v1/attachments"] = _page(rows)
    shown = " ".join(screen("operation", "show", OPERATION).split())
    assert "volume 22222222: attachment 33333333 disconnected on hv1" in shown
    assert OTHER[:8] not in shown
    assert "operation retry 44444444 --reason TEXT does disconnect again" in shown
    assert "leaves behind: " in shown
    posts = [asked for asked in stub.asked if asked.method == "POST"]
    assert [list(asked.body) for asked in posts] == [["skip"], ["give_up"]]
    assert {asked.query["dry_run"] for asked in posts} == {"true"}
    assert max(map(len, screen("operation", "show", OPERATION).splitlines())) <= 80
    machine = json.loads(screen("operation", "show", OPERATION, "-f", "json"))
    assert [each["attachment_id"] for each in machine["stands"]] == [ATTACHMENT]


def test_a_volume_is_looked_for_on_all_pages_of_its_servers_attachments(
    screen: Screen, stub: Stub
) -> None:
    stub.answers[f"GET {PATH}"] = parked()
    stub.answers[f"POST {PATH}/actions"] = acted(dry_run=True)
    others = [attachment(attachment_id=OTHER, volume_id=OTHER)] * 100
    first = _page(others).model_copy(update={"next": 100})
    stub.answers["GET /v1/attachments"] = [first, _page([attachment()])]
    shown = " ".join(screen("operation", "show", OPERATION).split())
    assert "volume 22222222: attachment 33333333 attached on hv1" in shown


def test_whoever_may_not_act_sees_the_operation_all_the_same(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers[f"GET {PATH}"] = parked()
    stub.answers[f"POST {PATH}/actions"] = refusing(403, "forbidden", "Policy doesn't allow it.")
    assert run("operation", "show", OPERATION, "-f", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["next"] == ["retry", "skip", "give_up"]
    assert shown["stands"] is None
    assert run("operation", "show", OPERATION) == 0
    told = capsys.readouterr().out
    assert "not known: the service does not say where its volumes are attached" in told
    assert "no attachment" not in told


@pytest.mark.parametrize("act", ["retry", "unwind"])
def test_a_dry_run_of_any_act_changes_nothing(
    act: str, run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers[f"POST {PATH}/actions"] = acted(dry_run=True)
    assert run("operation", act, OPERATION, "--reason", "why", "--dry-run", "-f", "json") == 0
    said = capsys.readouterr()
    assert "Nothing was changed." in said.err
    assert json.loads(said.out)["would"].startswith(f"{act}: ")
    assert [asked.query for asked in stub.asked] == [{"dry_run": "true"}]


# --- top --------------------------------------------------------------------------------


def seen(*operations: Any, **more: Any) -> top.TopView:
    rows = [each.model_dump(mode="json") for page in operations for each in page.operations]
    return top.TopView(rows, more.pop("hosts", []), **more)


def test_a_screen_has_the_parked_first_and_the_longest_of_them_above() -> None:
    old, new = "2026-11-20T09:00:00Z", "2026-11-20T10:00:00Z"
    found = seen(
        operations(state="running", why=None, operation_id=THIRD, updated_at=old),
        operations(operation_id=VOLUME, updated_at=new),
        operations(operation_id=OTHER, updated_at=old),
    )
    lines = list(top.screen(found, 80, 24, NOW, "http://ledger"))
    assert lines[0] == "10:03:20Z  2 parked, 1 running  http://ledger"
    text = "\n".join(lines)
    assert text.index(OTHER[:8]) < text.index(VOLUME[:8]) < text.index(THIRD[:8])
    assert "63 min ago" in text


def test_a_screen_names_the_hosts_that_do_not_work() -> None:
    hosts = [host().model_dump(mode="json"), host(host="hv2", alive=False).model_dump(mode="json")]
    lines = list(top.screen(seen(hosts=hosts), 80, 24, NOW, "http://ledger"))
    assert lines[1] == "hosts: 1 up; hv2 down"
    assert lines[-1] == "No operation is under way, and none is parked."


def test_a_screen_is_no_larger_than_the_terminal_and_says_that_there_is_more() -> None:
    many = [operations(operation_id=f"{n:08}{OPERATION[8:]}") for n in range(40)]
    lines = list(top.screen(seen(*many), 80, 24, NOW, "http://ledger/" + "x" * 90))
    assert len(lines) <= 24 - 1
    assert max(map(len, lines)) <= 80 + len("\x1b[31m\x1b[0m")
    assert lines[-1].startswith("... more than fits here")


def test_top_once_is_a_screen_in_a_pipe(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers["GET /v1/operations"] = operations()
    stub.answers["GET /v1/hosts"] = _hosts()
    assert run("top", "--once") == 0
    assert "parked" in capsys.readouterr().out
    assert [asked.query["state"] for asked in stub.asked[:2]] == ["parked", "running"]
    assert run("top") == 2
    assert "top --once" in capsys.readouterr().err


def test_top_goes_on_while_the_service_is_away_and_gives_the_terminal_back(
    screen: Screen, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = refusing(503, "database_unavailable", "The database does not answer.")
    stub.answers["GET /v1/operations"] = [operations(), operations(), away]
    stub.answers["GET /v1/hosts"] = _hosts()
    looks = iter([None, KeyboardInterrupt()])

    def slept(_seconds: float) -> None:
        if (stop := next(looks)) is not None:
            raise stop

    monkeypatch.setattr("ledger.cli.operations.top.time.sleep", slept)
    shown = screen("top")
    assert "as of the last answer; now: The database does not answer." in shown
    assert shown.startswith(top.ENTER)
    assert shown.endswith(top.LEAVE)


def _hosts() -> Any:
    return schemas.Hosts(hosts=[host()])


def _page(rows: list[Any]) -> Any:
    return schemas_attachments.Attachments(attachments=rows, next=None)


def test_the_age_of_a_moment_to_come_is_none() -> None:
    assert age(datetime(2027, 1, 1, tzinfo=UTC), NOW) == "0 s"
