"""The calls that a fault rule can name, of the simulated Cinder and of a simulated host.

A test compares them with the routes and the adapters, and with the tables in the docs.
"""

from __future__ import annotations

CINDER_CALLS = frozenset(
    {f"attachment_{what}" for what in ("create", "update", "complete", "delete", "show", "list")}
    | {f"volume_{what}" for what in ("create", "action", "encryption", "delete", "show", "list")}
    | {f"snapshot_{what}" for what in ("create", "action", "show", "list")}
    | {f"backup_{what}" for what in ("create", "list", "restore")}
)
_OF_GUESTS = (
    *("inventory", "survey", "secrets", "power", "disk", "plug", "unplug", "replace"),
    *("keep_secret", "drop_secret", "spawn", "start", "stop", "pause", "resume", "remove"),
    *("migrate", "stay", "arrived", "copy", "stay_on", "grow"),
    *("snapshot", "unsnapshot", "merge", "end_merge"),
)
HOST_CALLS = frozenset(
    {f"brick.{what}" for what in ("connector", "connect", "format_luks", "extend", "disconnect")}
    | {f"guests.{what}" for what in _OF_GUESTS}
    | {"storage.look"}
)
CALLS = CINDER_CALLS | HOST_CALLS
#: The calls that return a list; and those that can return an older state.
LISTS = frozenset(
    {"volume_list", "attachment_list", "snapshot_list", "backup_list", "storage.look"}
    | {f"guests.{what}" for what in ("inventory", "survey", "secrets")}
)
READS = LISTS | {"volume_show", "attachment_show", "snapshot_show"}
