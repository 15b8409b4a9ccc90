"""Answers whose headers are read without the parser of e-mail.

http.client reads the headers of each answer with `email.parser`, a fifth of what a call costs.
Here lines as nearly all are, a name and a value, are taken apart by one pattern; where a single
line is anything else, all of them go to the library's parser.  So what is found is what that
finds (`tests/agent/test_headers.py`); all else of an answer http.client reads itself.

7 us of CPU instead of 21 for eight headers in a loop, and 2 ms less in an attach and detach, which
has 22 such answers (docs/benchmarks.md; measure again with `make bench ARGS=shortcuts`).  Delete
this file when http.client does the like.
"""

from __future__ import annotations

import http.client
import re
from email.parser import Parser
from http.client import HTTPMessage, HTTPResponse
from types import FunctionType
from typing import Any, BinaryIO

_PLAIN = re.compile(r"([!-9;-~]+):[ \t]*([^\r\n]*)\r?\n")


def read(stream: BinaryIO) -> HTTPMessage:
    """As `http.client.parse_headers`: raises its errors for lines too long, or too many."""
    raw: list[bytes] = http.client._read_headers(stream)  # type: ignore[attr-defined]  # noqa: SLF001
    lines = [line.decode("iso-8859-1") for line in raw]
    found = [_PLAIN.fullmatch(line) for line in lines[:-1]]
    message = HTTPMessage()
    for each in found:
        if each is None:
            return Parser(_class=HTTPMessage).parsestr("".join(lines))
        message.set_raw(each[1], each[2])
    message.set_payload("")
    return message


class Answer(HTTPResponse):
    """One that is read so."""

    #: The library's own code, which has no other place to say by what headers are read.
    begin: Any = FunctionType(
        HTTPResponse.begin.__code__, {**vars(http.client), "parse_headers": read}
    )
