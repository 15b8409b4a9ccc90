"""`drift look|looks`: how looks for drift are, and what acts on them print."""

from __future__ import annotations

import argparse
import time
from typing import Any

from ledger.cli.base import (
    ErrorReporting,
    Lister,
    ShowOne,
    add_limit,
    clock,
    columns,
    complain,
    listed,
    note,
)
from ledger.cli.errors import ExitCode

Look = dict[str, Any]

#: Between two questions how far a look is: the service holds no request until one has ended.
ASKED_INTERVAL_S = 1.0


class ListLooks(Lister):
    """List looks, newest first: what each compared, and its result.

    Requested looks that have not begun come first.
    """

    every_cell = True
    brief = ("ID", "Of", "Why", "State", "Found", "Began")
    empty = "No looks."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--state", choices=("asked", "under_way", "stopped", "ended"))
        add_limit(parser, "so many at most")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        found = self._found(parsed_args.state, parsed_args.limit)
        _say(next((look for look in found if look["held_back"]), None))
        return listed(COLUMNS, found)

    def _found(self, state: str | None, limit: int) -> list[Look]:
        """As many as there may be; the answer has those that are asked for beside any others."""
        begun = None if state == "asked" else state
        pages = list(self.client.pages("/v1/drift/runs", "looks", limit, state=begun))
        asked = pages[0]["asked"] if state in {None, "asked"} else []
        looks = [look for page in pages if state != "asked" for look in page["looks"]]
        known = {look["look_id"] for look in looks}
        return [*(look for look in asked if look["look_id"] not in known), *looks][:limit]


class ShowLook(ShowOne):
    """Show a look: its progress, what it compared, found, suppressed, and could not read."""

    about = "look"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        return shown(self.client.get(f"/v1/drift/runs/{parsed_args.id}"))


def asked(command: ErrorReporting, arguments: argparse.Namespace, look: Look) -> tuple[Any, Any]:
    """A look that is asked for, or (`--wait`) as it has ended."""
    if not arguments.wait:
        note("It begins soon; see: attachment-ledger drift looks")
        return columns(look)
    return shown(_waited(command, look["look_id"], arguments.timeout))


def _waited(command: ErrorReporting, look_id: str, timeout_s: float) -> Look:
    """The look when it has ended; the exit code says how."""
    from ledger.cli.operations import waiting

    def look(hold_s: float) -> Look:
        time.sleep(min(hold_s, ASKED_INTERVAL_S))
        answer: Look = command.client.get(f"/v1/drift/runs/{look_id}")
        return answer

    seen = waiting.until(look, _is_over, progress, timeout_s)
    if not _is_over(seen):
        command.exit_code = ExitCode.TIMED_OUT
        complain(
            f"look {look_id} has not ended after {timeout_s:g} s; it goes on.",
            "See how far it is: attachment-ledger drift looks",
        )
    elif seen["state"] == "stopped":
        command.exit_code = ExitCode.OPERATION_FAILED
        complain(
            f"look {look_id} is stopped at {share(seen)}.",
            f"Have it go on: attachment-ledger drift resume {look_id} --reason TEXT",
        )
    elif seen["outcome"] != "completed":
        command.exit_code = ExitCode.OPERATION_FAILED
        complain(f"look {look_id} is {seen['outcome']}: {seen['trouble'] or 'no reason told'}")
    else:
        _say(seen)
        note("See what differs: attachment-ledger drift list")
    return seen


# ------------------------------------------------------------------------------- in words


def shown(look: Look) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """One look, as the API shows it."""
    from ledger.cli.operations.plan import Lines

    names = ("compared", "found", "unknown", "braked", "examples")
    counts = {name: look[name] or {} for name in names}
    lines = {
        name: Lines(look[name], [f"{key}: {_plain(value)}" for key, value in count.items()])
        for name, count in counts.items()
    }
    texts = {name: Lines(look[name], look[name]) for name in ("believe", "held_back")}
    fields = {**look, "scope": scope_of(look), **lines, **texts}
    return tuple(fields), tuple(fields.values())


def _plain(value: Any) -> Any:
    return ", ".join(value) if isinstance(value, list) else value


def _say(look: Look | None) -> None:
    """What it suppressed, and what to type."""
    for text in look["held_back"] if look else ():
        note(text)


def scope_of(look: Look) -> str:
    """What it is at, in words."""
    return ", ".join(f"{kind} {which}" for kind, which in look["scope"].items()) or "everything"


def standing(look: Look) -> str:
    """Its state; how far it is, or how it ended."""
    if look["state"] == "asked":
        return "asked for"
    if look["state"] == "ended":
        return str(look["outcome"])
    if look["state"] == "stopped":
        return f"stopped at {share(look)}"
    if not look["total"]:
        return "under way"
    eta = f", {look['eta_s']:.0f} s left" if look["eta_s"] is not None else ""
    return f"{share(look)}{eta}"


COLUMNS: dict[str, Any] = {
    "ID": "look_id",
    "Of": scope_of,
    "Why": "why",
    "State": standing,
    "Found": lambda look: sum((look["found"] or {}).values()),
    "Suppressed": lambda look: sum((look["braked"] or {}).values()),
    # Volumes are among what is unknown, too.
    "Unknown hosts": lambda look: sum(" " not in name for name in look["unknown"] or {}),
    "Began": lambda look: clock(look["began_at"]),
    "Ended": lambda look: clock(look["ended_at"]),
}


def share(look: Look) -> str:
    """How much of it is done."""
    return f"{look['done'] / look['total']:.0%}" if look["total"] else "its beginning"


def progress(look: Look) -> str:
    """One line while it is waited for."""
    if look["state"] == "asked":
        return f"look at {scope_of(look)}: asked for, and not begun"
    return f"look at {scope_of(look)}: {standing(look)}"


def _is_over(look: Look) -> bool:
    return look["state"] in {"stopped", "ended"}
