"""The CLI on what differs: lists in 80 columns, what to type next, looking and waiting."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from ledger.cli.drift import looks as drift_looks
from ledger.cli.drift.drift import COLUMNS
from ledger.native.drift.schemas_drift import (
    Drift,
    DriftClasses,
    DriftClassShown,
    FindingDetails,
    FindingShown,
    LookAsked,
    Looks,
    LookShown,
)
from tests.service.cli_stub import (
    ATTACHMENT,
    SERVER,
    VOLUME,
    Run,
    Screen,
    Stub,
    event,
    problem,
)

FINDING = "66666666-6666-4666-8666-666666666666"
LOOK = "77777777-7777-4777-8777-777777777777"
PATH = f"/v1/drift/{FINDING}"
LONGEST = {"drift_class": "attachment_status_differs", "host": "compute-017.region-3"}


def finding(**changes: Any) -> dict[str, Any]:
    return {
        "finding_id": FINDING,
        "drift_class": "reservation_unknown",
        "severity": "warning",
        "state": "confirmed",
        "subject": "attachment",
        "key": ATTACHMENT,
        "server_id": SERVER,
        "volume_id": VOLUME,
        "attachment_id": ATTACHMENT,
        "host": "hv1",
        "repair": "drop_attachment",
        "found_at": "2026-11-20T10:00:00Z",
        "found_position": 7,
        "times": 2,
        "seen_at": "2026-11-20T10:00:00Z",
        "confirmed_at": "2026-11-20T10:10:00Z",
        "over_at": None,
        "over_how": None,
        "ignored_until": None,
        "ignored_reason": None,
        "repairing": None,
        "repaired_by": None,
        "position": 8,
        **changes,
    }


def details(**changes: Any) -> FindingDetails:
    found = event(7, "Finding.DriftFound", {"drift_class": "reservation_unknown"})
    more = {
        "meaning": "Cinder reserves the volume.",
        "by_hand": None,
        "acts": ["repair", "ignore"],
        "differs": {"ledger": None, "cinder": {"status": "reserved", "host": None}},
        "look_id": LOOK,
        "boot_id": None,
        "epoch": None,
        "history": [found],
    }
    return FindingDetails.model_validate(finding(**{**more, **changes}))


def listed(*found: dict[str, Any]) -> Drift:
    shown = [FindingShown.model_validate(each) for each in found]
    return Drift(at=None, findings=shown, next=None)


def look(**changes: Any) -> LookShown:
    shown: dict[str, Any] = {
        "look_id": LOOK,
        "kind": "host",
        "scope": {"host": "hv1"},
        "why": "asked",
        "asked_by": "operator",
        "believe": [],
        "reason": None,
        "state": "under_way",
        "outcome": None,
        "done": 300,
        "total": 1200,
        "eta_s": 45.0,
        "compared": None,
        "found": None,
        "unknown": None,
        "braked": None,
        "examples": None,
        "held_back": [],
        "trouble": None,
        "began_at": "2026-11-20T10:00:00Z",
        "began_position": 9,
        "ended_at": None,
        "position": 9,
    }
    return LookShown.model_validate({**shown, **changes})


def ended(outcome: str = "completed", **told: Any) -> LookShown:
    counts = {"compared": {"disk": 3}, "found": {"disk_missing": 1}, "unknown": {}, "braked": {}}
    at = {"ended_at": "2026-11-20T10:05:00Z", "done": None, "total": None, "eta_s": None}
    return look(state="ended", outcome=outcome, **{**counts, **at, **told})


# --- lists ------------------------------------------------------------------------------------


def test_the_list_fits_in_80_columns_whatever_differs(screen: Screen, stub: Stub) -> None:
    longest, of_nobody = finding(**LONGEST), finding(host=None, server_id=None)
    stub.answers["GET /v1/drift"] = listed(longest, of_nobody)
    table = screen("drift", "list")
    assert max(map(len, table.splitlines())) <= 80
    for word in (FINDING[:8], "confirmed", "warning", LONGEST["host"], "3 min"):
        assert word in table
    assert f"volume {VOLUME[:8]}" in table


def test_a_suspected_finding_says_how_to_have_it_confirmed(screen: Screen, stub: Stub) -> None:
    for host, scope in ((None, f"--volume {VOLUME[:8]}"), ("hv1", "--host hv1")):
        stub.answers[f"GET {PATH}"] = details(state="suspected", host=host, acts=["ignore"])
        assert f"attachment-ledger drift run {scope} --wait" in screen("drift", "show", FINDING)
    stub.answers[f"GET {PATH}"] = details()
    shown = screen("drift", "show", FINDING)
    assert "drift run" not in shown
    assert f"drift repair {FINDING[:8]} --reason TEXT" in shown


def test_what_a_parked_operation_has_left_is_told_in_words(screen: Screen, stub: Stub) -> None:
    left = [{"lane": 0, "step": step, "undo": False} for step in ("delete", "unbind")]
    said = {"flow": "detach", "left": left}
    stub.answers[f"GET {PATH}"] = details(drift_class="operation_parked", differs={"ledger": said})
    assert "ledger: flow detach, left delete, unbind" in screen("drift", "show", FINDING)


def test_machines_and_who_names_columns_get_all_of_them(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers["GET /v1/drift"] = listed(finding())
    assert run("drift", "list", "-f", "json") == 0
    [row] = json.loads(capsys.readouterr().out)
    assert tuple(row) == tuple(COLUMNS)
    assert (row["Class"], row["Host"], row["Times"]) == ("reservation_unknown", "hv1", 2)
    assert run("drift", "list", "-c", "Host", "-c", "Repair") == 0
    assert "drop_attachment" in capsys.readouterr().out


def test_a_list_asks_for_what_was_typed(run: Run, stub: Stub) -> None:
    stub.answers["GET /v1/drift"] = listed()
    assert run("drift", "list", "--class", "volume_gone", "--host", "hv1", "--all") == 0
    assert run("drift", "list", "--server", SERVER, "--at", "2026-11-17T14:02") == 0
    first, second = (asked.query for asked in stub.asked)
    assert {"class": "volume_gone", "host": "hv1", "state": "all"}.items() <= first.items()
    assert {"server": SERVER, "at": "2026-11-17T14:02:00Z"}.items() <= second.items()
    assert "state" not in second


@pytest.mark.parametrize(
    "words",
    [
        ["list", "--at", "2026-11-17", "--state", "over"],
        ["ignore", FINDING],
        ["run", "--volume", VOLUME, "--host", "hv1"],
    ],
    ids=["state then", "no reason", "two things"],
)
def test_what_makes_no_sense_is_a_usage_error(words: list[str], run: Run, stub: Stub) -> None:
    with pytest.raises(SystemExit, match="2"):
        run("drift", *words)
    assert stub.asked == []


def test_the_classes_are_listed_in_80_columns_and_with_their_meaning_for_machines(
    screen: Screen, stub: Stub
) -> None:
    shown = DriftClassShown(
        name="attachment_status_differs",
        subject="attachment",
        compares=["ledger", "cinder"],
        severity="critical",  # type: ignore[arg-type]
        meaning="It is so.",
        repair="complete_attachment",
        by_hand=None,
        again=["ledger"],
    )
    stub.answers["GET /v1/drift/classes"] = DriftClasses(classes=[shown])
    assert max(map(len, screen("drift", "classes").splitlines())) <= 80
    assert "Meaning" not in screen("drift", "classes")
    [row] = json.loads(screen("drift", "classes", "-f", "json"))
    assert (row["Compares"], row["Meaning"]) == ("ledger, cinder", "It is so.")


# --- one finding ------------------------------------------------------------------------------


def test_a_finding_is_shown_with_what_differs_and_what_to_type(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers[f"GET {PATH}"] = details()
    assert run("drift", "show", FINDING, "--max-width", "200") == 0
    told = capsys.readouterr().out
    for line in (
        "Cinder reserves the volume.",
        "ledger: has no such thing",
        "cinder: status reserved, host -",
        f"attachment-ledger drift repair {FINDING}",
        f"attachment-ledger drift ignore {FINDING} --reason TEXT",
        "Difference found: reservation_unknown",
    ):
        assert line in told


@pytest.mark.parametrize(
    ("act", "command"),
    [("acknowledge", "remnant acknowledge"), ("operation", "operation show")],
)
def test_what_needs_no_look_says_how_it_is_settled(
    act: str, command: str, run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers[f"GET {PATH}"] = details(acts=[act], history=[], differs=None)
    assert run("drift", "show", FINDING) == 0
    assert f"attachment-ledger {command} {FINDING}" in capsys.readouterr().out


def test_a_finding_is_ignored_and_heeded_with_a_reason(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    until = "2026-12-01T00:00:00Z"
    ignored = details(
        state="ignored", ignored_until=until, ignored_reason="known", acts=["unignore"]
    )
    stub.answers[f"POST {PATH}/ignore"] = ignored
    stub.answers[f"POST {PATH}/unignore"] = details(state="suspected")
    assert run("drift", "ignore", FINDING, "--reason", "known", "--until", "2026-12-01") == 0
    assert "until 2026-12-01 00:00:00Z: known" in capsys.readouterr().out
    assert run("drift", "ignore", FINDING, "--reason", "for good") == 0
    assert run("drift", "unignore", FINDING, "--reason", "now") == 0
    assert [asked.body for asked in stub.asked] == [
        {"reason": "known", "until": until},
        {"reason": "for good"},
        {"reason": "now"},
    ]


# --- looks ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift_looks, "ASKED_INTERVAL_S", 0.0)


def test_a_look_is_asked_for(run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    stub.answers["POST /v1/drift/runs"] = LookAsked(look_id=LOOK, scope={})  # type: ignore[arg-type]
    assert run("drift", "run") == 0
    assert run("drift", "run", "--volume", VOLUME) == 0
    assert [asked.body for asked in stub.asked] == [{}, {"volume": VOLUME}]
    assert "drift looks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [
        ("completed", 0, "drift list"),
        ("void", 5, "the list is cut"),
        ("stopped", 5, "is stopped"),
    ],
    ids=["completed", "void", "stopped"],
)
def test_a_look_is_waited_for_from_before_it_begins(
    outcome: str,
    code: int,
    said: str,
    run: Run,
    stub: Stub,
    capsys: pytest.CaptureFixture[str],
) -> None:
    not_begun = look(state="asked", done=None, total=None, began_at=None, position=None)
    trouble = "the list is cut" if outcome == "void" else None
    stub.answers["POST /v1/drift/runs"] = LookAsked(look_id=LOOK, scope={"host": "hv1"})  # type: ignore[arg-type]
    stub.answers[f"GET /v1/drift/runs/{LOOK}"] = [
        not_begun,
        look(),
        ended(outcome, trouble=trouble),
    ]
    assert run("drift", "run", "--host", "hv1", "--wait") == code
    told = capsys.readouterr()
    assert "look at host hv1: asked for, and not begun" in told.err
    assert "look at host hv1: 25%, 45 s left" in told.err
    assert said in told.err
    assert "disk_missing: 1" in told.out


def test_a_look_that_does_not_end_in_time_goes_on(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers["POST /v1/drift/runs"] = LookAsked(look_id=LOOK, scope={})  # type: ignore[arg-type]
    stub.answers[f"GET /v1/drift/runs/{LOOK}"] = look()
    assert run("drift", "run", "--wait", "--timeout", "0") == 7
    assert "it goes on" in capsys.readouterr().err


def test_a_refusal_is_told(run: Run, stub: Stub) -> None:
    async def refused(_: Any) -> Any:
        return problem(403, "forbidden", "Policy doesn't allow it.")

    stub.answers["POST /v1/drift/runs"] = LookAsked(look_id=LOOK, scope={})  # type: ignore[arg-type]
    stub.answers[f"GET /v1/drift/runs/{LOOK}"] = refused
    assert run("drift", "run", "--wait") == 4


TOLD = (
    "--accept-many",
    "guest_missing",
    "--accept-many",
    "disk_missing",
    "--reason",
    "the disk is lost",
)
BRAKED: dict[str, Any] = {
    "braked": {"guest_missing": 12},
    "examples": {"guest_missing": [f"{SERVER} on hv1"]},
    "held_back": [f"guest_missing: 12 new findings ({SERVER} on hv1, ...)", "and another"],
}


def test_what_to_believe_is_said_with_the_question(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers["POST /v1/drift/runs"] = LookAsked(look_id=LOOK, scope={"host": "hv1"})  # type: ignore[arg-type]
    told: dict[str, Any] = {
        "believe": ["guest_missing", "disk_missing"],
        "reason": "the disk is lost",
    }
    stub.answers[f"GET /v1/drift/runs/{LOOK}"] = ended(**told)
    assert run("drift", "run", "--host", "hv1", *TOLD, "--wait") == 0
    assert stub.asked[0].body == {"host": "hv1", **told}
    shown = capsys.readouterr().out
    for text in (*told["believe"], "the disk is lost", "operator"):
        assert text in shown


@pytest.mark.parametrize(
    "words", [("run", "--wait"), ("look", LOOK), ("looks",)], ids=["run", "look", "looks"]
)
def test_what_was_held_back_is_said_wherever_a_look_is_shown(
    words: tuple[str, ...], run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers["POST /v1/drift/runs"] = LookAsked(look_id=LOOK, scope={})  # type: ignore[arg-type]
    stub.answers[f"GET /v1/drift/runs/{LOOK}"] = ended(**BRAKED)
    stub.answers["GET /v1/drift/runs"] = Looks(
        asked=[], looks=[ended(found={}), ended(**BRAKED)], next=None
    )
    assert run("drift", *words) == 0
    told = capsys.readouterr()
    for text in (f"guest_missing: 12 new findings ({SERVER} on hv1, ...)", "and another"):
        assert text in " ".join((told.out + told.err).split())


@pytest.mark.parametrize("act", ["stop", "resume"])
def test_a_look_is_stopped_and_resumed(act: str, run: Run, stub: Stub) -> None:
    stub.answers[f"POST /v1/drift/runs/{LOOK}/{act}"] = look(state="stopped")
    with pytest.raises(SystemExit):
        run("drift", act, LOOK)
    assert run("drift", act, LOOK, "--reason", "Cinder is slow") == 0
    assert [asked.body for asked in stub.asked] == [{"reason": "Cinder is slow"}]


def test_who_waits_for_a_look_that_is_stopped_is_told_how_it_goes_on(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers["POST /v1/drift/runs"] = LookAsked(look_id=LOOK, scope={})  # type: ignore[arg-type]
    stub.answers[f"GET /v1/drift/runs/{LOOK}"] = [look(), look(state="stopped")]
    assert run("drift", "run", "--wait") == 5
    told = capsys.readouterr().err
    assert "is stopped at 25%" in told
    assert f"drift resume {LOOK}" in told


def test_looks_that_are_only_asked_for_are_listed_before_others(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = str(uuid4())
    nothing = {"began_at": None, "began_position": None, "done": None, "total": None}
    asked = look(look_id=waits, state="asked", scope={}, **nothing)
    begun_since = look(state="asked", **nothing)
    stub.answers["GET /v1/drift/runs"] = Looks(
        asked=[asked, begun_since], looks=[look()], next=None
    )
    for given, told in (
        ((), [(waits, "asked for"), (LOOK, "25%, 45 s left")]),
        (("--limit", "1"), [(waits, "asked for")]),
        (("--state", "under_way"), [(LOOK, "25%, 45 s left")]),
    ):
        assert run("drift", "looks", "-f", "json", *given) == 0
        rows = json.loads(capsys.readouterr().out)
        assert [(row["ID"], row["State"]) for row in rows] == told
    assert run("drift", "looks", "--state", "asked", "-f", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["ID"] for row in rows] == [waits, LOOK]
    assert "state" not in stub.asked[-1].query, "the API has them beside any others"


def test_looks_are_listed_with_how_far_they_are_or_how_they_ended(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = {"hv2": "silent"}
    stub.answers["GET /v1/drift/runs"] = Looks(
        asked=[],
        looks=[
            look(),
            look(total=None),
            look(state="stopped"),
            ended(unknown=unknown, scope={}),
        ],
        next=None,
    )
    assert run("drift", "looks", "-f", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["State"] for row in rows] == [
        *("25%, 45 s left", "under way", "stopped at 25%", "completed"),
    ]
    assert [row["Of"] for row in rows] == [*["host hv1"] * 3, "everything"]
    assert (rows[3]["Found"], rows[3]["Suppressed"], rows[3]["Unknown hosts"]) == (1, 0, 1)
    assert run("drift", "looks", "--state", "ended") == 0
    assert stub.asked[1].query["state"] == "ended"
