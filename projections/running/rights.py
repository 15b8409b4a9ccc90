"""The privileges of two database roles, the service's and an auditor's: the least that each needs.

Upgrades, archives and rebuilds run as the owner of the tables.
"""

from __future__ import annotations

from enum import StrEnum

from projections.catalog import ALL


class RoleKind(StrEnum):
    """What a role is for."""

    SERVICE = "service"
    AUDITOR = "auditor"


_SERVICE = {
    "schema_migrations": "SELECT",
    "events": "SELECT, INSERT",
    "log_head": "SELECT, UPDATE",
    "detached_months": "SELECT",
    "tracking": "SELECT, INSERT, UPDATE",
    "leases": "SELECT, INSERT, UPDATE, DELETE",
    "host_contact": "SELECT, INSERT, UPDATE",
    "progress": "SELECT, INSERT, UPDATE",
    "persons": "SELECT, INSERT",  # only the owner erases
    "refusals": "SELECT, INSERT, DELETE",
    "surveys": "SELECT, INSERT, UPDATE",
    "looks_asked": "SELECT, INSERT, UPDATE, DELETE",
    "look_cases": "SELECT, INSERT, DELETE",
    "long_work": "SELECT, INSERT, UPDATE, DELETE",
    "drift": "SELECT",
}
_OF_A_PROJECTION = "SELECT, INSERT, UPDATE, DELETE"
_VIEWS = ("attachments", "spans", "operations", "steps", "archived_months", "findings")
_AUDITOR = {"event_log": "SELECT", **{f"audit.{view}": "SELECT" for view in _VIEWS}}
SCHEMAS = {RoleKind.SERVICE: ("public",), RoleKind.AUDITOR: ("public", "audit")}


def rights(kind: RoleKind) -> list[tuple[str, str]]:
    """Pairs of a relation and a privilege that such a role needs."""
    named = dict(_AUDITOR)
    if kind is RoleKind.SERVICE:
        tables = [name for p in ALL for name in (p.table, *(d.table for d in p.derived))]
        named = {**_SERVICE, **dict.fromkeys(tables, _OF_A_PROJECTION)}
    return [(name, right) for name, some in named.items() for right in some.split(", ")]
