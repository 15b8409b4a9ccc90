"""The characters that a text may contain: valid in XML 1.0, and harmless on a terminal.

Names, tags, reasons and error messages come from tenants, agents and other programs.  They end in
domain XML, in lists, in log lines, and on an operator's terminal, which executes escape sequences;
and a bidirectional control makes one text look like another (CVE-2021-42574).  On input such
characters are refused, or escaped where a refusal would do more harm (one guest's odd name must not
prevent the registration of its host); on output they are always escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

#: No code point whose number ends in FFFE or FFFF is a character (Unicode 23.7; XML 1.0, 2.2).
_NO_CHARACTERS = "".join(
    f"{chr(plane | 0xFFFE)}{chr(plane | 0xFFFF)}" for plane in range(0, 0x110000, 0x10000)
)
_CONTROLS = (
    r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # C0 but tab and line ends, DEL, C1
    r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators, bidirectional controls
    r"\ud800-\udfff\ufdd0-\ufdef"  # surrogates, more that are no characters
)
_UNSHOWABLE = re.compile(f"[{_CONTROLS}{_NO_CHARACTERS}]")
_NOT_IN_A_LINE = re.compile(f"[{_CONTROLS}{_NO_CHARACTERS}\\t\\n\\r]")


def is_showable(text: str) -> bool:
    """Whether all characters can be stored and shown; the text may have several lines."""
    return _UNSHOWABLE.search(text) is None


def visible(text: str) -> str:
    """The text with unprintable characters escaped."""
    return _UNSHOWABLE.sub(_escaped, text)


def one_line(text: str) -> str:
    """As `visible`, with tabs and line ends escaped as well."""
    return _NOT_IN_A_LINE.sub(_escaped, text)


def escaped(text: str | None) -> str | None:
    """The same, of what may be missing."""
    return None if text is None else one_line(text)


def texts_in(data: Any) -> Iterator[str]:
    """Every text in decoded JSON, keys included."""
    left = [data]
    while left:
        match left.pop():
            case str(text):
                yield text
            case dict(items):
                left.extend(items.keys())
                left.extend(items.values())
            case list(items):
                left.extend(items)


def _escaped(match: re.Match[str]) -> str:
    r"""JSON's escape, `\u001b`, so that the value of a JSON text does not change."""
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
