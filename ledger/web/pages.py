"""The pages of the console, as a table: the path of each, and what it reads from the API.

A new page is a line here and a template.  It gets only answers of the API, so it shows a user no
more than the API does (decision 0061).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

#: Rows of the tables on a page that has several, and of those that have only one.
FEW, MANY = "20", "100"
#: A moment, and when it was known what was so then; where there is none, the second is not asked.
AS_OF = ("at", "known_at")
#: From when to when a time line is.
TIME = ("from", "to")
#: Of pages that move: what many look at alike is shown at once; of a single thing, which each
#: reader has another one of, a page asks five times as much, and so five times as rarely.
AT_ONCE, CALMLY = 1, 5


@dataclass(frozen=True, kw_only=True)
class Read:
    """An answer of the API's, of whatever the page's path names.

    `query`: what it is asked with, where `{name}` is of the path, of an answer that was read before
    (`{attachment[volume_id]}`), or of the part of the time line that is shown (`{since}`,
    `{until}`; empty: without end); what is empty is not asked.  `given`: what of the page's own
    query.  What is not `needed` may not exist for the caller, or be closed to its role: then the
    page is shown without it.
    """

    route: str
    query: Mapping[str, str] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    needed: bool = False


@dataclass(frozen=True, kw_only=True)
class Page:
    """`menu`: what the menu calls it; None: it is reached by links.

    `moves`: a part of it is made anew whenever something happens (the template's block "moving"),
    at most once in so many pauses (ledger.web.live); 0: nothing can happen to it.  `own`: what its
    query may have besides, which is the page's own affair.  `line`: how much of its time line is
    shown where nobody asks for a part; None: all of it.
    """

    name: str
    path: str
    reads: Mapping[str, Read]
    menu: str | None = None
    moves: int = AT_ONCE
    own: tuple[str, ...] = ()
    line: timedelta | None = None

    @property
    def template(self) -> str:
        return f"{self.name}.html"

    @property
    def as_of(self) -> bool:
        """Whether anything on it is told as of a moment."""
        return any("at" in read.given for read in self.reads.values())

    @property
    def given(self) -> frozenset[str]:
        """What its query may have."""
        read = (name for read in self.reads.values() for name in read.given)
        return frozenset((*read, *self.own))


def _of(what: str, **more: str) -> dict[str, str]:
    name = what if what == "host" else f"{what}_id"
    return {what: f"{{{name}}}", "limit": FEW, **more}


def _attachments(*more: str) -> Read:
    """All of them, the newest first, by pages."""
    given = ("flow", "host", "server", "volume", "after", *more)
    query = {"limit": MANY, "order": "desc"}
    return Read(route="attachments", query=query, given=given, needed=True)


def _ever(what: str) -> Read:
    """All attachments it had, the newest."""
    return Read(
        route="attachments",
        query={"open": "false", "order": "desc", **_of(what, limit=MANY)},
        needed=what == "volume",
    )


def _marks(what: str) -> Read:
    """The operations on a time line: the newest that had begun at its end."""
    return Read(route="operations", query={**_of(what, limit=MANY), "at": "{until}"})


def _servers(**more: str) -> Read:
    return Read(route="servers_detail", query={"limit": MANY, **more}, given=("marker",))


def _history(route: str, *, needed: bool = False) -> Read:
    """The newest events first, by pages."""
    query = {"limit": MANY, "order": "desc"}
    return Read(route=route, query=query, given=(*AS_OF, "after"), needed=needed)


PAGES = (
    Page(
        name="overview",
        path="/ui/",
        menu="Overview",
        reads={
            "readiness": Read(route="ready"),
            "activity": Read(route="event_activity", given=("period",)),
            "parked": Read(route="operations", query={"state": "parked", "limit": FEW}),
            "running": Read(route="operations", query={"state": "running", "limit": FEW}),
            "drift": Read(route="drift", query={"limit": FEW}),
            "remnants": Read(route="remnants", query={"limit": FEW}),
            "hosts": Read(route="hosts"),
        },
    ),
    Page(
        name="operations",
        path="/ui/operations",
        menu="Operations",
        reads={
            "operations": Read(
                route="operations",
                query={"limit": MANY},
                given=("state", "flow", "server", "volume", "host", "after"),
                needed=True,
            )
        },
    ),
    Page(
        name="operation",
        path="/ui/operations/{operation_id}",
        reads={
            "operation": Read(route="operation", given=("at",), needed=True),
            "history": _history("operation_history"),
        },
    ),
    Page(
        name="volumes",
        path="/ui/volumes",
        menu="Volumes",
        reads={"attachments": _attachments()},
    ),
    Page(
        name="attachments",
        path="/ui/attachments",
        menu="Attachments",
        reads={"attachments": _attachments("open")},
    ),
    Page(
        name="servers",
        path="/ui/servers",
        menu="Servers",
        reads={"everybodys": _servers(all_tenants="true"), "own": _servers()},
    ),
    Page(
        name="server",
        path="/ui/servers/{server_id}",
        moves=CALMLY,
        own=TIME,
        reads={
            "server": Read(route="server"),  # a deleted one has its history alone
            "attachments": _ever("server"),
            "marks": _marks("server"),
            "operations": Read(route="operations", query=_of("server"), given=("at",)),
            "drift": Read(route="drift", query=_of("server"), given=("at",)),
            "history": _history("server_history", needed=True),
        },
    ),
    Page(
        name="volume",
        path="/ui/volumes/{volume_id}",
        moves=CALMLY,
        own=TIME,
        reads={
            "attachments": _ever("volume"),
            "then": Read(route="attachments", query={"volume": "{volume_id}"}, given=AS_OF),
            "marks": _marks("volume"),
            "operations": Read(route="operations", query=_of("volume"), given=("at",)),
            "drift": Read(route="drift", query=_of("volume"), given=("at",)),
            "history": _history("volume_history"),
        },
    ),
    Page(
        name="attachment",
        path="/ui/attachments/{attachment_id}",
        moves=CALMLY,
        own=TIME,
        reads={
            "attachment": Read(route="attachment", needed=True),
            "then": Read(
                route="attachments", query={"volume": "{attachment[volume_id]}"}, given=AS_OF
            ),
            "spans": Read(
                route="attachments",
                query={
                    "volume": "{attachment[volume_id]}",
                    "since": "{attachment[created_at]}",
                    "limit": MANY,
                },
            ),
            "marks": Read(
                route="operations",
                query={"volume": "{attachment[volume_id]}", "at": "{until}", "limit": MANY},
            ),
            "drift": Read(
                route="drift",
                query={"volume": "{attachment[volume_id]}", "limit": FEW},
                given=("at",),
            ),
            "history": _history("attachment_history"),
        },
    ),
    Page(
        name="hosts",
        path="/ui/hosts",
        menu="Hosts",
        reads={"hosts": Read(route="hosts", query={"observed": "true"}, needed=True)},
    ),
    Page(
        name="host",
        path="/ui/hosts/{host}",
        moves=CALMLY,
        own=TIME,
        line=timedelta(days=1),
        reads={
            "host": Read(route="host"),  # of one of Nova's, nothing
            "attachments": Read(
                route="attachments", query={"host": "{host}", "limit": MANY}, given=AS_OF
            ),
            "spans": Read(
                route="attachments",
                query={"host": "{host}", "since": "{since}", "at": "{until}", "limit": MANY},
            ),
            "marks": _marks("host"),
            "operations": Read(route="operations", query=_of("host"), given=("at",)),
            "drift": Read(route="drift", query=_of("host"), given=("at",)),
            "history": _history("host_history", needed=True),
        },
    ),
    Page(
        name="drift",
        path="/ui/drift",
        menu="Drift",
        reads={
            "drift": Read(
                route="drift",
                query={"limit": MANY},
                given=("class", "severity", "state", "host", "server", "volume", "at", "after"),
                needed=True,
            ),
            "looks": Read(route="drift_runs", query={"limit": "5"}),
        },
    ),
    Page(
        name="finding",
        path="/ui/drift/{finding_id}",
        moves=CALMLY,
        reads={"finding": Read(route="drift_finding", given=("at",), needed=True)},
    ),
    Page(
        name="look",
        path="/ui/looks/{look_id}",
        reads={"look": Read(route="drift_run", needed=True)},
    ),
    Page(
        name="request",
        path="/ui/requests/{refused_id}",
        moves=0,
        reads={"request": Read(route="request", needed=True)},
    ),
    Page(
        name="log",
        path="/ui/log",
        menu="Log",
        reads={
            "checkpoint": Read(route="event_checkpoint", needed=True),
            "verification": Read(route="event_verification", needed=True),
            "events": Read(
                route="events",
                query={"limit": MANY, "order": "desc"},
                given=("after", "topic", "at"),
                needed=True,
            ),
        },
    ),
    Page(
        name="flows",
        path="/ui/flows",
        menu="Flows",
        moves=0,
        reads={"flows": Read(route="flows", needed=True)},
    ),
    Page(
        name="flow",
        path="/ui/flows/{name}",
        moves=0,
        reads={"flow": Read(route="flow", needed=True)},
    ),
)
