"""A large JSON object read piece by piece is what it is read at once, or refused as that is."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.api import pieces

TEXTS = st.text(alphabet='ab"\\{}[]:, \n\t\u00e9\u2028', max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(TEXTS, st.lists(JSON, max_size=4) | JSON, max_size=4)


def read(loads: Any, raw: bytes) -> Any:
    try:
        return loads(raw)
    except orjson.JSONDecodeError:
        return "refused"


@given(OBJECTS | JSON, st.booleans())
def test_the_pieces_together_are_the_whole(data: Any, indented: bool) -> None:
    raw = orjson.dumps(data, option=orjson.OPT_INDENT_2 if indented else 0)
    assert pieces.loads(raw) == orjson.loads(raw) == data


@given(OBJECTS, st.data())
def test_what_is_broken_is_refused_as_the_whole_is(data: Any, draw: st.DataObject) -> None:
    raw = bytearray(orjson.dumps(data))
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(0, len(raw)))
        raw[at : at + draw.draw(st.integers(0, 2))] = draw.draw(
            st.sampled_from([b"", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"1"])
        )
    whole = read(orjson.loads, bytes(raw))
    assert read(pieces.loads, bytes(raw)) in (whole, "refused")
    if "refused" not in (whole, read(pieces.loads, bytes(raw))):
        assert read(pieces.loads, bytes(raw)) == whole


@pytest.mark.parametrize(
    "raw",
    [
        b'{"guests": [{"a": 1}], "guests": [{"b": 2}]}',
        b'{"guests": [{"a": 1}',
        b'{"guests": [{"a": "}]}',
        b'{"guests": [{"a": 1}}]',
        b"[" * 100_000,
        b'{"a": [' + b"[" * 100_000,
        b"",
    ],
    ids=["twice", "open", "text", "crossed", "deep", "deeper", "nothing"],
)
def test_what_is_no_json_or_not_clear_is_refused(raw: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        pieces.loads(raw)


def test_no_more_than_so_much_is_read_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    loads = orjson.loads

    def counted(raw: bytes) -> Any:
        sizes.append(len(raw))
        return loads(raw)

    monkeypatch.setattr(orjson, "loads", counted)
    guest = {"server_id": "x", "definition": "<domain>" + "x" * 5_000}
    raw = orjson.dumps({"capabilities": {}, "guests": [guest] * 500, "connections": ["c"] * 10})
    assert len(pieces.loads(raw)["guests"]) == 500
    assert max(sizes) < 6_000
    assert len(sizes) == 501
    monkeypatch.setattr(pieces, "WHOLE_BYTES_MAX", 100)
    with pytest.raises(orjson.JSONDecodeError):
        pieces.loads(orjson.dumps({"connections": ["c" * 200]}))


def test_a_text_that_does_not_end_is_looked_at_once() -> None:
    """Each quote in it would begin another look to the end: 3 s for 32 KB, years for 64 MB."""
    began_s = time.process_time()
    with pytest.raises(orjson.JSONDecodeError):
        pieces.loads(b'{"guests": ["' + b'\\"' * 16_000)
    assert time.process_time() - began_s < 0.5
