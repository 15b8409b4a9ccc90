"""Authorisation: rules and files of oslo.policy, and one question, `Policy.permits`.

A policy file overrides rules.  Only the ledger's rules (`ledger.auth.rules`) and the rules that
they refer to are read from it, so Nova's file can be used unchanged.  A file is read completely and
checked, then replaces the former one in one assignment: each request is decided by one of them.  A
file with errors replaces nothing; the service reports it.

oslo.policy itself would read the file within a request, raise there if it does not parse, and
treat a part of a rule that it does not understand as a refusal.  Therefore a thread reads the file
here, every RELOAD_S.  Decisions are cached until the rules change.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from oslo_config import cfg
from oslo_policy import policy as oslo

from host_agent.shared.platform.files import regular_file
from host_agent.shared.platform.settings import ConfigError
from ledger.auth.reading import Reading
from ledger.auth.rules import ALL_PROJECTS, IS_ADMIN, NAMES, OURS, RULES
from ledger.auth.tokens import Identity

#: How often the file is looked at; a change counts when it was the same twice.
RELOAD_S = 2.0
#: Answers that are remembered.
ANSWERS_MAX = 10_000
#: Nova's whole sample has 100 KB.
FILE_BYTES_MAX = 4 * 1024 * 1024

#: Of whom a project says nothing, and who is in none: all else.
_SCOPES = ["project", "system"]

_log = structlog.get_logger(__name__)


class PolicyError(ConfigError):
    """A policy that cannot be used; the message says which rule, and why."""


class Target(NamedTuple):
    """What is asked about: whose it is.  None: nobody knows, or nobody's."""

    project_id: str | None
    user_id: str | None = None


class _Question(NamedTuple):
    """All that an answer depends on."""

    rule: str
    roles: frozenset[str]
    user_id: str | None
    project_id: str | None
    system: bool
    domain_id: str | None
    service: str | None
    target: Target

    def of_anybody(self) -> _Question:
        """The same, for rules that are about roles and projects alone."""
        target = Target(self.target.project_id)
        return self._replace(user_id=None, service=None, target=target)


