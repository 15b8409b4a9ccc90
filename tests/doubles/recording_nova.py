"""A Nova that keeps what it is asked, byte by byte, and answers what a test has it answer."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

#: Answers by writing; who returns has the connection closed, as uWSGI closes it, unless Nova
#: `keeps` it.
Answering = Callable[["Asked", asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Asked:
    """A request as it came.  `headers`: in their order, with doubles."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def path(self) -> str:
        return self.line.split(" ")[1]

    def named(self, name: str) -> list[str]:
        return [text for each, text in self.headers if each.lower() == name]


def said(status: int, body: bytes | dict[str, Any] = b"", *headers: tuple[str, str]) -> bytes:
    """An answer with its length; of JSON its type."""
    typed = list(headers)
    if isinstance(body, dict):
        typed.append(("Content-Type", "application/json"))
        body = json.dumps(body).encode()
    typed += [("Content-Length", str(len(body))), ("Connection", "close")]
    head = "".join(f"{name}: {text}\r\n" for name, text in typed)
    return f"HTTP/1.1 {status} As Nova says\r\n{head}\r\n".encode() + body


def kept(answer: bytes) -> bytes:
    """The same, after which the connection stays."""
    return answer.replace(b"Connection: close\r\n", b"")


def not_found(what: str) -> bytes:
    text = f"{what} could not be found."
    return said(404, {"itemNotFound": {"code": 404, "message": text}})


@dataclass
class RecordingNova:
    """Served by `recording_nova`.  `answers`: by what a path begins with, the last that fits;
    `answering`: in place of them.  It `keeps` connections, or closes each after its answer.
    """

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    answers: dict[str, bytes] = field(default_factory=lambda: {"/": said(200, {"by": "nova"})})
    answering: Answering | None = None
    keeps: bool = False
    lines: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.lines.append(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await self._answer(reader, writer)
            while self.keeps and not writer.is_closing():
                await self._answer(reader, writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *rest = head.strip().split("\r\n")
        headers = [(name, text) for name, _, text in (each.partition(": ") for each in rest)]
        length = next((text for name, text in headers if name == "Content-Length"), "0")
        asked = Asked(line, headers, await reader.readexactly(int(length)))
        self.asked.append(asked)
        if self.answering is not None:
            await self.answering(asked, writer)
        else:
            fits = [each for each in self.answers if asked.path.startswith(each)]
            writer.write(kept(self.answers[fits[-1]]) if self.keeps else self.answers[fits[-1]])


@asynccontextmanager
async def recording_nova(tls: ssl.SSLContext | None = None) -> AsyncIterator[RecordingNova]:
    """On a free port of loopback, for the length of the `with`."""
    nova = RecordingNova()
    server = await asyncio.start_server(nova.serve, "127.0.0.1", 0, ssl=tls)
    scheme = "http" if tls is None else "https"
    nova.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield nova
    finally:
        server.close()
