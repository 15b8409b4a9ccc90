"""The routes of /v1/drift."""

from __future__ import annotations

from ledger.http.route import Route, get
from ledger.native.drift import findings as drift
from ledger.native.drift import looks
from ledger.native.drift import schemas_drift as shown

# What has a name of its own comes before what is found by its id.
DRIFT: tuple[Route, ...] = (
    get(
        "drift",
        "/v1/drift",
        drift.drift,
        shown.Drift,
        query=shown.DriftQuery,
        rules=("attachment-ledger:drift:list",),
    ),
    get(
        "drift_classes",
        "/v1/drift/classes",
        drift.classes,
        shown.DriftClasses,
        rules=("attachment-ledger:drift:classes",),
    ),
    get(
        "drift_runs",
        "/v1/drift/runs",
        looks.looks,
        shown.Looks,
        query=shown.LooksQuery,
        rules=("attachment-ledger:drift:looks",),
    ),
    get(
        "drift_run",
        "/v1/drift/runs/{look_id}",
        looks.look,
        shown.LookShown,
        rules=("attachment-ledger:drift:looks",),
    ),
    get(
        "drift_finding",
        "/v1/drift/{finding_id}",
        drift.finding,
        shown.FindingDetails,
        query=shown.FindingQuery,
        rules=("attachment-ledger:drift:show",),
    ),
)