class Policy:
    """The rules as they are now.

    `trouble`: what is wrong with the file as it is now, None if nothing is.  Raises PolicyError if
    the first one cannot be used: what the operator wants is not known then, and the defaults may be
    too much.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._answers = _Answers({})
        self._looked: object = None
        self._read: object = None
        self._reading = Reading()
        self.trouble: str | None = None
        self._failed = False
        if file is not None:
            self._load(file)

    def permits(self, identity: Identity, rule: str, target: Target | None = None) -> bool:
        """Whether the rule lets the caller; without a target, with what is the caller's own.

        A rule that there is not, or that cannot be evaluated, lets nobody.
        """
        actor, vouched, answers = identity.actor, identity.vouched, self._answers
        question = _Question(
            rule,
            identity.roles,
            actor.user_id,
            actor.project_id,
            vouched.system,
            vouched.domain_id,
            vouched.service,
            target or Target(actor.project_id, actor.user_id),
        )
        return answers.permits(question if answers.by_user else question.of_anybody())

    def admitted(self, identity: Identity) -> Identity:
        """The caller, with whether all projects are open to it."""
        if not self.permits(identity, ALL_PROJECTS):
            return identity
        return replace(identity, everywhere=True)

    @property
    def stale(self) -> bool:
        """Whether an earlier file is in force than the one there is, as far as anybody knows."""
        return self._failed or self._reading.trouble() is not None

    async def check(self) -> str | None:
        """For /readyz."""
        hangs = self._reading.trouble()
        return f"{self._file}: {hangs}" if hangs else self.trouble

    async def follow(self) -> None:
        """Read the file whenever it has changed, until cancelled."""
        while self._file is not None:
            await asyncio.sleep(RELOAD_S)
            await self._reading.look(self.refresh)

    def refresh(self) -> None:
        """Read the file if it is another one, and nobody has written to it since the last look.

        A file that is written in place has half of its rules for a moment, and may parse.
        """
        if self._file is None:
            return
        try:
            state = _state(self._file.stat())
            if state != self._looked:
                self._looked = state
            elif state != self._read:
                self._load(self._file)
        except PolicyError as error:
            self._keep(str(error))
        except OSError as error:
            self._looked = self._read = None  # what comes back is read
            self._keep(f"{self._file} cannot be read: {error.strerror}")
        except Exception as error:  # noqa: BLE001 - else nobody would look at it again
            self._keep(f"{self._file} cannot be used: {error!r}")

    def _load(self, file: Path) -> None:
        """Raises PolicyError, and leaves everything as it was but for what was looked at."""
        try:
            state, text = _content(file)
            self._looked = self._read = state
            overrides = _parsed(text)
            self._answers = _Answers(overrides)  # from here on
        except PolicyError as error:
            raise PolicyError(f"{file}: {error}") from None
        typos = sorted(name for name in overrides if name.startswith(OURS) and name not in NAMES)
        self._failed = False
        self.trouble = f"{file}: there are no rules {', '.join(typos)}" if typos else None
        _log.info("policy_loaded", file=str(file), unknown=typos)

    def _keep(self, why: str) -> None:
        trouble = f"{why}; the rules before it go on"
        if trouble != self.trouble:
            _log.error("policy_not_loaded", file=str(self._file), why=why)
        self.trouble, self._failed = trouble, True


class _Answers:
    """One set of rules, compiled, and what they have answered.

    `by_user`: a rule asks for users; else thousands of agents have one answer.
    """

    def __init__(self, overrides: Mapping[str, Any]) -> None:
        """Raises PolicyError."""
        self._enforcer = _enforcer(overrides)
        self.by_user = any("user_id" in str(check) for check in self._enforcer.rules.values())
        self.permits = lru_cache(ANSWERS_MAX)(self._decided)

    def _decided(self, question: _Question) -> bool:
        creds, target = _of_caller(question), _of_target(question.target)
        try:
            creds["is_admin"] = bool(self._enforcer.enforce(IS_ADMIN, target, creds))
            return bool(self._enforcer.authorize(question.rule, target, creds))
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody is let in by it
            _log.error("policy_rule_failed", rule=question.rule, why=repr(error))
            return False


def _of_caller(question: _Question) -> dict[str, Any]:
    """As services of OpenStack name them (oslo.context).  What is not so is not there.

    A None would be the text "None" to a check, and alike to every other.
    """
    creds = {
        "roles": sorted(question.roles),
        "user_id": question.user_id,
        "project_id": question.project_id,
        "system_scope": "all" if question.system else None,
        "domain_id": question.domain_id,
        "service_user_id": question.service,
    }
    return {name: value for name, value in creds.items() if value is not None}


def _of_target(target: Target) -> dict[str, Any]:
    return {name: value for name, value in target._asdict().items() if value is not None}


# --------------------------------------------------------------------------- what is read


def _state(status: os.stat_result) -> object:
    return (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)


def _content(file: Path) -> tuple[object, str]:
    """The file's state, and its text.  Raises PolicyError."""
    try:
        with regular_file(file) as same, same.open("rb") as opened:
            state = _state(os.fstat(opened.fileno()))
            raw = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise PolicyError(f"it cannot be read: {error.strerror}") from None
    if len(raw) > FILE_BYTES_MAX:
        raise PolicyError(f"it is larger than {FILE_BYTES_MAX} bytes")
    try:
        return state, raw.decode()
    except UnicodeDecodeError:
        raise PolicyError("it is no UTF-8") from None


def _parsed(text: str) -> dict[str, Any]:
    try:
        parsed: Any = oslo.parse_file_contents(text)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"it is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(parsed, dict):
        raise PolicyError("it is no table of rules by their names")
    return {name: text for name, text in parsed.items() if isinstance(name, str)}


