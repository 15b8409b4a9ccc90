"""A repair that can never work for what was found is not offered: what does is named instead."""

from __future__ import annotations

from typing import Any

import pytest

from aggregates.base import About
from handlers.drift import rows
from handlers.drift.classes import BY_NAME, CLASSES, DriftClass
from handlers.drift.proofs import ProofFacts
from handlers.drift.recheck import cannot
from handlers.drift.repairs import REPAIRS
from host_agent.shared.contract.lane import Lane

WRONG = BY_NAME["volume_status_differs"]
RESET = "`openstack volume set --state {} v`"


def found(status: str, attachments: int) -> dict[str, Any]:
    return {"ledger": None, "cinder": {"status": status, "attachments": attachments}}


@pytest.mark.parametrize(
    ("status", "attachments"), [("attaching", 1), ("attaching", 0), ("detaching", 1)]
)
def test_what_cinder_takes_back_by_itself_is_offered(status: str, attachments: int) -> None:
    assert cannot(WRONG, "v", found(status, attachments), About()) is None


@pytest.mark.parametrize(
    ("status", "attachments", "command"),
    [
        ("available", 1, RESET.format("in-use")),
        ("error", 2, RESET.format("in-use")),
        ("maintenance", 1, RESET.format("in-use")),
        ("error_detaching", 1, RESET.format("in-use")),
        ("in-use", 0, RESET.format("available")),
        ("reserved", 0, RESET.format("available")),
        ("detaching", 0, RESET.format("available")),
        ("error_deleting", 0, "`openstack volume delete --force v`"),
    ],
)
def test_what_an_administrator_has_to_set_names_the_command_that_does(
    status: str, attachments: int, command: str
) -> None:
    told = cannot(WRONG, "v", found(status, attachments), About()) or ""
    assert command in told
    assert ("Never add `--detached`" in told) is bool(attachments)
    assert ("--volume-id v" in told) is (not attachments and status != "error_deleting")


@pytest.mark.parametrize("status", ["available", "attaching", "detaching", "in-use", "error"])
@pytest.mark.parametrize("attachments", [0, 1])
def test_the_offer_says_what_the_proof_says(status: str, attachments: int) -> None:
    shown = rows.CinderVolume(status=status, attachments=attachments)
    row = rows.VolumeRow(id="v", about=About(), mappings=1, had=True, cinder=shown)
    asked = ProofFacts(row=row, lane=Lane.of_server("s"), statuses=("attached",) * attachments)
    assert REPAIRS["settle_volume"].proof(asked) == cannot(
        WRONG, "v", found(status, attachments), About()
    )


@pytest.mark.parametrize("differs", [{}, {"cinder": None}, {"cinder": "unknown"}, {"cinder": {}}])
def test_of_what_a_finding_does_not_say_nothing_is_said(differs: dict[str, Any]) -> None:
    assert [cannot(each, "v", differs, About()) for each in CLASSES] == [None] * len(CLASSES)


@pytest.mark.parametrize("drift", CLASSES, ids=[each.name for each in CLASSES])
def test_what_is_refused_until_a_resize_is_over_is_not_offered_before(drift: DriftClass) -> None:
    both = [REPAIRS[name] for name in (drift.repair, drift.or_else) if name]
    [waits] = {each.after_resize for each in both} or {False}
    told = cannot(drift, "v", {}, About(), resized=True)
    assert told == ("The server is being resized: confirm or revert that first." if waits else None)
