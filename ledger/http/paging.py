"""Pages of lists: how many items, and where the next one begins.

/v1 asks with `after` and answers with `next`; Nova's lists ask with `marker` and answer
with a link.  No page is larger than the settings say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

from ledger.http.call import Call
from ledger.http.problem import ApiError
from ledger.http.versions import base

_DIGITS_MAX = 9

T = TypeVar("T")


def page_limit(call: Call, asked: int | None) -> int:
    """The page size of /v1: what was asked for, within the settings."""
    limits = call.components.settings.limits
    return min(asked or limits.page_items_default, limits.page_items_max)


def nova_limit(call: Call) -> int:
    """The page size of Nova's lists: the query's `limit`, within the settings; 0 is a page without
    items, as in `get_limit_and_marker` of Nova.  ApiError 400.
    """
    most = call.components.settings.limits.page_items_max
    return min(nova_number(call, "limit", most), most)


def page_of(rows: list[T], limit: int) -> tuple[list[T], bool]:
    """So many of them, and whether a page follows: after an empty one there is no going on."""
    return rows[:limit], 0 < limit < len(rows)


def nova_number(call: Call, name: str, otherwise: int) -> int:
    """A number of the query.  ApiError 400 as Nova has it."""
    text = call.request.query.get(name, str(otherwise))
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


def no_marker(marker: str) -> ApiError:
    """Of Nova's lists: there is no such item, or none for the caller."""
    return ApiError(400, "marker_not_found", f"Marker {marker[:100]} could not be found.")