def _enforcer(overrides: Mapping[str, Any]) -> oslo.Enforcer:
    """Our rules with these in their place.  Raises PolicyError."""
    defaults = {rule.name: overrides.get(rule.formerly or rule.name, rule.check) for rule in RULES}
    checks = _reachable({**defaults, **overrides})
    enforcer = oslo.Enforcer(cfg.ConfigOpts(), rules=checks, use_conf=False)
    enforcer.register_defaults(
        [oslo.RuleDefault(rule.name, rule.check, scope_types=_SCOPES) for rule in RULES]
    )
    for name, check in checks.items():
        _try(enforcer, name, check)
    return enforcer


def _reachable(texts: Mapping[str, Any]) -> dict[str, Any]:
    """The checks of our rules, and of those they refer to.  Raises PolicyError."""
    found: dict[str, Any] = {}
    refers: dict[str, list[str]] = {}
    names = [rule.name for rule in RULES]
    while names:
        name = names.pop()
        if name in found:
            continue
        found[name] = check = _check(name, texts[name])
        refers[name] = [leaf.match for leaf in _leaves(check) if isinstance(leaf, oslo.RuleCheck)]
        if missing := [other for other in refers[name] if other not in texts]:
            raise PolicyError(f"rule {name}: there is no rule {missing[0]!r}, to which it refers")
        names.extend(refers[name])
    try:
        TopologicalSorter(refers).prepare()
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise PolicyError(f"rules refer to each other in a circle: {circle}") from None
    return found


def _check(name: str, text: Any) -> Any:
    """oslo.policy puts a refusal where it does not understand, so refusals are counted."""
    if not isinstance(text, str | list):
        raise PolicyError(f"rule {name}: {text!r} is no check")
    try:
        check, wanted = _parse(text), _refusals(text)
    except Exception as error:  # noqa: BLE001 - of a list it takes what it finds
        raise PolicyError(f"rule {name}: {text!r} is no check: {error}") from None
    leaves = list(_leaves(check))
    found = sum(isinstance(leaf, _REFUSAL) for leaf in leaves)
    whole = isinstance(text, list) or text.strip(" ()") == "!" or not isinstance(check, _REFUSAL)
    if found != wanted or not whole:
        raise PolicyError(f"rule {name}: {text!r} is not understood")
    if foreign := [str(leaf) for leaf in leaves if not isinstance(leaf, _KINDS)]:
        raise PolicyError(f"rule {name}: checks of the kind {foreign[0]!r} are not done here")
    return check


def _parse(text: Any) -> Any:
    return oslo.Rules.from_dict({"": text})[""]


def _refusals(text: Any) -> int:
    """How many checks of the text are "!"."""
    if isinstance(text, list):
        return sum(map(_refusals, text))
    return sum(word.strip("()") == "!" for word in text.split())


def _leaves(check: Any) -> Iterator[Any]:
    match check:
        case oslo.AndCheck(rules=parts) | oslo.OrCheck(rules=parts):
            for part in parts:
                yield from _leaves(part)
        case oslo.NotCheck(rule=part):
            yield from _leaves(part)
        case _:
            yield check


#: What checks there may be.  Not `http:` and `https:`, which ask another service and wait for it.
_REFUSAL = type(_parse("!"))
_KINDS = tuple(type(_parse(text)) for text in ("!", "@", "role:a", "rule:a", "a:b"))

_TRIED = {"roles": ["reader"], "user_id": "u", "project_id": "p", "is_admin": False}
_TRIED_TARGET = {"user_id": "u", "project_id": "p"}


def _try(enforcer: oslo.Enforcer, name: str, check: Any) -> None:
    """Raises PolicyError if a part of the check raises, whoever asks."""
    for leaf in _leaves(check):
        try:
            leaf(_TRIED_TARGET, dict(_TRIED), enforcer)
        except Exception as error:  # noqa: BLE001 - whatever it is
            raise PolicyError(f"rule {name}: {leaf} cannot be evaluated: {error}") from None
