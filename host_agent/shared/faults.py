"""Scripted faults: a file of rules by which a simulation fails.

The simulated Cinder and the agent's simulated brick and guests share it, so that one JSON list
scripts an incident across all of them (docs/faults.md).

A call site names the call and its ids; the first rule that matches and is not used up applies.  A
rule for an unknown call is refused, because it would never apply, and a test would pass for the
wrong reason.

A rule with `skip` lets so many matching calls pass first; with `count` it then applies to so many
(null: all).

Theory of operation: `state` has the number of matches of each rule, by the rule's content.  It is
on disk BEFORE the fault happens, so that a `crash` with count 1 kills the process once, not at
every restart.  One state file belongs to one process; after an edit of the rules the unchanged ones
keep their counts.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import threading
import time
from collections import UserDict
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import structlog

from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError
from host_agent.shared.fault_calls import CALLS, LISTS, READS

MAX_RULES = 1000
MAX_DELAY_S = 3600.0
MAX_RULES_BYTES = 1_000_000
#: How many former states simulations remember, for `stale`.
CHANGES_MAX = 100

#: What a rule may do; those with `_after` do the call first.
BEFORE = frozenset({"fail", "timeout", "crash"})
AFTER = frozenset({"fail_after", "timeout_after", "crash_after"})
#: Only for some calls: return an older state, half of the list, or another order.
ONLY_OF = {"stale": READS, "cut": LISTS, "reorder": LISTS}
DEEDS = BEFORE | AFTER | {"delay", "lie", *ONLY_OF}
KINDS = ("retryable", "final", "unknown")

_STATUS_OF_KIND = {"retryable": 503, "final": 400, "unknown": 500}
_RETRYABLE_STATUSES = frozenset({401, 429, 503})
_SERVER_ERROR = 500
_LOG = structlog.get_logger(__name__)

R = TypeVar("R")


class FaultError(ValueError):
    """A fault rule is wrong; says which rule, which key, and what is allowed."""


def _kind_of_status(status: int) -> str:
    if status in _RETRYABLE_STATUSES:
        return "retryable"
    return "final" if status < _SERVER_ERROR else "unknown"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to one call.

    `status` (HTTP) and `kind` (ports) are both set: a rule with one of them has the other derived;
    a rule without is 503/retryable before the call, and 500/unknown after it or for a timeout.
    """

    call: str
    do: str
    status: int
    kind: str
    code: str
    message: str
    seconds: float = 0.0
    changes: int = 1

    @property
    def lies(self) -> bool:
        """Whether the call returns success without an effect."""
        return self.do == "lie"

    @property
    def is_timeout(self) -> bool:
        return self.do in ("timeout", "timeout_after")

    @property
    def changes_ago(self) -> int:
        """How many changes ago the state is that a read returns."""
        return self.changes if self.do == "stale" else 0

    def shown(self, rows: Sequence[R]) -> list[R]:
        """The rows that a list returns."""
        if self.do == "cut":
            return list(rows[: len(rows) // 2])
        return list(reversed(rows)) if self.do == "reorder" else list(rows)


class InjectedError(PortError):
    """The error of a call; `fault` for an HTTP server."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(ErrorKind(fault.kind), fault.code, fault.message)
        self.fault = fault


@dataclass(frozen=True, kw_only=True)
class FaultRule:
    """One checked rule; the fields are the keys of the JSON form."""

    call: str
    do: str
    match: dict[str, str] = field(default_factory=dict)
    skip: int = 0
    count: int | None = 1
    status: int | None = None
    code: str | None = None
    kind: str | None = None
    message: str | None = None
    seconds: float | None = None
    changes: int = 1
    note: str | None = None

    @classmethod
    def parse(cls, data: Any, number: int) -> Self:
        """From JSON; raises FaultError naming the rule's `number`, the key, the choice."""
        if not isinstance(data, dict):
            raise FaultError(f"rule {number}: is a {type(data).__name__}, must be an object")
        for key in data:
            if key not in _CHECKS:
                allowed = ", ".join(_CHECKS)
                raise FaultError(f"rule {number}: unknown key {key!r}; allowed: {allowed}")
        for key in ("call", "do"):
            if key not in data:
                raise FaultError(f"rule {number}: {key!r} is missing; it must be {_CHECKS[key][1]}")
        for key, value in data.items():
            check, allowed = _CHECKS[key]
            if not check(value):
                raise FaultError(f"rule {number}: {key!r} is {value!r}; it must be {allowed}")
        rule = cls(**data)
        if rule.call != "*" and not rule.can_strike(rule.call):
            among = ", ".join(sorted(ONLY_OF[rule.do]))
            raise FaultError(
                f"rule {number}: 'do' is {rule.do!r}, which {rule.call} cannot suffer; "
                f"the calls that can: {among}"
            )
        return rule

    def can_strike(self, call: str) -> bool:
        return call in ONLY_OF.get(self.do, CALLS)

    def matches(self, call: str, ids: dict[str, str]) -> bool:
        if self.call not in ("*", call) or not self.can_strike(call):
            return False
        return all(ids.get(name) == value for name, value in self.match.items())

    def strike(self, call: str) -> Fault:
        late = self.do in AFTER or self.do == "timeout"
        timeout = self.do.startswith("timeout")
        kind = self.kind or (_kind_of_status(self.status) if self.status else None)
        kind = "unknown" if timeout else kind or ("unknown" if late else "retryable")
        return Fault(
            call=call,
            do=self.do,
            status=self.status or _STATUS_OF_KIND[kind],
            kind=kind,
            code=self.code or ("timeout" if timeout else "injected_fault"),
            message=self.message or f"Injected fault: {self.do} of {call}.",
            seconds=self.seconds or 0.0,
            changes=self.changes,
        )


def _is_int(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_seconds(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value is None or (number and 0 <= value <= MAX_DELAY_S)


def _is_match(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "call": (
        lambda v: isinstance(v, str) and v in {*CALLS, "*"},
        '"*" or one of ' + ", ".join(sorted(CALLS)),
    ),
    "do": (lambda v: isinstance(v, str) and v in DEEDS, "one of " + ", ".join(sorted(DEEDS))),
    "match": (_is_match, "an object of id names to strings"),
    "skip": (lambda v: _is_int(v, 0, 10**9), "an integer >= 0"),
    "count": (lambda v: v is None or _is_int(v, 1, 10**9), "an integer >= 1, or null for always"),
    "status": (lambda v: v is None or _is_int(v, 400, 599), "an HTTP status 400..599, or null"),
    "code": (_is_text, "a string or null"),
    "kind": (lambda v: v is None or v in KINDS, "one of " + ", ".join(KINDS) + ", or null"),
    "message": (_is_text, "a string or null"),
    "seconds": (_is_seconds, f"a number of seconds 0..{MAX_DELAY_S:g}, or null"),
    "changes": (lambda v: _is_int(v, 1, CHANGES_MAX), f"an integer 1..{CHANGES_MAX}"),
    "note": (_is_text, "a string or null"),
}


def parse_rules(data: Any) -> tuple[FaultRule, ...]:
    """All rules of a JSON list; the first wrong one raises FaultError."""
    if not isinstance(data, list):
        raise FaultError(f"fault rules are a {type(data).__name__}, must be a list of objects")
    if len(data) > MAX_RULES:
        raise FaultError(f"{len(data)} fault rules, at most {MAX_RULES} are allowed")
    return tuple(FaultRule.parse(item, number) for number, item in enumerate(data, start=1))


def _keys(rules: tuple[FaultRule, ...]) -> list[str]:
    """A stable key of each rule: its content, numbered among equal ones."""
    seen: dict[str, int] = {}
    keys = []
    for rule in rules:
        text = json.dumps(asdict(rule), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        seen[digest] = seen.get(digest, 0) + 1
        keys.append(f"{digest}-{seen[digest]}")
    return keys


class _FileState(UserDict[str, int]):
    """Counts that are on disk when the assignment returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        stored = json.loads(path.read_text()) if path.exists() else {}
        self.data = {}
        if not isinstance(stored, dict) or not all(_is_int(v, 0, 10**12) for v in stored.values()):
            raise FaultError(f"{path}: is no fault state file; remove it to arm all rules again")
        self.data.update(stored)

    def _save(self) -> None:
        draft = self._path.with_name(self._path.name + ".new")
        with draft.open("w") as out:
            json.dump(self.data, out)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(self._path)

    def __setitem__(self, key: str, value: int) -> None:
        self.data[key] = value
        self._save()

    def clear(self) -> None:
        self.data.clear()
        self._save()


def kill_self() -> None:
    """End this process at once, as by a power failure: nothing is flushed or closed."""
    os.kill(os.getpid(), signal.SIGKILL)


class Faults:
    """The rules in force, and how often each was matched.  Thread-safe.

    `kill` and `sleep` do `crash` and `delay`; tests replace them.
    """

    def __init__(
        self,
        rules: list[dict[str, Any]] | None = None,
        state: MutableMapping[str, int] | None = None,
        *,
        kill: Callable[[], None] = kill_self,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._lock = threading.Lock()
        self._state: MutableMapping[str, int] = {} if state is None else state
        self._kill = kill
        self._sleep = sleep
        self._path: Path | None = None
        self._stamp: tuple[int, int] | None = None
        self._set(parse_rules([] if rules is None else rules))

    @classmethod
    def load(cls, path: Path, state_path: Path | None = None) -> Self:
        """Rules of a file, read again when it changes; a missing file has no rules.

        Raises FaultError for invalid rules.  Invalid rules in a later change are logged as an
        error, and the former ones stay in force.
        """
        state = None if state_path is None else _FileState(state_path)
        faults = cls([], state)
        faults._path = path
        faults._stamp = _stamp(path)
        faults._set(_read(path))
        return faults

    def _set(self, rules: tuple[FaultRule, ...]) -> None:
        self._rules = list(zip(_keys(rules), rules, strict=True))

    def _refresh(self) -> None:
        if self._path is None or (stamp := _stamp(self._path)) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._set(_read(self._path))
        except FaultError as error:
            _LOG.error("fault_rules_refused", path=str(self._path), why=str(error))

    def rules(self) -> list[dict[str, Any]]:
        """The rules in force as JSON, each with `seen`: matching calls that reached it."""
        with self._lock:
            self._refresh()
            return [{**asdict(rule), "seen": self._state.get(key, 0)} for key, rule in self._rules]

    def replace(self, rules: Any) -> None:
        """Put these rules (parsed JSON) in force, none used yet.  Raises FaultError."""
        parsed = parse_rules(rules)
        with self._lock:
            self._state.clear()
            self._set(parsed)

    @property
    def looks_back(self) -> bool:
        """Whether a rule returns older states."""
        return any(rule.do == "stale" for _, rule in self._rules)

    def take(self, call: str, /, **ids: str | None) -> Fault | None:
        """The fault for this call, if any; counts it as used."""
        assert call in CALLS, f"{call} is not among CALLS"
        if self._path is None and not self._rules:
            return None
        known = {name: value for name, value in ids.items() if value is not None}
        with self._lock:
            self._refresh()
            for key, rule in self._rules:
                if rule.matches(call, known) and self._use(key, rule):
                    return rule.strike(call)
        return None

    def _use(self, key: str, rule: FaultRule) -> bool:
        seen = self._state.get(key, 0)
        if rule.count is not None and seen >= rule.skip + rule.count:
            return False
        self._state[key] = seen + 1  # on disk before the fault strikes
        return seen >= rule.skip

    @contextmanager
    def around(self, call: str, /, **ids: str | None) -> Iterator[Fault | None]:
        """Do a blocking call under the rules: `with faults.around("plug"):`.

        Raises InjectedError before or after the body, kills the process, or sleeps.  Yields the
        fault, for `fault.lies`.  If the body raises, no fault follows.
        """
        fault = self.take(call, **ids)
        if fault is not None and fault.do not in AFTER:
            self._sleep(fault.seconds)
            self._strike(fault)
        yield fault
        if fault is not None and fault.do in AFTER:
            self._sleep(fault.seconds)
            self._strike(fault)

    @asynccontextmanager
    async def around_async(self, call: str, /, **ids: str | None) -> AsyncIterator[Fault | None]:
        """As `around`, for a coroutine; a delay does not block the event loop."""
        fault = self.take(call, **ids)
        if fault is not None and fault.do not in AFTER:
            await asyncio.sleep(fault.seconds)
            self._strike(fault)
        yield fault
        if fault is not None and fault.do in AFTER:
            await asyncio.sleep(fault.seconds)
            self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        if fault.do.startswith("crash"):
            self._kill()
        if fault.do in BEFORE | AFTER:
            raise InjectedError(fault)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size


def _read(path: Path) -> tuple[FaultRule, ...]:
    try:
        with path.open("rb") as source:
            text = source.read(MAX_RULES_BYTES + 1)
    except FileNotFoundError:
        return ()
    if len(text) > MAX_RULES_BYTES:
        raise FaultError(f"{path}: has more than {MAX_RULES_BYTES} bytes")
    try:
        return parse_rules(json.loads(text))
    except ValueError as error:  # FaultError and JSONDecodeError are ones
        raise FaultError(f"{path}: {error}") from None
