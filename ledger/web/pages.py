"""The pages of the console, as a table: where each is, and what it reads of the API.

A new page is a line here and a template.  It has nothing but answers of the API, so it shows
nobody more than the API does (decision 0061).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Rows of the tables on a page that has several, and of those that have only one.
FEW, MANY = "20", "100"
#: From when to when a time line is.
TIME = ("from", "to")


@dataclass(frozen=True, kw_only=True)
class Read:
    """An answer of the API's, of whatever the page's path names.

    `query`: what it is asked with, where `{name}` is of the path; `given`: what of the page's own
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

    `moves`: a part of it is made anew whenever something happens (the template's block "moving").
    `own`: what its query may have besides, which is the page's own affair.
    """

    name: str
    path: str
    reads: Mapping[str, Read]
    menu: str | None = None
    moves: bool = False
    own: tuple[str, ...] = ()

    @property
    def template(self) -> str:
        return f"{self.name}.html"

    @property
    def given(self) -> frozenset[str]:
        """What its query may have."""
        read = (name for read in self.reads.values() for name in read.given)
        return frozenset((*read, *self.own))


def _of(what: str, **more: str) -> dict[str, str]:
    return {what: f"{{{what}_id}}", "limit": FEW, **more}


def _history(route: str, *, needed: bool = False) -> Read:
    """The newest events first, by pages."""
    query = {"limit": MANY, "order": "desc"}
    return Read(route=route, query=query, given=("at", "after"), needed=needed)


PAGES = (
    Page(
        name="overview",
        path="/ui/",
        menu="Overview",
        moves=True,
        reads={
            "readiness": Read(route="ready"),
            "activity": Read(route="event_activity"),
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
        moves=True,
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
        moves=True,
        reads={
            "operation": Read(route="operation", needed=True),
            "history": _history("operation_history"),
        },
    ),
    Page(
        name="servers",
        path="/ui/servers",
        menu="Servers",
        reads={"servers": Read(route="servers_detail", query={"limit": MANY}, given=("marker",))},
    ),
    Page(
        name="server",
        path="/ui/servers/{server_id}",
        own=TIME,
        reads={
            "server": Read(route="server"),  # a deleted one has its history alone
            "attachments": Read(
                route="attachments", query={"open": "false", **_of("server", limit=MANY)}
            ),
            "operations": Read(route="operations", query=_of("server")),
            "drift": Read(route="drift", query=_of("server"), given=("at",)),
            "history": _history("server_history", needed=True),
        },
    ),
    Page(
        name="volume",
        path="/ui/volumes/{volume_id}",
        own=TIME,
        reads={
            "attachments": Read(
                route="attachments",
                query={"open": "false", **_of("volume", limit=MANY)},
                needed=True,
            ),
            "then": Read(route="attachments", query={"volume": "{volume_id}"}, given=("at",)),
            "operations": Read(route="operations", query=_of("volume")),
            "drift": Read(route="drift", query=_of("volume"), given=("at",)),
            "history": _history("volume_history"),
        },
    ),
    Page(
        name="attachment",
        path="/ui/attachments/{attachment_id}",
        reads={
            "attachment": Read(route="attachment", needed=True),
            "history": _history("attachment_history"),
        },
    ),
    Page(
        name="hosts",
        path="/ui/hosts",
        menu="Hosts",
        reads={"hosts": Read(route="hosts", needed=True)},
    ),
    Page(
        name="host",
        path="/ui/hosts/{host}",
        reads={
            "host": Read(route="host", needed=True),
            "attachments": Read(
                route="attachments", query={"host": "{host}", "limit": MANY}, given=("at",)
            ),
            "operations": Read(route="operations", query={"host": "{host}", "limit": FEW}),
            "drift": Read(route="drift", query={"host": "{host}", "limit": FEW}, given=("at",)),
            "history": _history("host_history"),
        },
    ),
    Page(
        name="drift",
        path="/ui/drift",
        menu="Drift",
        moves=True,
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
        reads={"finding": Read(route="drift_finding", needed=True)},
    ),
    Page(
        name="log",
        path="/ui/log",
        menu="Log",
        moves=True,
        reads={
            "checkpoint": Read(route="event_checkpoint", needed=True),
            "verification": Read(route="event_verification", needed=True),
            "events": Read(
                route="events",
                query={"limit": MANY, "order": "desc"},
                given=("after",),
                needed=True,
            ),
        },
    ),
    Page(
        name="flows",
        path="/ui/flows",
        menu="Flows",
        reads={"flows": Read(route="flows", needed=True)},
    ),
    Page(
        name="flow",
        path="/ui/flows/{name}",
        reads={"flow": Read(route="flow", needed=True)},
    ),
)
