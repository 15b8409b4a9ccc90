"""Pages of lists: how many items, and where the next one begins.

/v1 asks with `after` and answers with `next`; Nova's lists ask with `marker` and answer
with a link.  No page is larger than the settings say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from ledger.api.call import Call
from ledger.api.problem import ApiError
from ledger.api.versions import base

_DIGITS_MAX = 9


def page_limit(call: Call, asked: int | None) -> int:
    """The page size of /v1: what was asked for, within the settings."""
    limits = call.components.settings.limits
    return min(asked or limits.page_items_default, limits.page_items_max)


def nova_limit(call: Call) -> int:
    """The page size of Nova's lists: the query's `limit`, within the settings.  ApiError 400."""
    most = call.components.settings.limits.page_items_max
    return min(nova_number(call, "limit") or most, most)


def nova_number(call: Call, name: str) -> int:
    """A number of the query, else 0.  ApiError 400 as Nova has it."""
    text = call.request.query.get(name, "0")
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
        return int(text)
    raise ApiError(
        400,
        "invalid",
        f"Invalid input for query parameters {name}. Value: {text[:100]}. "
        f"'{text[:100]}' does not match '^[0-9]*$'",
    )


def next_page(call: Call, marker: object) -> list[Mapping[str, Any]]:
    """Nova's links to the page after this item: the same query with another marker."""
    given = [(name, text) for name, text in call.request.query.items() if name != "marker"]
    query = urlencode([*given, ("marker", str(marker))])
    return [{"rel": "next", "href": f"{base(call)}{call.request.path}?{query}"}]
