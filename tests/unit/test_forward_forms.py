"""What is told of events is right by the published definitions of each form.

`published` has CloudEvents' own JSON schema, and of OCSF's schema the class that is used.  CADF's
rules are those of DMTF's DSP0262 1.0.0 as pycadf 4.1 enforces them, written down here.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import jsonschema_rs
import pytest

from aggregates import catalogue
from ledger.forward.forms import FORMS, cadf, cloudevents, ocsf
from ledger.forward.told import REFUSED, ToldItem, of_event, of_refusal

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden/0.2.0"
#: By topic: as one was stored, or only of the right types.
BODIES: dict[str, Any] = json.loads((GOLDEN / "samples.json").read_text())
BODIES["Finding.DriftChanged"]["seen_on"] = {}
STORED = map(json.loads, (GOLDEN / "events.jsonl").read_text().strip().split("\n"))
BODIES |= {each["topic"]: each["body"] for each in STORED}
PUBLISHED = HERE / "published"
LOG, SOME = UUID(int=7), str(UUID(int=8))
AT = "2026-11-28T04:00:00.123456Z"
TOPICS = [kind.TOPIC for each in catalogue.AGGREGATES for kind in catalogue.events_of(each)]
ASKER = {"name": "ada", "user_id": "u1", "project_id": "p1", "global_request_id": None}


def event(topic: str, **more: Any) -> dict[str, Any]:
    """As the API shows one."""
    nobody = dict.fromkeys(("attachment_id", "volume_id", "occurred_at", "user_id", "project_id"))
    return {
        **nobody,
        "position": 41,
        "recorded_at": AT,
        "topic": topic,
        "originator_id": SOME,
        "version": 3,
        "server_id": SOME,
        "host": "compute-1",
        "operation_id": SOME,
        "request_id": "req-1",
        "cause": "report",
        "actor": "compute-1",
        "roles": None,
        "asked_by": ASKER,
        "body": BODIES.get(topic, {}),
        **more,
    }


def refusal() -> ToldItem:
    row = {
        "request_id": f"req-{uuid4()}",
        "global_request_id": None,
        "refused_at": datetime.now(UTC),
        "method": "POST",
        "route": "fence",
        "status": 403,
        "code": "forbidden",
        "message": "Policy does not allow this.",
        "actor": "mallory",
        "user_id": None,
        "project_id": "p2",
        "address": "192.0.2.7",
        "agent": "curl/8.5",
        "left_out": 4,
    }
    return of_refusal(LOG, row)


EVERYTHING = [*(of_event(LOG, event(topic)) for topic in TOPICS), refusal()]


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_plain_json(form: str) -> None:
    for told in EVERYTHING:
        made = FORMS[form](LOG, told)
        assert json.loads(json.dumps(made)) == made


def test_cloudevents_agree_with_their_schema() -> None:
    schema = json.loads((PUBLISHED / "cloudevents-1.0.2.json").read_text())
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    for told in EVERYTHING:
        made = cloudevents(LOG, told)
        validator.validate(made)
        assert all(re.fullmatch("[a-z0-9]{1,20}", name) for name in made)
    with pytest.raises(jsonschema_rs.ValidationError):
        validator.validate({**made, "time": "yesterday"})


# --- OCSF ----------------------------------------------------------------------------------------

OCSF = json.loads((PUBLISHED / "ocsf-1.8.0.json").read_text())["classes"]
TYPES = {
    "integer_t": int,
    "long_t": int,
    "timestamp_t": int,
    "object": dict,
    "string_t": str,
    "hostname_t": str,
    "ip_t": str,
    "username_t": str,
}


def wrong(kind: str, made: dict[str, Any]) -> list[str]:
    """What an object of OCSF has that its definition does not allow, or lacks."""
    attributes = OCSF[kind]["attributes"]
    found = [f"{kind} lacks {n}" for n, a in attributes.items() if a["required"] and n not in made]
    one_of = OCSF[kind].get("constraints", {}).get("at_least_one")
    if one_of and not made.keys() & set(one_of):
        found.append(f"{kind} has none of {one_of}")
    for name, value in made.items():
        if name not in attributes:
            found.append(f"{kind} has no {name}")
            continue
        rule = attributes[name]
        assert isinstance(value, list) is bool(rule.get("array")), name
        for each in value if rule.get("array") else [value]:
            found += _wrong_value(f"{kind}.{name}", rule, each)
    return found


def _wrong_value(where: str, rule: dict[str, Any], value: Any) -> list[str]:
    if rule["type"] in OCSF:
        return wrong(rule["type"], value)
    if type(value) is not TYPES[rule["type"]]:
        return [f"{where} is {value!r}"]
    return [f"{where} is {value}"] if value not in rule.get("enum", [value]) else []


def test_ocsf_agrees_with_its_schema() -> None:
    for told in EVERYTHING:
        made = ocsf(LOG, told)
        assert wrong("api_activity", made) == []
        assert made["type_uid"] == made["class_uid"] * 100 + made["activity_id"]
    assert wrong("api_activity", {**made, "status_id": 7}) == ["api_activity.status_id is 7"]
    assert wrong("api_activity", {**made, "actor": {}})[0].startswith("actor has none of")


# --- CADF ----------------------------------------------------------------------------------------

ACTIONS = ("create", "read", "update", "delete")
RESOURCES = (
    *("storage/volume", "compute/machine", "compute/node", "data/workload/task"),
    *("service/storage/block", "service/security/account/user"),
)


def is_resource(made: dict[str, Any]) -> bool:
    return bool(made["id"]) and made["typeURI"].startswith(RESOURCES)


def test_cadf_has_what_its_specification_demands() -> None:
    for told in EVERYTHING:
        made = cadf(LOG, told)
        assert made["typeURI"] == "http://schemas.dmtf.org/cloud/audit/1.0/event"
        assert made["eventType"] in {"activity", "monitor", "control"}
        UUID(made["id"])
        datetime.strptime(made["eventTime"], "%Y-%m-%dT%H:%M:%S.%f%z")
        assert made["action"].partition("/")[0] in ACTIONS
        assert made["outcome"] in {"success", "failure", "pending", "unknown"}
        assert all(is_resource(made[name]) for name in ("initiator", "target", "observer"))
        assert made.get("reason", {"reasonType": "x", "reasonCode": "y"}).keys() == {
            "reasonType",
            "reasonCode",
        }
        assert all(each.keys() == {"typeURI", "name", "content"} for each in made["attachments"])


# --- what is told --------------------------------------------------------------------------------


def test_who_asked_is_told_and_not_who_delivered() -> None:
    told = of_event(LOG, event("Attachment.Connected"))
    assert cadf(LOG, told)["initiator"]["id"] == "u1"
    assert ocsf(LOG, told)["actor"]["user"] == {"name": "ada", "uid": "u1"}
    assert ocsf(LOG, told)["src_endpoint"] == {"hostname": "compute-1"}
    alone = of_event(LOG, event("Attachment.Connected", asked_by=None))
    assert cadf(LOG, alone)["initiator"]["name"] == "compute-1"


@pytest.mark.parametrize(
    ("topic", "body", "action", "outcome", "severity"),
    [
        ("Operation.OperationStarted", {}, "create", "pending", 1),
        ("Attachment.AttachmentCreated", {}, "create", "success", 1),
        ("Attachment.Connected", {}, "update", "success", 1),
        ("Attachment.Deleted", {}, "delete", "success", 1),
        ("Operation.StepFailed", {}, "update", "failure", 2),
        ("Operation.Parked", {}, "update", "failure", 3),
        ("Operation.OperationFinished", {"outcome": "completed"}, "update", "success", 1),
        ("Operation.OperationFinished", {"outcome": "cancelled"}, "update", "failure", 2),
    ],
)
def test_how_it_ended(
    topic: str, body: dict[str, Any], action: str, outcome: str, severity: int
) -> None:
    told = of_event(LOG, event(topic, body={**BODIES[topic], **body}))
    made = cadf(LOG, told)
    assert (made["action"], made["outcome"]) == (f"{action}/{topic}", outcome)
    assert ocsf(LOG, told)["severity_id"] == severity


def test_an_id_is_the_same_each_time_and_another_in_a_log_that_was_restored() -> None:
    first, again = (of_event(LOG, event("Attachment.Connected")) for _ in range(2))
    later = of_event(LOG, event("Attachment.Connected", recorded_at="2026-11-28T05:00:00Z"))
    assert first.id == again.id != later.id
    assert len({told.id for told in EVERYTHING}) == 2, "of one position and time, and a refusal"


def test_a_refused_request_is_a_failure_with_its_status() -> None:
    told = refusal()
    assert told.topic == REFUSED
    assert cadf(LOG, told)["reason"] == {"reasonType": "HTTP", "reasonCode": "403"}
    assert ocsf(LOG, told)["status_code"] == "403"
    assert "position" not in cloudevents(LOG, told)
