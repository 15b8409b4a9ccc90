"""The acts of operators by the ledger's own API: each act is one row of `ACTS`.

A row makes the route and its body (`ledger.native.acts`), the command (`ledger.cli.acts`), the form
of the console (`ledger.web.acts`), and a part of docs/acts.md (`tests.pages.acts_page`).  What only
one of these needs is a function there, which the row names as `module:function`.  Pure, and quick
to import, because the command line imports it for its help.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from ledger.words.consequences import second_look

Shown = Mapping[str, Any]


class FieldKind(StrEnum):
    """What a field holds: its type in the API, how it is typed, and how a form asks for it."""

    TEXT = "text"
    MOMENT = "moment"
    FLAG = "flag"
    APPLY = "apply"  # a dry run without it; a form has shown that before
    NAME = "name"
    CLASSES = "classes"
    STEP = "step"
    LANE = "lane"
    HOST = "host"
    SERVER = "server"
    VOLUME = "volume"


@dataclass(frozen=True, kw_only=True)
class Field:
    """`help`: of the command line; `label`: of a form, where that says it otherwise."""

    name: str
    kind: FieldKind = FieldKind.TEXT
    help: str | None = None
    label: str = ""
    needed: bool = False
    option: str | None = None  # of the command line, where it is not the name


REASON = Field(name="reason", help="why; stored permanently in the history", needed=True)
#: What a command that begins an operation, or acts on one, can wait for.
_ITS_END = "wait until the operation ends or needs an operator"


@dataclass(frozen=True, kw_only=True)
class Thing:
    """What acts are done to; in the texts, `{act}` is the act's name.

    `kind`: as people name one of them; "": nothing has to be named.

    `rule`: of the policy.  `path` and `route`: of the API; `handler`: its function in
    `ledger.native`; `answers`: its models by status.  With `wraps` all its acts are one route, and
    an act's name is around its fields.

    `page`: of the console; `seen`: what its pages call the thing, which the route `read` shows;
    `then`: where one is led; `offered`: by page, where, if not just on the page of the thing.

    `command`: of the command line; its function `shown` makes rows of the answer, or `ends` goes on
    with it.  `dry_run`: whether it has one; `slow`: another cloud is read for it; `wait`: what it
    can wait for.
    """

    kind: str
    rule: str
    path: str
    route: str
    handler: str
    answers: Mapping[int, str]
    page: str
    seen: str
    read: str = ""
    then: str
    command: str
    shown: str = ""
    ends: str = ""
    wraps: bool = False
    dry_run: bool = False
    slow: bool = False
    wait: str = ""
    offered: Mapping[str, str] = field(default_factory=dict)


OPERATION = Thing(
    kind="operation",
    rule="operations:act",
    path="/v1/operations/{operation_id}/actions",
    route="operation_act",
    handler="operations:act",
    answers={200: "drift.schemas_remnants:OperationActed"},
    page="/ui/operations/{operation_id}/{act}",
    seen="operation",
    read="operation",
    then="/ui/operations/{operation_id}",
    command="operation {act}",
    ends="operations.operation_acts:acted",
    wraps=True,
    dry_run=True,
    wait=_ITS_END,
)
FINDING = Thing(
    kind="finding",
    rule="drift:{act}",
    path="/v1/drift/{finding_id}/{act}",
    route="drift_{act}",
    handler="drift.findings:{act}",
    answers={200: "drift.schemas_drift:FindingDetails"},
    page="/ui/drift/{finding_id}/{act}",
    seen="finding",
    read="drift_finding",
    then="/ui/drift/{finding_id}",
    command="drift {act}",
    shown="drift.drift:shown",
)
REMNANT = Thing(  # in the console it is the finding that it is, too
    kind="remnant",
    rule="remnants:{act}",
    path="/v1/remnants/{remnant_id}/{act}",
    route="remnant_{act}",
    handler="drift.remnants:{act}",
    answers={200: "drift.schemas_remnants:RemnantShown"},
    page="/ui/drift/{finding_id}/{act}",
    seen="finding",
    read="drift_finding",
    then="/ui/drift/{finding_id}",
    command="remnant {act}",
    shown="base:columns",
)
HOST = Thing(
    kind="host",
    rule="hosts:{act}",
    path="/v1/hosts/{host}/{act}",
    route="host_{act}",
    handler="hosts:{act}",
    answers={200: "schemas:HostShown"},
    page="/ui/hosts/{host}/{act}",
    seen="host",
    read="host",
    then="/ui/hosts/{host}",
    command="host {act}",
    shown="servers.host:shown",
)
#: A host that goes from the Nova beside us to the ledger, or back.  What is known of it its dry run
#: says: while it is Nova's, no route shows it.
NOVA_HOST = replace(
    HOST,
    answers={200: "schemas:HostPassed"},
    read="",
    ends="servers.host:passed",
    dry_run=True,
    slow=True,
)
LOOK = Thing(
    kind="look",
    rule="drift:look",
    path="/v1/drift/runs/{look_id}/{act}",
    route="drift_run_{act}",
    handler="drift.looks:{act}",
    answers={200: "drift.schemas_drift:LookShown"},
    page="/ui/looks/{look_id}/{act}",
    seen="look",
    read="drift_run",
    then="/ui/drift",
    command="drift {act}",
    shown="drift.looks:shown",
)
DRIFT = Thing(
    kind="",
    rule="drift:look",
    path="/v1/drift/runs",
    route="drift_run_ask",
    handler="drift.looks:ask",
    answers={202: "drift.schemas_drift:LookAsked"},
    page="/ui/look",
    seen="finding",
    offered={
        "drift": "/ui/look",
        "host": "/ui/look?host={host}",
        "server": "/ui/look?server={server_id}",
        "volume": "/ui/look?volume={volume_id}",
        "finding": "/ui/look?{scope}",
    },
    then="/ui/drift",
    command="drift run",
    ends="drift.looks:asked",
)


@dataclass(frozen=True, kw_only=True)
class Act:
    """`words`: the first paragraph says what it does, the others what to know before.

    `fields`: what is said, and `body` what their model is called, which `note` describes.
    `begins`: an operation, so a request may have an Idempotency-Key.
    `possible`: by the thing as it is shown; None: while that names the act among its own (`acts`).

    Of the command line: `hints`, by code of a refusal, what to type then; `examples`, what is
    typed behind it, and what for.

    `rule`, `handler`, `answers`, `wait`, `ends` and `then` stand in the place of the thing's.
    """

    name: str
    of: Thing
    title: str
    words: str
    examples: tuple[tuple[str, str], ...]
    fields: tuple[Field, ...] = (REASON,)
    body: str = "Why"
    note: str = ""
    begins: bool = False
    possible: Callable[[Shown], bool] | None = None
    wait: str = ""
    hints: Mapping[str, str] = field(default_factory=dict)
    rule: str = ""
    handler: str = ""
    answers: Mapping[int, str] = field(default_factory=dict)
    ends: str = ""
    then: str = ""

    def filled(self, text: str) -> str:
        """A text of the thing, for this act."""
        return text.replace("{act}", self.name)

    @property
    def summary(self) -> str:
        """The beginning of its words, as a clause."""
        clause = re.split(r"[.:]", self.words)[0]
        return clause[0].lower() + clause[1:]

    @property
    def command(self) -> str:
        return self.filled(self.of.command).replace("_", "-")

    @property
    def route(self) -> str:
        return self.filled(self.of.route)

    @property
    def path(self) -> str:
        return self.filled(self.of.path)

    def offered(self, thing: Shown) -> bool:
        """Whether it can be done to the thing as it is shown; the log has the last word."""
        return self.possible(thing) if self.possible else self.name in thing["acts"]

    def typed(self, which: str) -> str:
        """Its command line for a thing, with what has to be said."""
        said = [f"--{each.name} TEXT" for each in self.fields if each.needed and each.kind in _SAID]
        return " ".join([f"attachment-ledger {self.command} {which}", *said])


_SAID = {FieldKind.TEXT, FieldKind.MOMENT}


def _was_novas(host: Shown) -> bool:
    return bool(host and host["came_from"])


def _returnable(host: Shown) -> bool:
    return _was_novas(host) and not (host["fenced"] or host["suspect"] or host["unvouched"])


_REASON_TO_DO = Field(
    name="reason",
    help="why; stored permanently in the history; needed except for a dry run",
    label="Why; stored permanently in the history",
)
STEP = Field(name="step", kind=FieldKind.STEP, help="the first pending step", needed=True)
LANE = Field(
    name="lane",
    kind=FieldKind.LANE,
    help="the lane, if there are several volumes; -1 for a step of the whole server",
)

ACTS = (
    Act(
        name="retry",
        of=OPERATION,
        title="Retry",
        words=(
            "Try the failed steps of a parked operation again, or the delayed steps of a running "
            "one at once."
        ),
        examples=(('44e1 --reason "the array is back" --wait', "try again, and wait for the end"),),
    ),
    Act(
        name="skip",
        of=OPERATION,
        title="Skip a step",
        words="Continue as if a step were done: you vouch for it, with a reason.",
        fields=(LANE, STEP, REASON),
        body="SkipStep",
        examples=(
            (
                '44e1 disconnect --reason "the host is gone" --dry-run',
                "show what it would leave behind",
            ),
        ),
    ),
    Act(
        name="unwind",
        of=OPERATION,
        title="Undo",
        words="Undo an operation; refused after its pivot.",
        examples=(('44e1 --reason "not needed any more" --dry-run', "show what it would undo"),),
    ),
    Act(
        name="give_up",
        of=OPERATION,
        title="Give up",
        words="End a parked operation as it is; pending steps are never done, and stay in the log.",
        examples=(('44e1 --reason "the volume is lost"', "end it as it is"),),
    ),
    Act(
        name="repair",
        of=FINDING,
        title="Repair",
        words="Repair a finding, after reading again what each party has.",
        fields=(
            REASON,
            Field(name="apply", kind=FieldKind.APPLY, help="do it; without it nothing is changed"),
            Field(
                name="repair",
                kind=FieldKind.NAME,
                help="which repair, if the class has two (forget_attachment)",
            ),
        ),
        body="RepairWanted",
        note=(
            "`apply` false: a dry run.  `repair`: which one, if the class has two "
            "(attachment_lost)."
        ),
        handler="drift.repairs:repair",
        answers={
            200: "drift.schemas_repairs:RepairProposed",
            202: "drift.schemas_repairs:RepairAccepted",
        },
        begins=True,
        then="/ui/operations/{operation_id}",
        ends="drift.repair:acted",
        wait=_ITS_END,
        examples=(
            ('9f2c --reason "Cinder is right"', "show what the repair would do"),
            ('9f2c --reason "Cinder is right" --apply --wait', "repair it"),
        ),
    ),
    Act(
        name="ignore",
        of=FINDING,
        title="Ignore",
        words="Ignore a finding, for a period or permanently.",
        fields=(
            REASON,
            Field(
                name="until",
                kind=FieldKind.MOMENT,
                help="end of the period: ISO 8601, UTC unless it has an offset",
                label="Until (UTC, as 2026-01-31T12:00:00Z); empty: permanently",
            ),
        ),
        body="Ignore",
        note="`until`: until when to ignore it; absent: permanently.",
        examples=(
            (
                '9f2c --reason "known, moves next week" --until 2026-12-01',
                "ignore it until then",
            ),
        ),
    ),
    Act(
        name="unignore",
        of=FINDING,
        title="Ignore no longer",
        words="Stop ignoring a finding; the next look that still finds it confirms it.",
        rule="drift:ignore",
        examples=(('9f2c --reason "it is drift after all"', "ignore it no longer"),),
    ),
    Act(
        name="acknowledge",
        of=REMNANT,
        title="Acknowledge",
        words="Close a remnant: you have checked that it is gone, or may stay.",
        fields=(
            Field(
                name="reason", help="what you did; stored permanently in the history", needed=True
            ),
        ),
        examples=(('5a0d --reason "removed by hand"', "it is gone"),),
    ),
    Act(
        name="look",
        of=DRIFT,
        title="Look now",
        words="Compare now: everything, or one host, server or volume.",
        fields=(
            Field(name="host", kind=FieldKind.HOST),
            Field(name="server", kind=FieldKind.SERVER),
            Field(name="volume", kind=FieldKind.VOLUME),
            Field(
                name="believe",
                option="accept-many",
                kind=FieldKind.CLASSES,
                help="accept any number of findings of this class; may be repeated",
                label="Classes to accept in any number, with commas; empty: none",
            ),
            Field(
                name="reason",
                help="why they are accepted",
                label="Why these are accepted; stored permanently in the history",
            ),
        ),
        body="LookWanted",
        note=(
            "One host, server or volume; none of them: everything.\n\n"
            "`believe`: classes of which any number of new findings is accepted (a class that "
            "an earlier\nlook shows as `braked`); with the `reason`, which is stored."
        ),
        possible=lambda finding: bool(second_look(dict(finding))),
        wait="wait until the look has ended",
        examples=(("--host hv1 --wait", "look at one host now"),),
    ),
    Act(
        name="stop",
        of=LOOK,
        title="Stop",
        words="Stop a look, until it is resumed or another one begins.",
        possible=lambda look: bool(look["state"] == "under_way"),
        examples=(('c0de --reason "Cinder is slow"', "stop it"),),
    ),
    Act(
        name="resume",
        of=LOOK,
        title="Resume",
        words="Continue a look where it was stopped.",
        possible=lambda look: bool(look["state"] == "stopped"),
        examples=(('c0de --reason "Cinder is well"', "continue it"),),
    ),
    Act(
        name="fence",
        of=HOST,
        title="Fence",
        words="""Fence a host: you vouch that nothing on it accesses volumes any more.

