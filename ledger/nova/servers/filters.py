"""What a list of servers is asked for, by Nova's query parameters.

`parameters_nova.SERVERS` says which there are and has been checked; each that is not refused has
its reader here (a test holds that), so none is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from multidict import MultiMapping

from ledger.http import microversions
from ledger.http.call import Call, canonical
from ledger.http.parameters import boolean, invalid, moment, period, reserved
from ledger.http.problem import ApiError
from ledger.nova import flavors
from ledger.nova.parameters_nova import SERVERS
from ledger.nova.servers import state as server_state
from ledger.words import sizes
from projections.reads.server_lists import PATTERNS, SORT_KEYS, Order, ServerFilter, Words

PATTERN_CHARS_MAX = 255
#: Behind a backslash that is none itself.
_BACK_REFERENCE = re.compile(r"(?<!\\)(?:\\\\)*\\[1-9]")

WORDS = Words(tasks=server_state.TASK_OF_FLOW, powers=server_state.POWER_STATE)

#: Of `ServerFilter`; None: no server can fit.
Fields = dict[str, Any] | None
Reader = Callable[[Call, str, str], Fields]

#: Read together: by `order`, `_scope`, and ledger.http's `paging` and `parameters`.
READ_ELSEWHERE = frozenset(
    {"limit", "marker", "sort_key", "sort_dir", "all_tenants", "changes-since", "changes-before"}
)

_REFUSED = frozenset(each.name for each in SERVERS if each.refused)
_NOTHING: Fields = None


def only_novas(query: MultiMapping[str]) -> bool:
    """Whether it filters or sorts by what the ledger's servers do not have."""
    keys = {text.strip() for text in query.getall("sort_key", [])}
    return not (_REFUSED.isdisjoint(query) and keys <= SORT_KEYS | {"node"})


def listed(call: Call) -> ServerFilter | None:
    """What is asked for; None if no server can be that.  Raises ApiError 400, 403."""
    query = call.request.query
    since, before = period(query)
    fields: dict[str, Any] = dict(_scope(call))
    for name in dict.fromkeys(query):
        if name in READ_ELSEWHERE:
            continue
        read = _READERS[name](call, name, query[name])
        if read is None or any(fields.get(key, value) != value for key, value in read.items()):
            return None
        fields |= read
    if "deleted" not in fields and (since or before):
        fields["deleted"] = None  # Nova shows then what is gone, too
    return ServerFilter(**fields, since=since, before=before)


def order(call: Call) -> Order:
    """The order that is asked for; it ends with the ids.  Raises ApiError 400, 403.

    As oslo.db's process_sort_params: directions that are missing are the first one.
    """
    query = call.request.query
    keys = [_sort_key(call, text.strip()) for text in query.getall("sort_key", [])]
    descending = [_is_descending(text.strip()) for text in query.getall("sort_dir", [])]
    keys, descending = keys or ["created_at"], descending or [True]
    if len(descending) > len(keys):
        raise ApiError(400, "invalid", "Sort direction size exceeds sort key size.")
    descending += [descending[0]] * (len(keys) - len(descending))
    wanted: dict[str, bool] = {}
    for key, down in zip(keys, descending, strict=True):
        wanted.setdefault(key, down)
    for key in _LAST_KEYS:
        wanted.setdefault(key, descending[0])
    return tuple(wanted.items())


_LAST_KEYS = ("created_at", "uuid")


def _sort_key(call: Call, name: str) -> str:
    if name in {"host", "node"}:
        if not call.identity.everywhere:
            message = f"Only administrators can sort servers by {name}"
            raise ApiError(403, "forbidden", message)
        return "host"
    if name not in SORT_KEYS:
        raise invalid("sort_key", name, "Servers cannot be sorted by this key.")
    return name


def _is_descending(text: str) -> bool:
    if text not in {"asc", "desc"}:
        raise invalid("sort_dir", text, "Unknown sort direction, must be 'desc' or 'asc'.")
    return text == "desc"


# ------------------------------------------------------------------------- whose servers


