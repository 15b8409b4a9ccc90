"""What agents say, checked before it is used: ids, sizes, the outputs the contract names.

Nothing else of a report reaches the log, so that no secret can (decision 0025).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import structlog

from host_agent.shared.changes import Changes
from host_agent.shared.clocks import SKEW_MAX_S
from host_agent.shared.contract import (
    AGENT_HEADER,
    CONNECTOR_KEYS,
    MIGRATION_URI,
    Guest,
    Occurred,
    PowerState,
    Registration,
    Report,
    StepError,
    StepResult,
)
from host_agent.shared.definition import is_readable
from host_agent.shared.masking import mask
from host_agent.shared.text import one_line
from host_agent.shared.wire import WireError
from ledger.api.call import canonical

GUESTS_MAX = 10_000
CONNECTIONS_MAX = 100_000
DEFINITION_CHARS_MAX = 64 * 1024
DEVICES_MAX = 1_000
CAPABILITIES_MAX = 64
ENDED_MAX = 1_000
#: Of each list in what a host has of one volume and one server.
SHOWN_MAX = 1_000
MESSAGE_CHARS_MAX = 1_000
NUMBER_MAX = 2**31 - 1

NAME_CHARS_MAX = 255
#: A century: clocks that start in 1970 are wrong by half of it.
CLOCK_AHEAD_S_MAX = 100 * 365.25 * 86_400
SECONDS_MAX = 1e11  # since the epoch; the year 5138
_WORD = re.compile(r"[A-Za-z0-9][\w.:-]{0,63}\Z", re.ASCII)

#: What a report's outputs may say (contract.Report); all else is dropped.
_OUTPUTS = {
    "driver": re.compile(r"[\w.+-]{1,64}\Z", re.ASCII),
    "target_digest": re.compile(r"[\w:.+/=-]{1,128}\Z", re.ASCII),
    "device_path": re.compile(r"[\w:.+/@=,-]{1,512}\Z", re.ASCII),
    "device_name": re.compile(r"[a-z0-9]{1,32}\Z", re.ASCII),
    "connector_host": re.compile(r"[\w.-]{1,255}\Z", re.ASCII),
    "access_mode": re.compile(r"r[ow]\Z"),
    "bus": re.compile(r"[a-z0-9]{1,16}\Z", re.ASCII),
}
_FLAGS = frozenset({"shared", "passed"})
#: A fact about a disk in which two copies may differ (disk_xml.DiskSeen.facts).
_FACT = re.compile(r"[\w .-]{1,64}\Z", re.ASCII)
#: Where a disk's data is, as a host sees it (ports.Disk.source and how to read it): these
#: keys, and none that could hold a secret; cephx's and LUKS's are only named.
_DISK_TEXT = re.compile(r"[\w:.+/@=,\[\]-]{0,512}\Z", re.ASCII)
_DISK_KEYS = frozenset({"type", "path", "protocol", "name", "format"})
_DISK_FLAGS = frozenset({"discard", "readonly"})
_DISK_SECRETS = {"auth": ("user", "secret_uuid"), "encryption": ("format", "secret_uuid")}
_HOSTS_OF_A_DISK_MAX = 64
#: To receive live migrations: where libvirt is, and where memory is sent.
_MIGRATION_KEYS = frozenset({"uri", "address"})
_ADDRESS = re.compile(r"([A-Za-z0-9][\w.:-]{0,254}|\[[0-9A-Fa-f:.]{1,45}\])?\Z", re.ASCII)
_CONNECTOR_TEXT = re.compile(r"[A-Za-z0-9][\w.:-]{0,254}\Z", re.ASCII)
_AGENT = re.compile(r"[0-9a-f]{32}\Z")

_log = structlog.get_logger(__name__)


def checked_registration(registration: Registration) -> Registration:
    """The registration in canonical form.  Raises WireError."""
    require(0 <= registration.service_version <= NUMBER_MAX, "service_version")
    require(len(registration.capabilities) <= CAPABILITIES_MAX, "capabilities")
    for name, value in registration.capabilities.items():
        if name == "migration":
            _check_migration(value)
            continue
        listed = isinstance(value, list) and len(value) <= CAPABILITIES_MAX
        words = listed and all(isinstance(word, str) and _WORD.match(word) for word in value)
        require(bool(_WORD.match(name)) and (isinstance(value, bool) or words), "capabilities")
    require(len(registration.guests) <= GUESTS_MAX, "guests")
    guests = tuple(_checked_guest(guest) for guest in registration.guests)
    require(len({guest.server_id for guest in guests}) == len(guests), "guests")
    require(len(registration.connections) <= CONNECTIONS_MAX, "connections")
    connections = tuple(
        canonical_id(connection, "connections") for connection in registration.connections
    )
    connector = _checked_connector(registration.connector)
    return replace(registration, guests=guests, connections=connections, connector=connector)


def checked_changes(changes: Changes) -> Changes:
    """The changes in canonical form.  Raises WireError."""
    require(0 <= changes.epoch <= NUMBER_MAX, "epoch")
    require(len(changes.guests) <= GUESTS_MAX, "guests")
    require(len(changes.gone) <= GUESTS_MAX, "gone")
    require(all(isinstance(server_id, str) for server_id in changes.gone), "gone")
    guests = tuple(map(_checked_guest, changes.guests))
    gone = tuple(canonical_id(server_id, "gone") for server_id in changes.gone)
    require(len({*(guest.server_id for guest in guests), *gone}) == len(guests + gone), "guests")
    return replace(changes, guests=guests, gone=gone)


def _check_migration(value: Any) -> None:
    require(isinstance(value, dict) and set(value) == _MIGRATION_KEYS, "migration")
    uri, address = value["uri"], value["address"]
    require(isinstance(uri, str) and bool(MIGRATION_URI.match(uri)), "migration")
    require(isinstance(address, str) and bool(_ADDRESS.match(address)), "migration")


def _checked_connector(connector: dict[str, Any] | None) -> dict[str, str] | None:
    """What storage knows the host by; what else os-brick says of it is of no use here."""
    if connector is None:
        return None
    checked = {name: connector[name] for name in CONNECTOR_KEYS if connector.get(name)}
    require(
        all(isinstance(v, str) and _CONNECTOR_TEXT.match(v) for v in checked.values()), "connector"
    )
    return checked


def checked_agent(text: str | None) -> str | None:
    """Which agent it says that it is; None: it does not say.  Raises WireError."""
    require(text is None or bool(_AGENT.match(text)), AGENT_HEADER)
    return text


def _checked_guest(guest: Guest) -> Guest:
    require(len(guest.name) <= NAME_CHARS_MAX, "name")
    require(len(guest.devices) <= DEVICES_MAX, "devices")
    require(all(_WORD.match(device) for device in guest.devices), "devices")
    require(len(guest.volumes) <= DEVICES_MAX, "volumes")
    for name, value in (("project_id", guest.project_id), ("user_id", guest.user_id)):
        require(value is None or bool(_WORD.match(value)), name)
    definition = guest.definition
    if definition is not None and not _is_definition(definition):
        # One guest that cannot be moved must not keep its host away.
        _log.warning("definition_dropped", server=guest.server_id)
        definition = None
    return replace(
        guest,
        server_id=canonical_id(guest.server_id, "server_id"),
        name=one_line(guest.name),
        volumes=tuple(canonical_id(volume_id, "volumes") for volume_id in guest.volumes),
        definition=definition,
    )


def _is_definition(text: str) -> bool:
    """Domain XML as libvirt writes it."""
    return len(text) <= DEFINITION_CHARS_MAX and text.startswith("<domain") and is_readable(text)


def clock_ahead(text: str | None) -> float | None:
    """By how much an agent says its host's clock is ahead; None: nothing that could be."""
    try:
        ahead_s = float(text or "nan")
    except ValueError:
        return None
    return ahead_s if abs(ahead_s) <= CLOCK_AHEAD_S_MAX else None


