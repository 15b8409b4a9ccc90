"""`drift list|show|classes`: what ledger, Cinder and hosts say differently."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from ledger.cli.base import Lister, ShowOne, add_at, add_limit, clock, listed, said
from ledger.cli.naming import add_filters
from ledger.cli.table import plain
from ledger.words.acts import BY_NAME
from ledger.words.consequences import second_look
from ledger.words.sentences import left_text

Finding = dict[str, Any]

STATES = ("open", "suspected", "confirmed", "ignored", "over", "all")
CLASS_COLUMNS: dict[str, Any] = {
    "Class": "name",
    "Of": "subject",
    "Severity": "severity",
    "Repair": lambda each: each["repair"] or "(by hand)",
    "Compares": lambda each: ", ".join(each["compares"]),
    "Meaning": "meaning",
    "By hand": "by_hand",
}


class ListDrift(Lister):
    """List findings, newest first: the open ones, or those of a past moment."""

    every_cell = True
    brief = ("ID", "Class", "Severity", "State", "About", "Found")
    empty = "No open findings."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--class", dest="drift_class", metavar="NAME", help="see 'drift classes'")
        add("--severity", choices=("critical", "warning", "info"))
        add_filters(parser, "server", "volume", "host")
        when = parser.add_mutually_exclusive_group()
        when.add_argument("--state", choices=STATES, help="open: suspected or confirmed (default)")
        when.add_argument(
            "--all", dest="state", action="store_const", const="all", help="in any state"
        )
        add_at(when, "the findings of that time, also ignored ones")
        add_limit(parser, "so many at most")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        asked = said(parsed_args, "severity", "server", "volume", "host", "state", "at")
        asked["class"] = parsed_args.drift_class
        found = self.client.items("/v1/drift", "findings", parsed_args.limit, **asked)
        return listed(COLUMNS, found)


class ShowFinding(ShowOne):
    """Show a finding: what it means, what each party says, what to do, and its history."""

    about = "finding"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        return shown(self.client.get(f"/v1/drift/{parsed_args.id}"))


class ListDriftClasses(Lister):
    """List the classes of drift; --long, or -c Class -c Meaning, shows what each means."""

    brief = ("Class", "Of", "Severity", "Repair")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        return listed(CLASS_COLUMNS, self.client.get("/v1/drift/classes")["classes"])


# ------------------------------------------------------------------------------- in words


def shown(finding: Finding) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """One finding, from the answer that has its history."""
    from ledger.cli.operations.plan import Lines

    fields = {
        "id": finding["finding_id"],
        "class": finding["drift_class"],
        "severity": finding["severity"],
        "state": finding["state"],
        "meaning": finding["meaning"],
        "subject": f"{finding['subject']} {finding['key']}",
        "server": finding["server_id"],
        "volume": finding["volume_id"],
        "attachment": finding["attachment_id"],
        "host": finding["host"],
        "differs": Lines(finding["differs"], said_by(finding["differs"] or {})),
        "found": clock(finding["found_at"]),
        "times": finding["times"],
        "confirmed": clock(finding["confirmed_at"]),
        "over": " ".join(filter(None, (clock(finding["over_at"]), finding["over_how"]))),
        "ignored": _ignored(finding),
        "repair": finding["repair"],
        "repairing": finding["repairing"],
        "repaired by": finding["repaired_by"],
        "by hand": finding["by_hand"],
        "history": Lines(finding["history"], _history(finding["history"])),
        "next": Lines(finding["acts"], next_commands(finding)),
    }
    always = ("differs", "history", "next")
    filled = {name: value for name, value in fields.items() if value or name in always}
    return tuple(filled), tuple(filled.values())


def next_commands(finding: Finding) -> Iterator[str]:
    """What may be done about it now, ready to be copied."""
    for kind, which in second_look(finding).items():
        yield f"attachment-ledger drift run --{kind} {which} --wait"
        yield "    looks again: what a second look sees is confirmed, and may be repaired"
    for act in finding["acts"]:
        if act == "operation":
            yield f"attachment-ledger operation show {finding['finding_id']}"
        elif act in BY_NAME:
            yield BY_NAME[act].typed(finding["finding_id"])
        if act == "repair":
            yield "    shows what it would do; with --apply it does it"


def _about(finding: Finding) -> str:
    """The host; else what has been told of it."""
    if finding["host"]:
        return f"host {finding['host']}"
    for name in ("server", "volume"):
        if finding[f"{name}_id"]:
            return f"{name} {finding[f'{name}_id']}"
    return f"{finding['subject']} {finding['key']}"


COLUMNS: dict[str, Any] = {
    "ID": "finding_id",
    "Class": "drift_class",
    "Severity": "severity",
    "State": "state",
    "About": _about,
    "Subject": "subject",
    "Key": "key",
    "Server": "server_id",
    "Volume": "volume_id",
    "Host": "host",
    "Found": "found_at",
    "Times": "times",
    "Over": "over_at",
    "Repair": "repair",
}


def said_by(differs: dict[str, Any]) -> Iterator[str]:
    """What each party says, a line each."""
    for party, says in differs.items():
        if isinstance(says, dict):
            text = ", ".join(f"{name} {_text(value)}" for name, value in says.items())
        else:
            text = "has no such thing" if says is None else _text(says)
        yield f"{party}: {text}"


def _text(value: Any) -> str:
    if isinstance(value, list) and all(map(_is_step, value)):
        return ", ".join(map(left_text, value))
    return "-" if value is None else plain(value)


def _is_step(value: Any) -> bool:
    return isinstance(value, dict) and "step" in value


def _ignored(finding: Finding) -> str:
    if finding["state"] != "ignored":
        return ""
    until = finding["ignored_until"]
    end = f"until {clock(until)}" if until else "for good"
    return f"{end}: {finding['ignored_reason']}"


def _history(events: list[dict[str, Any]]) -> Iterator[str]:
    from ledger.words.sentences import sentence

    for event in events:
        what = sentence(event["topic"], event["body"], host=event["host"])
        yield f"{clock(event['recorded_at'])}  {event['actor'] or '-'}  {what}"
