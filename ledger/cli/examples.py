"""Examples of command lines: the one source of those in `--help` and of those in docs/cli.md.

`python -m ledger.cli.examples FILE` (`make docs`) writes them between the marks of the page; a
test holds that the page is current, another that each can be typed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

BEGIN, END = "<!-- made by make docs -->", "<!-- until here -->"
PROGRAM = "attachment-ledger"

#: By command: what is typed behind it, and what for.
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "operation list": (
        ("--parked", "what needs a person"),
        ("--server db-1 --long", "what was done to one server, in all columns"),
        ("--parked -f value -c ID", "whole ids, for a script"),
    ),
    "operation show": (("44e1", "one operation, by the beginning of its id"),),
    "operation retry": (
        ('44e1 --reason "the array is back" --wait', "try again, and wait for the end"),
    ),
    "operation skip": (
        ('44e1 disconnect --reason "the host is gone" --dry-run', "what that would leave behind"),
    ),
    "operation unwind": (('44e1 --reason "not needed any more" --dry-run', "what it would undo"),),
    "operation give-up": (('44e1 --reason "the volume is lost"', "end it as it is"),),
    "top": (("", "watch what is under way, parked first"), ("--once", "one screen, for a script")),
    "history volume": (
        ("63383fde", "all that happened to a volume"),
        ("63383fde --at 2026-11-17T14:02", "what had happened until then"),
    ),
    "attachment list": (
        ("--server db-1", "what a server has"),
        ("--host hv1 --at 2026-11-17T14:02", "what was on a host at a moment"),
    ),
    "volume list": (("--host hv1", "the volumes that a host holds, and for which servers"),),
    "server add volume": (("db-1 63383fde-248a-4caa-bcc5-35766d9c8d28 --wait", "attach"),),
    "server remove volume": (("db-1 63383fde --wait", "detach"),),
    "server migrate": (("db-1 --live-migration --host hv2 --wait", "while the guest runs"),),
    "server evacuate": (("db-1 --wait", "its own host has been fenced"),),
    "host fence": (
        ('hv1 --reason "no answer" --evidence "powered off by IPMI"', "shut a dead host out"),
    ),
    "drift list": (("--severity critical", "what differs, the worst of it"),),
    "drift repair": (
        ('9f2c --reason "Cinder is right"', "show what would mend it"),
        ('9f2c --reason "Cinder is right" --apply --wait', "mend it"),
    ),
    "serve": (
        ("--config ledger.toml", "the service, on the database that the settings name"),
        ("--trial", "a service whose database is gone at the end"),
    ),
}


def lines(command: str, prompt: str = "") -> Iterator[str]:
    """What can be typed, each below what for."""
    for typed, what in EXAMPLES.get(command, ()):
        yield f"# {what}"
        yield f"{prompt}{PROGRAM} {command} {typed}".rstrip()


def text() -> str:
    """All of them, as a block of a document."""
    shown = (line for command in EXAMPLES for line in lines(command, "$ "))
    return "\n".join(["```console", *shown, "```"])


def page(document: str) -> str:
    """The document with the examples as they are now."""
    before, _, rest = document.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{text()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text()))
