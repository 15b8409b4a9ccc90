"""docs/policy.md's tables, and docs/policy.yaml.sample: the rules, as the code has them.

`python -m tests.pages.policy_page PAGE SAMPLE` (`make docs`) writes them; a test checks that they
are current.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from ledger.auth.rules import OURS, RULES
from ledger.http.routes import ROUTES
from ledger.nova.servers.actions import ACTIONS
from ledger.web import console

#: Between these lines of the page is what is made here.
_BEGIN, _END = "<!-- rules: begin -->", "<!-- rules: end -->"

#: Requests that the table names under a rule.
REQUESTS_MAX = 3

_HEAD = """\
# The rules of the attachment ledger, and who may by default: made from the code by `make docs`.
# Take out the mark of a comment where yours is another, and name the file in the settings:
#   [policy]
#   file = "/etc/attachment-ledger/policy.yaml"
# Rules with Nova's names mean what they mean there; docs/policy.md says more.
"""


def page(before: str) -> str:
    """The page with its tables made anew."""
    head, _, rest = before.partition(_BEGIN)
    tail = rest.partition(_END)[2]
    return f"{head}{_BEGIN}\n{_tables()}\n{_END}{tail}"


def sample() -> str:
    """A policy file that changes nothing."""
    used = _used()
    parts = [_HEAD]
    for rule in RULES:
        what = textwrap.fill(rule.what, 95, initial_indent="# ", subsequent_indent="# ")
        requests = [f"#   {request}" for request in used.get(rule.name, [])]
        older = f"# without it: what the file has as {rule.formerly}" if rule.formerly else None
        lines = [what, *requests, *filter(None, [older]), f'#"{rule.name}": "{rule.check}"']
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _tables() -> str:
    used = _used()
    lines: list[str] = []
    for kind in ("Personas, to which the others refer", "Nova's", "Our own"):
        lines += [f"### {kind}", "", "| rule | default | what it is of |", "|---|---|---|"]
        for rule in RULES:
            if _kind(rule.name) == kind:
                requests = "".join(f"<br>{request}" for request in _few(used.get(rule.name, [])))
                lines.append(f"| `{rule.name}` | `{rule.check}` | {rule.what}{requests} |")
        lines.append("")
    return "\n".join(lines)


def _few(requests: list[str]) -> list[str]:
    """As many as fit beside what a rule is of; the sample names them all."""
    shown = [f"`{request}`" for request in requests]
    more = len(shown) - REQUESTS_MAX
    return [*shown[:REQUESTS_MAX], f"and {more} more"] if more > 1 else shown


def _kind(name: str) -> str:
    if name.startswith(OURS):
        return "Our own"
    return "Nova's" if ":" in name else "Personas, to which the others refer"


def _used() -> dict[str, list[str]]:
    """The requests under each rule."""
    found: dict[str, list[str]] = {}
    for rule, request in _requests():
        found.setdefault(rule, []).append(request)
    return found


def _requests() -> Iterator[tuple[str, str]]:
    for route in (*ROUTES, *console.ROUTES):
        if route.name == "server_action":
            for name, action in ACTIONS.items():
                yield action.rule, f"{route.method} {route.path} ({name})"
                if action.host_rule:
                    yield action.host_rule, f"{route.method} {route.path} ({name})"
        else:
            for rule in route.rules:
                yield rule, f"{route.method} {route.path}"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(page(file.read_text()))
    Path(sys.argv[2]).write_text(sample())
