"""What a look suppressed, in words: how many, some of them, and what to type.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def held_back(look: Mapping[str, Any]) -> list[str]:
    """A text for each class that was braked, as `look` has it (GET /v1/drift/runs/{id})."""
    return [_of_class(look, name, count) for name, count in sorted((look["braked"] or {}).items())]


def _of_class(look: Mapping[str, Any], name: str, count: int) -> str:
    scope = "".join(f" --{kind} {which}" for kind, which in look["scope"].items())
    some = (look["examples"] or {}).get(name, [])
    named = f" ({', '.join(some)}{', ...' if count > len(some) else ''})" if some else ""
    return (
        f"{name}: {count} new findings are suppressed, too many for one look to be believed"
        f"{named}. Find out why there are so many. Only if they are true: "
        f"attachment-ledger drift run{scope} --accept-many {name} --reason TEXT"
    )
