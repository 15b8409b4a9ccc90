"""One HTTP connection that stays open, at a tenth of what a client library costs.

The load generator shares two cores with what it measures, so its own share has to be
small.  It speaks to our own service alone, whose answers all have a Content-Length.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import orjson

#: An answer later than this is a failure of what is measured, not a slow one.
ANSWER_S = 120.0


class Line:
    """Requests one after the other to one service; made anew when it breaks."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._head = f"Host: 127.0.0.1\r\nX-Auth-Token: {token}\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.head = b""  # of the last answer, in lower case

    async def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, dict[str, Any]]:
        """Status and JSON of the answer.  Raises OSError, EOFError if there is none."""
        data = b"" if body is None else orjson.dumps(body)
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {path} HTTP/1.1\r\n{self._head}{lines}Content-Length: {len(data)}\r\n"
        kind = "Content-Type: application/json\r\n" if data else ""
        try:
            reader, writer = await self._open()
            writer.write(f"{head}{kind}\r\n".encode() + data)
            async with asyncio.timeout(ANSWER_S):
                return await self._answer(reader)
        except BaseException:
            self.close()
            raise

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        return self._streams

    def close(self) -> None:
        """Let go of the connection, if there is one."""
        if self._streams is not None:
            with suppress(OSError):
                self._streams[1].close()
            self._streams = None

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
        self.head = (await reader.readuntil(b"\r\n\r\n")).lower()
        body = await reader.readexactly(int(self.said(b"content-length") or 0))
        return int(self.head[9:12]), orjson.loads(body) if body.startswith(b"{") else {}

    def said(self, header: bytes) -> bytes:
        """What the head of the last answer says there, in lower case; b"" if nothing."""
        _, _, rest = self.head.partition(b"\r\n" + header + b":")
        return rest.split(b"\r\n", 1)[0].strip()
