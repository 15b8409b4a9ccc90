"""Headers read by our shortcut are those that the library finds."""

from __future__ import annotations

import io
from http.client import HTTPException, HTTPMessage, parse_headers
from typing import Any, BinaryIO

from hypothesis import example, given
from hypothesis import strategies as st

from host_agent.shared import headers, lines
from host_agent.shared.headers import Answer

_NAMES = st.text("aZ-_!~:; \t\x00\x7f\xe9", max_size=6)
_VALUES = st.text("aZ:= \t\r\x0b\x85\x00\xe9", max_size=8)
_ENDS = st.sampled_from(["\r\n", "\n", "\r", "\r\r\n"])
_LINES = st.tuples(
    st.sampled_from(["A", "Content-Type", "~"]) | _NAMES,
    st.sampled_from([":", ": ", ":\t", "", " :"]),
    _VALUES,
    _ENDS,
)


def _found(read: Any, text: bytes) -> Any:
    stream: BinaryIO = io.BytesIO(text)
    try:
        message: HTTPMessage = read(stream)
    except HTTPException as error:
        return type(error), str(error)
    return message.items(), message.get_payload(), message.defects != [], stream.read()


@given(st.lists(_LINES.map("".join), max_size=3))
@example(["A: b\r\n", "C:\td \r\n", "E:f\n"])
@example(["A: b\r\n", " folded\r\n"])
@example(["From me\r\n", "A: b\r\n"])
@example(["A: b\r\n", "no colon\r\n", "C: d\r\n"])
@example([": nameless\r\n"])
@example(["A:" + "b" * 70_000 + "\r\n"])
@example(["A: b\r\n"] * 101)
def test_what_is_found_is_what_the_library_finds(said: list[str]) -> None:
    text = "".join(said).encode("iso-8859-1") + b"\r\n{}"
    assert _found(headers.read, text) == _found(parse_headers, text)


def test_an_answer_s_headers_are_read_so(monkeypatch: Any) -> None:
    """The library calls by the name that it is given here; else all would be as without."""

    class Sock:
        def makefile(self, _mode: str) -> io.BytesIO:
            return io.BytesIO(b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 2\r\n\r\n{}")

    read: list[BinaryIO] = []
    assert issubclass(lines._Response, Answer)
    assert Answer.begin.__globals__["parse_headers"] is headers.read

    def counted(stream: BinaryIO) -> HTTPMessage:
        read.append(stream)
        return headers.read(stream)

    monkeypatch.setitem(Answer.begin.__globals__, "parse_headers", counted)
    answer: Any = Answer(Sock())  # type: ignore[arg-type]
    answer.begin()
    assert (answer.status, answer.getheader("a"), answer.read(), len(read)) == (200, "b", b"{}", 1)
