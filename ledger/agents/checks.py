"""Checks what agents send before it is stored.

The types of the contract read it and enforce its limits (`host_agent.shared`).  Here are the rules
that a type cannot express: duplicates, impossible values, and texts, which are made printable and
cut, not refused.  Of a report's outputs only the facts that the contract names reach the log, so no
secret can (decision 0025).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import structlog

from host_agent.shared.contract.changes import Changes
from host_agent.shared.contract.definition import is_readable
from host_agent.shared.contract.messages import (
    AGENT_HEADER,
    CONNECTOR_KEYS,
    TOLD_HEADER,
    Guest,
    Occurred,
    Registration,
    Report,
    StepError,
    StepResult,
)
from host_agent.shared.contract.outputs import Outputs
from host_agent.shared.contract.survey import (
    ITEMS_MAX,
    TEXT_CHARS_MAX,
    DiskShown,
    GuestShown,
    Survey,
    disks_of,
)
from host_agent.shared.contract.wire import WireError, read
from host_agent.shared.platform.clocks import SKEW_MAX_S
from host_agent.shared.platform.masking import clean_message, mask
from host_agent.shared.platform.text import one_line

DEFINITION_CHARS_MAX = 64 * 1024
#: A century: clocks that start in 1970 are wrong by half of it.
CLOCK_AHEAD_S_MAX = 100 * 365.25 * 86_400
SECONDS_MAX = 1e11  # since the epoch; the year 5138

_AGENT = re.compile(r"[0-9a-f]{32}\Z")
_TOLD = re.compile(r"([0-9]{1,10}) ([0-9]{1,18})\Z")

_log = structlog.get_logger(__name__)


def checked_registration(registration: Registration) -> Registration:
    """The registration in the form that may be stored.  Raises WireError."""
    guests = tuple(map(_guest, registration.guests))
    _require_once((guest.server_id for guest in guests), "guests")
    told = registration.connector
    connector = None if told is None else {key: told[key] for key in CONNECTOR_KEYS if key in told}
    return replace(registration, guests=guests, connector=connector)


def checked_changes(changes: Changes) -> Changes:
    """The changes in the form that may be stored.  Raises WireError."""
    guests = tuple(map(_guest, changes.guests))
    _require_once((*(guest.server_id for guest in guests), *changes.gone), "guests")
    return replace(changes, guests=guests)


def checked_agent(text: str | None) -> str | None:
    """The agent's identification of itself; None: not given.  Raises WireError."""
    _require(text is None or bool(_AGENT.match(text)), AGENT_HEADER)
    return text


def checked_told(text: str | None) -> tuple[int, int] | None:
    """The epoch and position that it was told last; None: not given.  Raises WireError."""
    found = None if text is None else _TOLD.match(text)
    _require(text is None or found is not None, TOLD_HEADER)
    return None if found is None else (int(found[1]), int(found[2]))


def _guest(guest: Guest) -> Guest:
    definition = guest.definition
    if definition is not None and not _is_definition(definition):
        # One guest that cannot be moved must not keep its host away.
        _log.warning("definition_dropped", server=guest.server_id)
        definition = None
    return replace(guest, name=one_line(guest.name), definition=definition)


def _is_definition(text: str) -> bool:
    """Domain XML as libvirt writes it."""
    return len(text) <= DEFINITION_CHARS_MAX and text.startswith("<domain") and is_readable(text)


def clock_ahead(text: str | None) -> float | None:
    """How far the agent says that its host's clock is ahead; None: no possible value."""
    try:
        ahead_s = float(text or "nan")
    except ValueError:
        return None
    return ahead_s if abs(ahead_s) <= CLOCK_AHEAD_S_MAX else None


def checked_report(report: Report, now: float) -> Report:
    """The report with known facts only; times that it gives for the past are not after `now`.

    Raises WireError.
    """
    return replace(
        report,
        results=tuple(_result(result, now) for result in report.results),
        guest=report.guest and _guest(report.guest),
    )


def _result(result: StepResult, now: float) -> StepResult:
    facts = read(result.outputs, Outputs)
    return replace(
        result,
        outputs={name: value for name, value in facts.items() if value is not None},
        error=result.error and _error(result.error),
        occurred=result.occurred and _occurred(result.occurred, now),
    )


def _occurred(occurred: Occurred, now: float) -> Occurred | None:
    """The time that the agent gives, if it is possible: it is stored, and no decision uses it."""
    at, offset_s, error_s = occurred.at, occurred.offset_s, occurred.error_s
    finite = all(abs(number) <= SECONDS_MAX for number in (at, offset_s, error_s))
    if finite and error_s >= 0 and 0 < at - offset_s <= now + error_s + SKEW_MAX_S:
        return occurred
    _log.warning("occurred_dropped", at=at, offset_s=offset_s, error_s=error_s)
    return None


def _error(error: StepError) -> StepError:
    """Agents mask secrets; this masks again.  A long text is cut, not refused."""
    return replace(error, message=clean_message(error.message))


def checked_survey(survey: Survey) -> Survey:
    """Sorted by ids and names, without duplicates.  Raises WireError."""
    _require(len(set(survey.blind)) == len(survey.blind) == len(survey.why_blind), "blind")
    if sum(map(disks_of, survey.guests)) > ITEMS_MAX:
        raise WireError(f"'guests' have more than {ITEMS_MAX} disks")
    storage = (replace(each, name=_text(each.name)) for each in survey.storage)
    return replace(
        survey,
        guests=_once(map(_guest_shown, survey.guests), lambda guest: guest.server_id, "guests"),
        connections=_once(survey.connections, lambda each: each.attachment_id, "connections"),
        storage=_once(storage, lambda each: (each.kind, each.name), "storage"),
        secrets=_once(survey.secrets, str, "secrets"),
        why_blind=tuple(map(_text, survey.why_blind)),
    )


def _guest_shown(guest: GuestShown) -> GuestShown:
    others = guest.unlabelled
    if others is not None:
        shown = (replace(disk, source=_text(disk.source)) for disk in others)
        others = _once(shown, lambda disk: disk.target, "unlabelled")
    disks = _once(map(_disk_shown, guest.disks), lambda disk: disk.serial, "disks")
    return replace(guest, disks=disks, unlabelled=others)


def _disk_shown(disk: DiskShown) -> DiskShown:
    return disk if disk.source is None else replace(disk, source=_text(disk.source))


def _once(items: Iterable[Any], key: Callable[[Any], Any], name: str) -> tuple[Any, ...]:
    found = sorted(items, key=key)
    _require_once(map(key, found), name)
    return tuple(found)


def _text(text: str) -> str:
    """Agents mask secrets; this masks again."""
    return one_line(mask(text))[:TEXT_CHARS_MAX]


def _require_once(keys: Iterable[Any], name: str) -> None:
    """Raises WireError for duplicates."""
    found = tuple(keys)
    _require(len(set(found)) == len(found), name)


def _require(holds: bool, name: str) -> None:
    """Raises WireError with this text."""
    if not holds:
        raise WireError(f"{name!r} is not as the contract has it")
