"""The forms in which others read what happened.  Pure.

CADF: DMTF DSP0262 1.0.0, as OpenStack's services send it (pycadf).  CloudEvents: 1.0.2, JSON, as
/v1/events has it.  OCSF: 1.8.0, class API Activity (6003) of the category Application Activity.
Each has the whole event in it, too.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any
from uuid import UUID

from ledger.forward.told import CadfAction, CadfOutcome, ToldItem
from ledger.native.log.cloud_events import TYPE_PREFIX, cloud_event
from ledger.native.log.schemas_events import EventShown

Form = Callable[[UUID, ToldItem], dict[str, Any]]

NAME = "attachment-ledger"
_CADF = "http://schemas.dmtf.org/cloud/audit/1.0/"
_CADF_TYPES = {
    "Volume": "storage/volume",
    "Attachment": "storage/volume/attachment",
    "BlockDeviceMapping": "storage/volume/mapping",
    "Instance": "compute/machine",
    "Host": "compute/node",
}
OCSF_VERSION = "1.8.0"
_OCSF_CLASS = 6003
_OCSF_ACTIVITIES = {CadfAction.CREATE: 1, CadfAction.UPDATE: 3, CadfAction.DELETE: 4}
#: `status_id` 99 is Other: `status` says what, then.
_OCSF_STATUS = {
    CadfOutcome.SUCCESS: (1, "Success"),
    CadfOutcome.FAILURE: (2, "Failure"),
    CadfOutcome.PENDING: (99, "Pending"),
}
_INFORMATIONAL, _LOW, _MEDIUM = 1, 2, 3


def cadf(log: UUID, told: ToldItem) -> dict[str, Any]:
    """The outcome of what is only begun is `pending`."""
    reason = {"reasonType": "HTTP" if told.position is None else NAME, "reasonCode": told.code}
    return {
        "typeURI": f"{_CADF}event",
        "eventType": "activity",
        "id": str(told.id),
        "eventTime": told.at.strftime("%Y-%m-%dT%H:%M:%S.%f%z"),
        "action": f"{told.action}/{told.topic}",
        "outcome": told.ending,
        "name": told.what,
        **({"reason": reason} if told.code else {}),
        "initiator": {
            "id": told.user_id or told.by,
            "typeURI": "service/security/account/user",
            "name": told.by,
            **_known(project_id=told.project_id, request_id=told.request_id),
            **_filled(host=_known(address=told.address, agent=told.agent)),
        },
        "target": {
            "id": told.thing_id,
            "typeURI": _CADF_TYPES.get(told.thing, "data/workload/task"),
            "name": told.thing,
            **({"host": {"id": told.host}} if told.host else {}),
        },
        "observer": {"id": str(log), "typeURI": "service/storage/block", "name": NAME},
        "attachments": [{"typeURI": "application/json", "name": "event", "content": told.data}],
    }


def cloudevents(log: UUID, told: ToldItem) -> dict[str, Any]:
    """A refused request has no `position`."""
    if told.position is not None:
        shown: dict[str, Any] = cloud_event(log, EventShown.model_validate(told.data)).model_dump(
            mode="json"
        )
        return shown
    return {
        "specversion": "1.0",
        "id": str(told.id),
        "source": f"urn:uuid:{log}",
        "type": TYPE_PREFIX + told.topic,
        "subject": f"requests/{told.thing_id}",
        "time": told.at.isoformat(),
        "datacontenttype": "application/json",
        "data": told.data,
    }


def ocsf(log: UUID, told: ToldItem) -> dict[str, Any]:
    """What has no place of its own is in `unmapped`, by the names of /v1."""
    activity, (status_id, status) = _OCSF_ACTIVITIES[told.action], _OCSF_STATUS[told.ending]
    return {
        "category_uid": 6,
        "class_uid": _OCSF_CLASS,
        "activity_id": activity,
        "type_uid": _OCSF_CLASS * 100 + activity,
        "severity_id": _severity(told),
        "status_id": status_id,
        "status": status,
        **_known(status_code=told.code),
        "time": round(told.at.timestamp() * 1000),
        "message": told.what,
        "metadata": _metadata(log, told),
        "actor": {"user": _known(name=told.by, uid=told.user_id)},
        "api": {
            "operation": told.topic,
            "service": {"name": NAME},
            **({"request": {"uid": told.request_id}} if told.request_id else {}),
        },
        "src_endpoint": _known(ip=told.address) or _known(hostname=told.host) or {"svc_name": NAME},
        **_filled(http_request=_known(user_agent=told.agent)),
        "resources": [{"uid": told.thing_id, "type": told.thing}],
        "unmapped": told.data,
    }


def _metadata(log: UUID, told: ToldItem) -> dict[str, Any]:
    return {
        "version": OCSF_VERSION,
        "product": {"name": NAME, "vendor_name": NAME, "version": version(NAME)},
        "uid": str(told.id),
        "log_name": str(log),
        **_known(correlation_uid=told.operation_id, tenant_uid=told.project_id),
    }


def _severity(told: ToldItem) -> int:
    if told.needs_somebody:
        return _MEDIUM
    return _LOW if told.ending is CadfOutcome.FAILURE else _INFORMATIONAL


def _known(**named: str | None) -> dict[str, str]:
    return {name: value for name, value in named.items() if value is not None}


def _filled(**named: dict[str, str]) -> dict[str, dict[str, str]]:
    return {name: value for name, value in named.items() if value}


FORMS: dict[str, Form] = {"cadf": cadf, "cloudevents": cloudevents, "ocsf": ocsf}
