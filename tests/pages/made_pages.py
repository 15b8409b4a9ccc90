"""Pages of docs that are partly made from the code: what is made stands between two marks."""

from __future__ import annotations

import re

#: Characters of a table's cell: a wider table has to be scrolled.
CELL_MAX = 200

BEGIN, END = "<!-- made by make docs -->", "<!-- until here -->"


def with_made(text: str, made: str) -> str:
    """The page with what is made as it is now; all else was written by hand and stays."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


def fitted(text: str) -> tuple[str, str]:
    """What of it fits into a cell, up to the end of a clause; and the rest."""
    ends = [each.end() for each in re.finditer(r"[.:;](?: |$)", text)]
    end = max((each for each in ends if each <= CELL_MAX - len(" ...")), default=0)
    return (text, "") if len(text) <= CELL_MAX else (f"{text[:end]}...", text[end:])
