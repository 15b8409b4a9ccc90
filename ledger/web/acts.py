"""What the console makes of an act (`ledger.words.acts`): where it is, what a form asks and sends.

An act has a page of its own: what it would do, in the words of the command line, and a form.  It is
done by its route, under that route's rules (decision 0073).  Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ledger.web.pages import Read
from ledger.words.acts import Act, FieldKind

#: Of the page's query: nobody is asked.
KEPT = {FieldKind.NAME, FieldKind.HOST, FieldKind.SERVER, FieldKind.VOLUME}


def page(act: Act) -> str:
    """Where it is."""
    return act.filled(act.of.page)


def links(act: Act) -> Mapping[str, str]:
    """By the page that offers it, where it is, with ids of its path (and `scope`: of what a finding
    has to be looked at again).
    """
    return act.of.offered or {act.of.seen: page(act)}


def reads(act: Act) -> dict[str, Read]:
    """What its page shows before."""
    return {act.of.seen: Read(route=act.of.read, needed=True)} if act.of.read else {}


def possible(act: Act, read: Mapping[str, Any]) -> bool:
    """By what was read; of what is shown by no route, no act that a route would show it for."""
    if act.of.seen not in read:
        return True
    thing = read[act.of.seen]
    return act.offered(thing) if thing or not act.of.read else False


def ids(act: Act, of_page: Mapping[str, str]) -> dict[str, str]:
    """Those of the route's path, which may call them otherwise than the page's."""
    names = zip(*(re.findall(r"{(\w+)}", path) for path in (act.path, page(act))), strict=True)
    return {name: of_page[own] for name, own in names}


def given(act: Act) -> frozenset[str]:
    """What the query of its page may have."""
    return frozenset(each.name for each in act.fields if each.kind in {*KEPT, FieldKind.STEP})


def body(act: Act, sent: Mapping[str, str]) -> dict[str, Any]:
    """What the route is sent for this form."""
    fields: dict[str, Any] = {}
    for each in act.fields:
        text = sent.get(each.name, "").strip()
        match each.kind:
            case FieldKind.APPLY:
                fields[each.name] = True
            case FieldKind.FLAG:
                fields[each.name] = bool(text)
            case FieldKind.CLASSES:
                fields[each.name] = [word for part in text.split(",") if (word := part.strip())]
            case FieldKind.LANE:
                pass
            case FieldKind.STEP:
                lane, _, step = text.partition(" ")
                number = int(lane) if re.fullmatch(r"-?\d{1,9}", lane) else 0
                fields |= {"lane": number, "step": step}
            case _ if text or each.needed:
                fields[each.name] = text
    return {act.name: fields} if act.of.wraps else fields
