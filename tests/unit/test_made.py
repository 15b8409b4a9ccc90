"""By what a volume is known to be the one that we made; each that is lacking is a no."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from handlers.drift import automatic
from handlers.drift.classes import BY_NAME, CLASSES
from handlers.results import made
from host_agent.shared.contract.origin import Dependents, Origin, origin_of
from host_agent.shared.contract.ports import VolumeView
from tests.unit.test_effects import view

MARK, USER, AT, IMAGE = str(uuid4()), str(uuid4()), 1_000_000.0, str(uuid4())
ORIGIN = Origin(user_id=USER, mark=MARK, created_at=AT + 1)
OURS: VolumeView = view(image_id=IMAGE, origin=ORIGIN)
NONE = Dependents(snapshots=(), backups=(), clones=())
EVIDENCE = made.Evidence(
    volume=OURS,
    mark=MARK,
    wanted={"size_gb": 1, "project_id": "p", "image_id": IMAGE},
    asked=(AT, AT),
    in_project=True,
    user_id=USER,
    attachments=(),
    dependents=NONE,
)


def of(evidence: made.Evidence = EVIDENCE, **origin: Any) -> made.Evidence:
    volume = replace(evidence.volume, origin=replace(evidence.volume.origin, **origin))
    return replace(evidence, volume=volume)


def seen(**more: Any) -> made.Evidence:
    return replace(EVIDENCE, volume=replace(OURS, **more))


def test_a_volume_of_which_all_fits_is_the_one_that_we_made() -> None:
    assert made.why_not(EVIDENCE) is None
    assert made.why_not(seen(image_id=None, status="downloading")) is None, "not written yet"


LACKS: dict[str, tuple[made.Evidence, str]] = {
    "no operation": (replace(EVIDENCE, wanted=None), "does not say that a volume"),
    "no mark": (of(mark=None), "does not carry the mark"),
    "another disk's mark": (of(mark=str(uuid4())), "does not carry the mark"),
    "made for another disk": (replace(EVIDENCE, logged=str(uuid4())), "for another disk"),
    "another known": (replace(EVIDENCE, others=("v2",)), "may be, v2"),
    "restored by a user": (of(user_id="alice"), "user alice created it"),
    "creator untold": (of(user_id=None), "does not say which user"),
    "own user untold": (of(replace(EVIDENCE, user_id=None), user_id=None), "which user"),
    "before": (of(created_at=AT - made.CLOCKS_APART_S - 1), "while it was asked for"),
    "after": (
        of(created_at=AT + made.CREATED_WITHIN_S + made.CLOCKS_APART_S + 1),
        "while it was asked for",
    ),
    "creation untold": (of(created_at=None), "not known when"),
    "asked when": (replace(EVIDENCE, asked=None), "not known when"),
    "another project's": (replace(EVIDENCE, in_project=False), "another project"),
    "larger": (seen(size_gb=2), "another size"),
    "of a snapshot": (of(snapshot_id=str(uuid4())), "another snapshot"),
    "a clone": (of(source_volume_id=str(uuid4())), "another source volume"),
    "another image": (seen(image_id=str(uuid4())), "another image"),
    "no image": (seen(image_id=None), "another image"),
    "target of a migration": (seen(migration_status="target:x"), "migrates it"),
    "migrated": (seen(migration_status="success"), "migrates it"),
    "going": (seen(status="error_deleting"), "it is error_deleting"),
    "attached": (replace(EVIDENCE, attachments=("a1",)), "an attachment of it \\(a1\\)"),
    "attachments untold": (replace(EVIDENCE, attachments=None), "what is attached"),
    **{
        f"{kind} {'untold' if ids is None else ''}": (
            replace(EVIDENCE, dependents=replace(NONE, **{kind: ids})),
            f"{'whether there are ' if ids is None else 'there are '}{kind} of it",
        )
        for kind in ("snapshots", "backups", "clones")
        for ids in (None, ("x",))
    },
}


@pytest.mark.parametrize("lacks", LACKS)
def test_what_does_not_fit_or_is_not_told_is_a_no_with_its_reason(lacks: str) -> None:
    evidence, why = LACKS[lacks]
    assert re.search(why, made.why_not(evidence) or "")


USES = ("attached", "attachments", "snapshots", "backups", "clones")


@pytest.mark.parametrize("lacks", LACKS)
def test_what_the_log_has_as_made_is_ours_whatever_it_looks_like_but_in_use_it_is_kept(
    lacks: str,
) -> None:
    evidence = LACKS[lacks][0]
    by_log = replace(evidence, logged=evidence.mark)
    assert (made.why_not(by_log) is not None) == lacks.startswith(USES)


def test_a_volume_of_a_snapshot_has_the_image_that_its_snapshot_had() -> None:
    snapshot = str(uuid4())
    wanted = {"size_gb": 1, "project_id": "p", "snapshot_id": snapshot}
    assert made.why_not(of(replace(EVIDENCE, wanted=wanted), snapshot_id=snapshot)) is None


@pytest.mark.parametrize("told", [None, "", "yesterday", 7])
def test_a_time_that_cannot_be_read_is_none(told: Any) -> None:
    assert origin_of({"created_at": told}).created_at is None
    assert origin_of({"created_at": "1970-01-12T13:46:40.500000"}).created_at == AT + 0.5


def test_no_volume_is_ever_deleted_unasked() -> None:
    deleting = {each.name for each in CLASSES if "delete_volume" in (each.repair, each.or_else)}
    assert deleting == {"volume_of_nobody"}
    assert not deleting & automatic.CLASSES
    assert all(BY_NAME[name].asked_for for name in deleting)
