from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from io import StringIO
from typing import TextIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent.shared.platform.text import is_showable, one_line, texts_in, visible
from ledger.cli.base import EscapingStream

CONTROLS = ["\x00", "\x1b[2J", "\x9b2J", "\x7f", "\u202e", "\u2066", "\u2028"]
NO_CHARACTERS = ["\ufffe", "\uffff", "\U0001fffe", "\ufdd0", "\ud800"]


@pytest.mark.parametrize("text", [*CONTROLS, *NO_CHARACTERS])
def test_what_a_terminal_obeys_or_xml_cannot_carry_is_not_showable(text: str) -> None:
    assert not is_showable(f"a{text}b")
    assert is_showable(visible(f"a{text}b"))


def test_texts_of_every_language_and_several_lines_are_showable() -> None:
    for text in ("Größe", "日本語", "שלום", "👩\u200d🔧", "a\tb\nc\r\n"):
        assert is_showable(text)
        assert visible(text) == text


@given(st.text(st.characters(exclude_categories=())))
def test_what_is_made_visible_goes_through_xml(text: str) -> None:
    element = ET.Element("name")
    element.text = visible(text).replace("\r", "")
    assert ET.fromstring(ET.tostring(element)).text == (element.text or None)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_says_the_same_after_it_is_made_visible(text: str) -> None:
    assert json.loads(visible(json.dumps({"name": text}, ensure_ascii=False)))["name"] == text


def test_a_line_has_no_end_in_its_middle() -> None:
    assert one_line("ok\nroot logged in\r\t") == "ok\\u000aroot logged in\\u000d\\u0009"


def test_every_text_of_a_body_is_found_keys_too() -> None:
    data = {"a": ["b", {"c": "d"}], "e": 1, "f": None}
    assert sorted(texts_in(data)) == ["a", "b", "c", "d", "e", "f"]


def test_the_command_line_gives_a_terminal_no_orders_of_others() -> None:
    out = StringIO()
    print("name: \x1b]0;pwned\x07", file=cast("TextIO", EscapingStream(out)))
    assert out.getvalue() == "name: \\u001b]0;pwned\\u0007\n"
