"""Commands as a page of docs prints them, so that a wrong one fails whoever runs it."""

from __future__ import annotations

import re

from tests.stack import ROOT


def printed(page: str, begins: str, **names: str) -> str:
    """The one command there that begins so, in a block or in a sentence, with its lines; of its
    words each of `names` is another, and is there.
    """
    text = (ROOT / "docs" / page).read_text()
    begin = re.escape(begins)
    blocks = re.findall(rf"^ *\$ ({begin}.*?)\n *(?:\$ |```)", text, re.MULTILINE | re.DOTALL)
    [found] = {*blocks, *re.findall(rf"`({begin}[^`]*)`", text)}
    for old, new in names.items():
        found, number = re.subn(rf"\b{old}\b", new, found)
        assert number, f"{page}: {begins} does not name {old}"
    return str(found)
