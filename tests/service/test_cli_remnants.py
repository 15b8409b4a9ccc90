"""The CLI on what acts leave behind: told before and after, listed, acknowledged."""

from __future__ import annotations

import pytest

from ledger.native.drift.schemas_remnants import (
    Remnants,
    RemnantShown,
    RemnantsQuery,
    RemnantSummary,
)
from tests.service.cli_stub import (
    OPERATION,
    SERVER,
    VOLUME,
    Run,
    Stub,
    acted,
    finished,
)

PATH = f"/v1/operations/{OPERATION}"
DETAIL = f"devices and sessions of volume {VOLUME} on host compute-1"


REMNANT = {
    "remnant_id": OPERATION,
    "kind": "connection",
    "step": "disconnect",
    "server_id": SERVER,
    "volume_id": VOLUME,
    "attachment_id": None,
    "host": "compute-1",
    "detail": DETAIL,
}
RECORDED = {
    **REMNANT,
    "state": "open",
    "act": "skip",
    "reason": "gone",
    "from_operation": OPERATION,
    "left_at": "2026-11-20T10:00:09Z",
    "acknowledged_at": None,
    "acknowledged_reason": None,
    "position": 7,
}


@pytest.mark.parametrize("dry_run", [True, False], ids=["dry run", "done"])
@pytest.mark.parametrize("act", [("skip", "disconnect"), ("give-up",)], ids=["skip", "give-up"])
def test_what_an_act_leaves_behind_is_told(
    act: tuple[str, ...],
    dry_run: bool,
    run: Run,
    stub: Stub,
    capsys: pytest.CaptureFixture[str],
) -> None:
    left = RemnantSummary.model_validate(REMNANT)
    stub.answers[f"POST {PATH}/actions"] = acted(left, dry_run=dry_run)
    stub.answers[f"GET {PATH}"] = finished()
    more = ["--dry-run"] if dry_run else []
    assert run("operation", act[0], OPERATION, *act[1:], "--reason", "gone", *more) == 0
    told = capsys.readouterr()
    assert (f"may stay behind: {DETAIL}" in told.err) is not dry_run
    assert (DETAIL in told.out) is dry_run
    assert ("remnant list" in told.err) is not dry_run
    assert ("finished" in told.out) is not dry_run
    assert stub.asked[0].query == ({"dry_run": "true"} if dry_run else {})


def test_remnants_are_listed_over_all_pages(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = RemnantShown.model_validate(RECORDED)
    stub.answers["GET /v1/remnants"] = [
        Remnants(remnants=[shown] * 50, next=7),
        Remnants(remnants=[shown], next=None),
    ]
    assert run("remnant", "list", "--limit", "5000", "-f", "value", "-c", "ID") == 0
    assert len(capsys.readouterr().out.splitlines()) == 51
    for asked in stub.asked:
        RemnantsQuery.model_validate(asked.query)  # a page is no larger than the API has them
    assert [asked.query.get("after") for asked in stub.asked] == [None, "7"]


def test_remnants_are_listed_and_acknowledged(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = RemnantShown.model_validate(RECORDED)
    stub.answers["GET /v1/remnants"] = Remnants(remnants=[shown], next=None)
    assert run("remnant", "list", "--host", "compute-1") == 0
    assert DETAIL in capsys.readouterr().out
    assert stub.asked[0].query["state"] == "open"
    assert run("remnant", "list", "--all") == 0
    assert "state" not in stub.asked[1].query
    path = f"/v1/remnants/{OPERATION}/acknowledge"
    stub.answers[f"POST {path}"] = shown
    assert run("remnant", "acknowledge", OPERATION, "--reason", "flushed") == 0
    assert stub.asked[2].body == {"reason": "flushed"}
