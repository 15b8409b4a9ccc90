"""What is kept from users of a project: which hypervisors run their servers, and how.

Names of hosts, addresses of storage, paths and definitions help whoever wants to get from a
guest to its host.  Operators see everything.  Of an event's body users see the fields that are
named here, so that a new field is hidden until somebody decides otherwise; of an error its
code, and Cinder's refusals in Cinder's words, for these are theirs to mend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aggregates.errors import DomainError
from handlers.engine.plan import Place
from ledger.auth.tokens import Identity

Row = dict[str, Any]

#: What stands in a text for a name that is kept back.
HIDDEN = "(hidden)"

#: Fields of events' bodies that users see.
SHOWN = frozenset(
    {
        *("server_id", "volume_id", "attachment_id", "bdm_id", "claimant", "exclusive", "flow"),
        *("seen", "vm_state"),
        # Of before the first look; Nova tells the same to who reads the server in its project.
        *("actions", "back_to", "whole", "created_at", "deleted_at", "read_at", "revision"),
        *("metadata", "tags", "description"),
        *("name", "power_state", "devices", "device_name", "bus", "tag", "boot_index", "serial"),
        *("delete_on_termination", "multiattach", "adopted", "legacy", "shared", "kept"),
        *("run", "lane", "step", "steps", "undo", "took_ms", "retry_at", "further", "left"),
        *("outcome", "error", "request_id", "global_request_id"),
        *("former_volume_id", "renamed_to", "converted_to", "access_mode"),
        *("drift_class", "severity", "subject", "look_id", "repair", "by_operation", "until"),
    }
)
#: Codes of errors whose message is Cinder's, or this service's own about the request.
_SHOWN = frozenset({"refused", "not_found", "forbidden", "cancelled"})
#: Fields of refusals that name hosts; signs (handlers.results.presence) also others' servers.
_PLACED = frozenset({"host", "signs"})
_SENDER = dict.fromkeys(("address", "agent"))
_HOSTS = dict.fromkeys(("host", "destination"))
_PLACES = frozenset(Place)


def redacted(identity: Identity, redact: Callable[[Row], Row], row: Row) -> Row:
    """The row, as far as the caller may see it."""
    return row if identity.everywhere else redact(row)


def attachment(row: Row) -> Row:
    """An attachment without its place, and what differs: others may have the volume, too."""
    return {**row, **dict.fromkeys(("host", "device_path", "target_digest", "open_drift"))}


def operation(row: Row) -> Row:
    """An operation without its hosts; of its steps, in what kind of place they are done."""
    return {
        **row,
        **_HOSTS,
        "error": error(row["error"]),
        "left_steps": [_with_error(left) for left in row["left_steps"] or ()] or None,
        "steps": [{**_with_error(step), "place": _place(step)} for step in row.get("steps", ())],
    }


def finding(row: Row) -> Row:
    """What differs, without where, and without what the parties say of it."""
    return {
        **row,
        **dict.fromkeys(("host", "differs", "boot_id", "epoch", "ignored_reason")),
    }


def event(row: Row) -> Row:
    """An event without its host, with those fields of its body that users see, and who asked
    without where he sits: it may be an operator.
    """
    body = {name: value for name, value in row["body"].items() if name in SHOWN}
    if "left" in body:
        body["left"] = [_with_error(left) for left in body["left"]]
    body = _with_error(body) if "error" in body else body
    asked_by = row["asked_by"] and {**row["asked_by"], **_SENDER}
    return {**row, "host": None, "body": body, "asked_by": asked_by}


def error(stored: Row | None) -> Row | None:
    """An error by its code; its message only where that cannot name a host."""
    if stored is None or stored["code"] in _SHOWN:
        return stored
    return {**stored, "message": f"It failed ({stored['code']}); an operator can read the reason."}


def fault(message: str, identity: Identity) -> str:
    """Why a server is in ERROR."""
    return message if identity.everywhere else "An operation waits for an operator."


def refusal(refused: DomainError, identity: Identity | None) -> str:
    """Why a request was refused.  An agent may know its own host."""
    kept = dict.fromkeys(_PLACED & refused.fields.keys(), HIDDEN)
    own = identity and identity.host and identity.host == refused.fields.get("host")
    if not kept or (identity and (identity.everywhere or own)):
        return str(refused)
    return str(type(refused)(**{**refused.fields, **kept}))


def _with_error(row: Row) -> Row:
    return {**row, "error": error(row.get("error"))}


def _place(step: Row) -> str:
    return step["place"] if step["place"] in _PLACES else Place.HOST
