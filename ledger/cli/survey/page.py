"""A survey as one page of HTML that needs nothing beside it: no script, no font, no request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any

from host_agent.shared.platform.text import visible
from ledger.cli.table import plain

if TYPE_CHECKING:
    from handlers.drift.beside_nova import Difference

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
article { border-left: 4px solid gray; padding: .2rem 1rem; margin: 1.2rem 0 }
article.critical { border-color: #c0392b } article.warning { border-color: #d68910 }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: .5rem 0 }
dt { opacity: .7 } dd { margin: 0; white-space: pre-line; overflow-wrap: anywhere }
pre { overflow-x: auto; padding: .5rem; border: 1px solid gray }
"""
_FIELDS = ("Volume", "Server", "Attachment", "Host", "Since", "Seen")


def page(
    found: Sequence[Difference],
    rows: Iterable[Mapping[str, Any]],
    now: datetime,
    unread: Sequence[str],
) -> str:
    """The whole page.  `rows`: of the findings, by the columns of the command."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Survey</title>\n'
        f"<style>{_STYLE}</style></head>\n<body>\n<h1>Survey, {now:%Y-%m-%d %H:%M:%S} UTC</h1>\n"
        f"{_summary(found, unread)}\n" + "\n".join(map(_article, rows)) + "\n</body></html>\n"
    )


def _summary(found: Sequence[Difference], unread: Sequence[str]) -> str:
    counts = Counter(each.kind.name for each in found)
    items = "".join(f"<li>{count} {_text(name)}</li>" for name, count in counts.items())
    missing = "".join(f"<li>not read: {_text(why)}</li>" for why in unread)
    return f"<ul>{items or '<li>Nothing differs.</li>'}{missing}</ul>"


def _article(row: Mapping[str, Any]) -> str:
    cells = {name: plain(value) for name, value in row.items()}
    command = f"<pre>{_text(cells['Command'])}</pre>" if cells["Command"] else ""
    return (
        f'<article class="{_text(cells["Severity"])}"><h2>{_text(cells["Class"])}</h2>'
        f"<p>{_text(cells['Meaning'])}</p><dl>{''.join(_fields(cells))}</dl>"
        f"{command}<p>{_text(cells['Why'])}</p></article>"
    )


def _fields(cells: dict[str, str]) -> Iterator[str]:
    for name in _FIELDS:
        if cells[name]:
            yield f"<dt>{name}</dt><dd>{_text(cells[name])}</dd>"


def _text(value: str) -> str:
    return escape(visible(value))
