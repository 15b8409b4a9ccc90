"""Pictures of a few colours in little room: PNG with a palette (W3C PNG 3rd edition, 4.3 and 9)."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOURS = 256


def smaller(png: bytes) -> bytes:
    """The same picture; rare colours become the one that is nearest.  Only 8-bit RGB is taken."""
    chunks = list(_chunks(png))
    width, height, depth, kind = struct.unpack(">IIBB", chunks[0][1][:10])
    assert (depth, kind) == (8, 2), "a screenshot of Chromium's is RGB"
    data = zlib.decompress(b"".join(body for name, body in chunks if name == b"IDAT"))
    rows = list(_unfiltered(data, 3 * width, height))
    pixels = [[row[at : at + 3] for at in range(0, len(row), 3)] for row in rows]
    found = Counter(pixel for row in pixels for pixel in row)
    palette = [colour for colour, _ in found.most_common(_COLOURS)]
    index = {colour: _nearest(colour, palette) for colour in found}
    lines = b"".join(b"\0" + bytes(map(index.__getitem__, row)) for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in (
            (b"IHDR", header),
            (b"PLTE", b"".join(palette)),
            (b"IDAT", zlib.compress(lines, 9)),
            (b"IEND", b""),
        )
    )


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(_SIGNATURE)
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += length + 12


def _nearest(colour: bytes, palette: list[bytes]) -> int:
    def far(at: int) -> int:
        return sum((a - b) ** 2 for a, b in zip(colour, palette[at], strict=True))

    return min(range(len(palette)), key=far)


def _unfiltered(data: bytes, length: int, height: int) -> Iterator[bytes]:
    above = bytearray(length)
    for number in range(height):
        at = number * (length + 1)
        row = bytearray(data[at + 1 : at + 1 + length])
        for i in range(length):
            left, corner = (row[i - 3], above[i - 3]) if i >= 3 else (0, 0)
            match data[at]:
                case 0:
                    break
                case 1:
                    guess = left
                case 2:
                    guess = above[i]
                case 3:
                    guess = (left + above[i]) // 2
                case _:
                    guess = _paeth(left, above[i], corner)
            row[i] = (row[i] + guess) & 255
        yield bytes(row)
        above = row


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    return min((left, up, corner), key=lambda each: abs(guess - each))
