"""Pages of docs that are partly made from the code: what is made stands between two marks."""

from __future__ import annotations

BEGIN, END = "<!-- made by make docs -->", "<!-- until here -->"


def with_made(text: str, made: str) -> str:
    """The page with what is made as it is now; all else was written by hand and stays."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"
