"""A large JSON object, read piece by piece, so that other threads have their turns.

orjson reads a text in one go, in which nothing else of the process runs: a tenth of a second for
55 MB.  So the objects in its lists are found first, and read one by one.  What
is left of the text, an empty object in the place of each, is JSON if and only if the whole is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

#: The largest text that is read in one go: what is not in the lists' objects, and any small body.
WHOLE_BYTES_MAX = 8 * 1024 * 1024

#: Texts, in which brackets mean nothing, and brackets.  One that does not end goes to the end of
#: all, and nothing is given back: else each quote of it would begin another look to the end.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{}\[\]]', re.DOTALL)
_OPENING, _CLOSING = b"{[", b"}]"
_LIST = ord("[")
_OBJECT = ord("{")
#: How deep the objects are: in a list, which is in the object.
_DEPTH = 2


def loads(raw: bytes | bytearray) -> Any:
    """What the text says.  Raises orjson.JSONDecodeError, also for too much outside of lists."""
    found = list(_objects(raw))
    outline = _outline(raw, found)
    if len(outline) > WHOLE_BYTES_MAX:
        raise orjson.JSONDecodeError("too much outside of lists of objects", "", 0)
    data = orjson.loads(outline)
    objects = (orjson.loads(raw[start:end]) for start, end in found)
    lists = [value for value in data.values() if isinstance(value, list)] if found else []
    if sum(item == {} for each in lists for item in each) != len(found):  # a key was given twice
        raise orjson.JSONDecodeError("a list of objects that is given twice", "", 0)
    for each in lists:
        each[:] = [next(objects) if item == {} else item for item in each]
    return data


def _objects(raw: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Where the objects are that lists of the outermost object hold: begin and end of each."""
    depth, begin, in_list = 0, None, False
    for token in _TOKEN.finditer(raw):
        character = raw[token.start()]
        if character in _OPENING:
            if depth == 0 and character != _OBJECT:
                return
            if depth == _DEPTH - 1:
                in_list = character == _LIST
            elif depth == _DEPTH and in_list and character == _OBJECT:
                begin = token.start()
            depth += 1
        elif character in _CLOSING:
            depth -= 1
            if depth == _DEPTH and begin is not None:
                yield begin, token.end()
                begin = None


def _outline(raw: bytes | bytearray, objects: list[tuple[int, int]]) -> bytes:
    pieces, at = [], 0
    for start, end in objects:
        pieces.append(raw[at:start])
        at = end
    return b"{}".join([*pieces, raw[at:]])