def _scope(call: Call) -> Mapping[str, Any]:
    """The project to list, if it is not all: what is asked for, within what may be seen."""
    query, identity = call.request.query, call.identity
    text = query.get("all_tenants", "false")
    everything = boolean("all_tenants", text or "true")  # an empty one means yes
    if everything:
        call.under(f"{call.rules[0]}:get_all_tenants")
        return {}
    own = identity.actor.project_id if identity.everywhere else identity.project_scope
    for name in ("project_id", "tenant_id"):
        if own is not None and query.get(name, own) != own:
            raise _another_project(call, name)
    return {} if own is None else {"project_id": own}


def _another_project(call: Call, name: str) -> ApiError:
    if not call.identity.everywhere:
        return reserved(name)
    return invalid(
        name, call.request.query[name], "To list another project's servers, use all_tenants."
    )


# ------------------------------------------------------------------------------- readers


def _exactly(field: str) -> Reader:
    return lambda _call, _name, text: {field: text}


def _pattern(call: Call, name: str, text: str) -> Fields:
    del call
    if len(text) > PATTERN_CHARS_MAX:
        raise invalid(name, text, f"A pattern has at most {PATTERN_CHARS_MAX} characters.")
    if _BACK_REFERENCE.search(text):
        raise invalid(name, text, "Patterns with back references are not supported.")
    return {name: text}


def _status(call: Call, name: str, text: str) -> Fields:
    del text
    pairs = server_state.states_of(call.request.query.getall(name))
    if not pairs:
        if call.version >= microversions.STATUS_CHECKED:
            raise ApiError(400, "invalid", "Invalid status value")
        return _NOTHING
    gone = {vm_state for vm_state, _ in pairs} == {"deleted"}
    return {"states": pairs, **(_deleted(call, "status", "true") or {} if gone else {})}


def _deleted(call: Call, name: str, text: str) -> Fields:
    gone = boolean(name, text) if name == "deleted" else True
    if gone and not call.identity.everywhere:
        raise ApiError(403, "forbidden", "Only administrators may list deleted instances")
    return {"deleted": gone}


def _uuid(call: Call, name: str, text: str) -> Fields:
    del call, name
    known = canonical(text)
    return {"uuid": known} if known else _NOTHING


def _flavor(call: Call, name: str, text: str) -> Fields:
    del name
    known = call.components.settings.flavors
    size = (0, 0) if text == sizes.NO_FLAVOR else flavors.size_of(known, text)
    return {"vcpus": size[0], "memory_mb": size[1]} if size else _NOTHING


def _power_state(call: Call, name: str, text: str) -> Fields:
    del call
    if not re.fullmatch(r"\d{1,2}", text, re.ASCII):
        raise invalid(name, text, "It must be a number, such as 1 (running).")
    return {"power_state": int(text)}


def _zone(call: Call, name: str, text: str) -> Fields:
    del call, name
    return {server_state.ZONE: {"placed": True}, "": {"placed": False}}.get(text)


def _locked(call: Call, name: str, text: str) -> Fields:
    del call
    return {"locked": boolean(name, text)}


def _tags(call: Call, name: str, text: str) -> Fields:
    """With commas between them, as Nova has them; no tag has one."""
    del call
    return {name.replace("-", "_"): text.split(",")}


_READERS: dict[str, Reader] = {
    **dict.fromkeys(PATTERNS, _pattern),
    "status": _status,
    "vm_state": _exactly("vm_state"),
    "task_state": _exactly("task_state"),
    "power_state": _power_state,
    "flavor": _flavor,
    "uuid": _uuid,
    "user_id": _exactly("user_id"),
    "created_at": lambda _, name, text: {"created_at": moment(name, text)},
    "deleted": _deleted,
    "availability_zone": _zone,
    "host": _exactly("host"),
    "node": _exactly("host"),
    "project_id": _exactly("project_id"),
    "tenant_id": _exactly("project_id"),
    "locked": _locked,
    **dict.fromkeys(("tags", "tags-any", "not-tags", "not-tags-any"), _tags),
}
READ_HERE = frozenset(_READERS)