The ledger refuses its results from now on; its pending steps end, or are done without
it.  Fencing a host that still runs guests corrupts their data once other hosts use the
volumes: be sure that it is powered off or cut off from the storage, and say how you know.""",
        fields=(
            REASON,
            Field(name="evidence", help="how you know that it is down", needed=True),
            Field(
                name="force",
                kind=FieldKind.FLAG,
                help="fence it although its agent was in contact recently",
            ),
        ),
        body="Fence",
        note=(
            "`evidence`: how the operator knows that the host accesses no volume any more.\n\n"
            "`force`: although its agent is in contact (a host may be cut off from its storage "
            "only)."
        ),
        possible=lambda host: not host["fenced"],
        hints={"host_answers": "If it is cut off from the storage nevertheless: --force"},
        examples=(
            (
                'hv1 --reason "no answer" --evidence "powered off by IPMI"',
                "fence a dead host",
            ),
        ),
    ),
    Act(
        name="unfence",
        of=HOST,
        title="Unfence",
        words="Let a fenced host work again.",
        possible=lambda host: bool(host["fenced"]),
        examples=(('hv1 --reason "repaired"', "let it work again"),),
    ),
    Act(
        name="forget",
        of=HOST,
        title="Forget",
        words="""Forget a host that is gone for good: you vouch that nothing runs on it any more.

