"""Access rules of application credentials: which requests a restricted one may make.

Keystone only keeps them; the services enforce them (Keystone's API guide, "Application
Credentials", access rules).  The meaning is keystonemiddleware's: a method, the type of the
service as the catalog has it, and a path as the client sends it, in which `*` and `{name}` stand
for one segment or a part of it, and `**` for anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

#: What the catalog calls the two roots of the API.
_OWN_TYPE, _NOVAS_TYPE = "attachment-ledger", "compute"

#: `*` comes after `**`, which it begins.
_PIECE = re.compile(r"(?P<any>\*\*)|(?P<one>\*|\{[^}]*\})|(?P<literal>[^*{]+|\{)")


@dataclass(frozen=True)
class AccessRule:
    service: str
    method: str
    path: str


def allow(rules: Iterable[AccessRule], method: str, path: str) -> bool:
    """Whether one of the rules is of this request."""
    service = _OWN_TYPE if path.startswith("/v1/") else _NOVAS_TYPE
    return any(
        rule.service == service and rule.method == method and fits(rule.path, path)
        for rule in rules
    )


def fits(pattern: str, path: str) -> bool:
    """Whether the path is one of the pattern's.

    Patterns are users', so it is no regular expression: those can take exponential time.  Here the
    places to which the pattern's pieces so far may reach are known all at once.
    """
    places = {0}
    for piece in _PIECE.finditer(pattern):
        if not places:
            return False
        if piece["any"]:
            places = set(range(min(places), len(path) + 1))
        elif piece["one"]:
            places = _within_a_segment(places, path)
        else:
            literal = piece["literal"]
            places = {at + len(literal) for at in places if path.startswith(literal, at)}
    return len(path) in places


def _within_a_segment(places: set[int], path: str) -> set[int]:
    """Where one character or more, and no slash, may end that begin at these places."""
    found: set[int] = set()
    for at in sorted(places):
        end = path.find("/", at)
        end = len(path) if end < 0 else end
        if end not in found:  # else an earlier place of this segment has them all
            found.update(range(at + 1, end + 1))
    return found