def checked_report(report: Report, now: float) -> Report:
    """The report in canonical form, with known facts only; what its agent says of the past has
    happened by `now`.  Raises WireError.
    """
    for name, number in (("run", report.run), ("epoch", report.epoch)):
        require((name == "run") <= number <= NUMBER_MAX, name)
    return replace(
        report,
        operation_id=canonical_id(report.operation_id, "operation_id"),
        results=tuple(_checked_result(result, now) for result in report.results),
    )


def _checked_occurred(occurred: Occurred | None, now: float) -> Occurred | None:
    """When the agent says that it was, if it can have been then: it is kept, and believed by
    nobody.
    """
    if occurred is None:
        return None
    at, offset_s, error_s = occurred.at, occurred.offset_s, occurred.error_s
    finite = all(abs(number) <= SECONDS_MAX for number in (at, offset_s, error_s))
    if finite and error_s >= 0 and 0 < at - offset_s <= now + error_s + SKEW_MAX_S:
        return occurred
    _log.warning("occurred_dropped", at=at, offset_s=offset_s, error_s=error_s)
    return None


def _checked_result(result: StepResult, now: float) -> StepResult:
    require(0 <= result.took_ms <= NUMBER_MAX, "took_ms")
    require(bool(_WORD.match(result.step)), "step")
    return replace(
        result,
        outputs=_checked_outputs(result.outputs),
        error=_checked_error(result.error) if result.error else None,
        occurred=_checked_occurred(result.occurred, now),
    )