It has to be fenced, its agent silent, and nothing on it: no server, attachment, operation, open
remnant or finding (but ignored ones). It is then no longer listed, and its history stays. If a host
of this name registers, it is listed again, still fenced: after `host unfence` it first releases
what is not its own. `openstack compute service delete ID` does the same.""",
        possible=lambda host: host["fenced"] and not host["alive"],
        then="/ui/hosts",
        examples=(('hv1 --reason "scrapped"', "forget a host that was fenced"),),
    ),
    Act(
        name="vouch",
        of=HOST,
        title="Vouch",
        words="""Vouch for a host after a restore: you have checked what it has.

A ledger that was restored from an older backup may lack later changes of a host. The host gets no
work until an operator vouches for it. It must have reported its inventory since the restore; the
next look finds the differences.""",
        possible=lambda host: bool(host["unvouched"]) and not host["fenced"],
        examples=(('hv1 --reason "its guests are those of the inventory"', "let it work again"),),
    ),
    Act(
        name="adopt",
        of=NOVA_HOST,
        title="Adopt",
        words="""Take over a host from the Nova beside this ledger, server by server.

The ledger reads Nova and Cinder twice, and changes nothing there; no guest is touched. It takes a
server if nothing is in progress and Nova and Cinder agree about it; the answer says which servers
stay, and why. Disable Nova's compute service there first. docs/adopt.md: before and after.""",
        fields=(_REASON_TO_DO,),
        body="Passing",
        note="`reason`: why; needed except for a dry run.",
        possible=lambda host: not host or _was_novas(host),
        examples=(
            ("hv1 --dry-run", "which servers could be taken; exit code 10 if one stays"),
            ('hv1 --reason "rack 3 goes first"', "take them"),
        ),
    ),
    Act(
        name="hand_back",
        of=NOVA_HOST,
        title="Hand back",
        words="""Give an adopted host back to Nova, server by server.

A server goes back when Nova shows for it what the ledger has. Until then the answer has the SQL
that corrects Nova's database, for an operator to read and execute: Nova has no API for it. Stop
the agent first. A host that is fenced, or has not shown since what it holds, stays.""",
        fields=(_REASON_TO_DO,),
        body="Passing",
        possible=_returnable,
        examples=(
            (
                "hv1 --dry-run -f json",
                "what Nova lacks, as SQL; exit code 10 if a server stays",
            ),
            ('hv1 --reason "it goes back"', "give back the servers that Nova shows right"),
        ),
    ),
)

BY_NAME = {act.name: act for act in ACTS}
