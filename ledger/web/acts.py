"""What can be done in the console, as a table: where, by which route of the API, with what said.

An act has a page of its own: what it would do, in the words of the command line, and a form.  It is
done by its route, under that route's rules (decision 0073).  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ledger.web.pages import Read
from ledger.words.consequences import ACTS as WORDS
from ledger.words.consequences import second_look

Shown = Mapping[str, Any]


class Kind(StrEnum):
    """How something is said in a form."""

    TEXT = "text"
    TICK = "tick"
    LIST = "list"  # words, with commas between them
    KEPT = "kept"  # of the page's query: nobody is asked
    STEP = "step"  # likewise, "LANE STEP": one of those that are left


@dataclass(frozen=True, kw_only=True)
class Field:
    """`name`: as the route calls it."""

    name: str
    label: str
    kind: Kind = Kind.TEXT
    needed: bool = False


REASON = Field(name="reason", label="Why; stored permanently in the history", needed=True)
UNTIL = Field(name="until", label="Until (UTC, as 2026-01-31T12:00:00Z); empty: for good")
BELIEVE = Field(
    name="believe",
    label="Classes to believe however many differ, with commas; empty: as always",
    kind=Kind.LIST,
)
BELIEVE_REASON = Field(
    name="reason", label="Why these are believed; stored permanently in the history"
)
STEP = Field(name="step", label="The step that you vouch for", kind=Kind.STEP)
EVIDENCE = Field(name="evidence", label="How you know that it is down", needed=True)
FORCE = Field(
    name="force", label="Fence it although its agent was in contact lately", kind=Kind.TICK
)


@dataclass(frozen=True, kw_only=True)
class Act:
    """`links`: by the page that offers it, where it is, with ids of its path (and `scope`: of what
    a finding has to be looked at again).  `possible`: by what was read.

    `names`: which part of the path a part of the route's path is, where it is called otherwise.
    `adds`: what is said beside the form's fields; `wraps`: the act's name goes around all of it.
    `then`: where one is led, by the ids of the path and of the answer.
    """

    name: str
    title: str
    path: str
    links: Mapping[str, str]
    route: str
    then: str
    reads: Mapping[str, Read] = field(default_factory=dict)
    fields: tuple[Field, ...] = (REASON,)
    names: Mapping[str, str] = field(default_factory=dict)
    adds: Mapping[str, Any] = field(default_factory=dict)
    wraps: bool = False
    possible: Callable[[Shown], bool] = lambda _: True

    @property
    def words(self) -> str:
        """What it does, as the command line says it."""
        return WORDS[self.name]

    @property
    def given(self) -> frozenset[str]:
        """What the query of its page may have."""
        return frozenset(each.name for each in self.fields if each.kind in {Kind.KEPT, Kind.STEP})

    def body(self, sent: Mapping[str, str]) -> dict[str, Any]:
        """What the route is sent for this form."""
        fields: dict[str, Any] = dict(self.adds)
        for each in self.fields:
            text = sent.get(each.name, "").strip()
            if each.kind is Kind.TICK:
                fields[each.name] = bool(text)
            elif each.kind is Kind.LIST:
                fields[each.name] = [word for part in text.split(",") if (word := part.strip())]
            elif each.kind is Kind.STEP:
                lane, _, step = text.partition(" ")
                fields |= {"lane": int(lane) if lane.lstrip("-").isdecimal() else 0, "step": step}
            elif text or each.needed:
                fields[each.name] = text
        return {self.name: fields} if self.wraps else fields


def _of_operation(name: str, title: str, *more: Field) -> Act:
    path = f"/ui/operations/{{operation_id}}/{name}"
    return Act(
        name=name,
        title=title,
        path=path,
        links={"operation": path},
        route="operation_act",
        then="/ui/operations/{operation_id}",
        reads={"operation": Read(route="operation", needed=True)},
        fields=(*more, REASON),
        wraps=True,
        possible=lambda shown: name in shown["operation"]["acts"],
    )


def _of_finding(name: str, title: str, route: str, **more: Any) -> Act:
    path = f"/ui/drift/{{finding_id}}/{name}"
    given = {"fields": (REASON,), "then": "/ui/drift/{finding_id}", **more}
    return Act(
        name=name,
        title=title,
        path=path,
        links={"finding": path},
        route=route,
        reads={"finding": Read(route="drift_finding", needed=True)},
        possible=lambda shown: name in shown["finding"]["acts"],
        **given,
    )


def _of_host(name: str, title: str, *more: Field, fenced: bool) -> Act:
    path = f"/ui/hosts/{{host}}/{name}"
    return Act(
        name=name,
        title=title,
        path=path,
        links={"host": path},
        route=f"host_{name}",
        then="/ui/hosts/{host}",
        reads={"host": Read(route="host", needed=True)},
        fields=(REASON, *more),
        possible=lambda shown: shown["host"]["fenced"] is fenced,
    )


def _of_look(name: str, title: str, state: str) -> Act:
    path = f"/ui/looks/{{look_id}}/{name}"
    return Act(
        name=name,
        title=title,
        path=path,
        links={"look": path},
        route=f"drift_run_{name}",
        then="/ui/drift",
        reads={"look": Read(route="drift_run", needed=True)},
        possible=lambda shown: shown["look"]["state"] == state,
    )


def _kept(name: str) -> Field:
    return Field(name=name, label=name, kind=Kind.KEPT)


ACTS = (
    _of_operation("retry", "Retry"),
    _of_operation("skip", "Skip a step", STEP),
    _of_operation("unwind", "Undo"),
    _of_operation("give_up", "Give up"),
    _of_finding(
        "repair",
        "Repair",
        "drift_repair",
        fields=(REASON, _kept("repair")),
        adds={"apply": True},
        then="/ui/operations/{operation_id}",
    ),
    _of_finding("ignore", "Ignore", "drift_ignore", fields=(REASON, UNTIL)),
    _of_finding("heed", "Ignore no longer", "drift_heed"),
    _of_finding(
        "acknowledge",
        "Acknowledge",
        "remnant_acknowledge",
        names={"remnant_id": "finding_id"},
    ),
    Act(
        name="look",
        title="Look now",
        path="/ui/look",
        links={
            "drift": "/ui/look",
            "host": "/ui/look?host={host}",
            "server": "/ui/look?server={server_id}",
            "volume": "/ui/look?volume={volume_id}",
            "finding": "/ui/look?{scope}",
        },
        possible=lambda shown: "finding" not in shown or bool(second_look(shown["finding"])),
        route="drift_run_ask",
        then="/ui/drift",
        fields=(_kept("host"), _kept("server"), _kept("volume"), BELIEVE, BELIEVE_REASON),
    ),
    _of_look("stop", "Stop", "under_way"),
    _of_look("resume", "Resume", "stopped"),
    _of_host("fence", "Fence", EVIDENCE, FORCE, fenced=False),
    _of_host("unfence", "Unfence", fenced=True),
)