def _checked_outputs(outputs: dict[str, Any]) -> dict[str, Any]:
    """Known facts in their known form; unknown ones are a newer agent's, and dropped."""
    facts: dict[str, Any] = {}
    for name, value in outputs.items():
        if name in _FLAGS:
            require(isinstance(value, bool), name)
            facts[name] = value
        elif name in _OUTPUTS and value is not None:
            require(isinstance(value, str) and bool(_OUTPUTS[name].match(value)), name)
            facts[name] = value
    if outputs.get("attachment_id") is not None:
        facts["attachment_id"] = canonical_id(outputs["attachment_id"], "attachment_id")
    if outputs.get("power_state") is not None:
        require(outputs["power_state"] in set(PowerState), "power_state")
        facts["power_state"] = outputs["power_state"]
    if outputs.get("ended"):
        ended = outputs["ended"]
        require(isinstance(ended, dict) and len(ended) <= ENDED_MAX, "ended")
        facts["ended"] = {
            canonical_id(a, "ended"): canonical_id(str(v), "ended") for a, v in ended.items()
        }
    if outputs.get("disk") is not None:
        facts["disk"] = _checked_disk(outputs["disk"])
    if outputs.get("shown") is not None:
        facts["shown"] = _checked_shown(outputs["shown"])
    return facts


def _checked_shown(shown: Any) -> dict[str, Any]:
    """What a host says that it has (verbs.drift.drift_look): a repair may delete by it."""
    require(isinstance(shown, dict), "shown")
    power, records = shown.get("power_state"), shown.get("records")
    require(power is None or power in set(PowerState), "shown")
    require(isinstance(records, dict) and len(records) <= SHOWN_MAX, "shown")
    facts: dict[str, Any] = {"power_state": power}
    for name in ("live", "persistent"):
        known = shown.get(name)
        require(known is None or bool(_OUTPUTS["device_name"].match(str(known))), "shown")
        facts[name] = known
    for name in ("readonly_live", "readonly_persistent"):
        require(isinstance(shown.get(name), bool | None), "shown")
        facts[name] = shown.get(name)
    for name in ("running", "process", "record", "elsewhere"):
        require(isinstance(shown.get(name), bool), "shown")
        facts[name] = shown[name]
    for name in ("guests", "unexplained", "differs"):
        items = shown.get(name)
        require(isinstance(items, list) and len(items) <= SHOWN_MAX, "shown")
        facts[name] = [_checked_item(name, item) for item in items]
    facts["records"] = {
        canonical_id(str(a), "shown"): canonical_id(str(s), "shown") for a, s in records.items()
    }
    return facts


def _checked_item(name: str, item: Any) -> str:
    if name != "differs":
        return canonical_id(str(item), "shown")
    require(isinstance(item, str) and bool(_FACT.match(item)), "shown")
    return str(item)


def _checked_disk(disk: Any, *, nested: bool = False) -> dict[str, Any]:
    """What a host needs to know of a disk that another host has connected, and its source."""
    require(isinstance(disk, dict), "disk")
    facts: dict[str, Any] = {}
    for name, value in disk.items():
        if name in _DISK_KEYS:
            require(isinstance(value, str) and bool(_DISK_TEXT.match(value)), "disk")
            facts[name] = value
        elif name in _DISK_FLAGS:
            require(isinstance(value, bool), "disk")
            facts[name] = value
        elif name == "source" and not nested:
            facts[name] = _checked_disk(value, nested=True)
        elif name == "hosts":
            facts[name] = _checked_disk_hosts(value)
        elif name in _DISK_SECRETS:
            facts[name] = _checked_names(value, _DISK_SECRETS[name])
    return facts


def _checked_names(named: Any, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """What names a secret of the hypervisor, and is none."""
    if named is None:
        return None
    require(isinstance(named, dict), "disk")
    facts = {key: named.get(key) for key in keys}
    require(all(_is_disk_text(text) for text in facts.values() if text), "disk")
    return facts


def _checked_disk_hosts(hosts: Any) -> list[list[str]]:
    require(isinstance(hosts, list) and len(hosts) <= _HOSTS_OF_A_DISK_MAX, "disk")
    for pair in hosts:
        require(isinstance(pair, (list, tuple)) and all(map(_is_disk_text, pair)), "disk")
    return [list(pair) for pair in hosts]


def _is_disk_text(text: Any) -> bool:
    return isinstance(text, str) and bool(_DISK_TEXT.match(text))


def _checked_error(error: StepError) -> StepError:
    """Agents mask secrets; this is the second net.  A long text is cut, not refused."""
    require(bool(_WORD.match(error.code)), "code")
    message = one_line(" ".join(mask(error.message).split()))
    return replace(error, message=message[:MESSAGE_CHARS_MAX])


def canonical_id(text: str, name: str) -> str:
    """A UUID in its one form.  Raises WireError."""
    known = canonical(text)
    require(known is not None, name)
    return str(known)


def require(holds: bool, name: str) -> None:
    """Raises WireError, naming what is wrong."""
    if not holds:
        raise WireError(f"{name!r} is not as the contract has it")
