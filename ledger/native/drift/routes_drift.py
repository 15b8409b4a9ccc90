"""The routes of /v1/drift."""

from __future__ import annotations

from ledger.http.route import IDEMPOTENT, Route, get
from ledger.native import schemas
from ledger.native.drift import findings as drift
from ledger.native.drift import looks, repairs, schemas_repairs
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
    Route(
        name="drift_run_ask",
        method="POST",
        path="/v1/drift/runs",
        handler=looks.ask,
        body=shown.LookWanted,
        answers={202: shown.LookAsked},
        rules=("attachment-ledger:drift:look",),
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
    Route(
        name="drift_run_stop",
        method="POST",
        path="/v1/drift/runs/{look_id}/stop",
        handler=looks.stop,
        body=schemas.Why,
        answers={200: shown.LookShown},
        rules=("attachment-ledger:drift:look",),
    ),
    Route(
        name="drift_run_resume",
        method="POST",
        path="/v1/drift/runs/{look_id}/resume",
        handler=looks.resume,
        body=schemas.Why,
        answers={200: shown.LookShown},
        rules=("attachment-ledger:drift:look",),
    ),
    Route(
        name="drift_ignore",
        method="POST",
        path="/v1/drift/{finding_id}/ignore",
        handler=drift.ignore,
        body=shown.Ignore,
        answers={200: shown.FindingDetails},
        rules=("attachment-ledger:drift:ignore",),
    ),
    Route(
        name="drift_heed",
        method="POST",
        path="/v1/drift/{finding_id}/heed",
        handler=drift.heed,
        body=schemas.Why,
        answers={200: shown.FindingDetails},
        rules=("attachment-ledger:drift:ignore",),
    ),
    Route(
        name="drift_repair",
        method="POST",
        path="/v1/drift/{finding_id}/repair",
        handler=repairs.repair,
        body=schemas_repairs.RepairWanted,
        answers={200: schemas_repairs.RepairProposed, 202: schemas_repairs.RepairAccepted},
        headers=IDEMPOTENT,
        rules=("attachment-ledger:drift:repair",),
    ),
)
