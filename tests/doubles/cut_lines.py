"""A proxy in front of PostgreSQL that cuts lines, as a network or a crashing server does.

It listens on a Unix socket: there a client that writes is told at once that the other end is gone.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from psycopg.conninfo import conninfo_to_dict, make_conninfo

#: What gets lost of an append: it never comes, its answer does not, or it comes when it is let in.
Lost = Literal["request", "answer", "late"]

_PORT = 5432
_FIELDS = (b"SWARNING", b"VWARNING", b"C57P02", b"Mterminating connection because of crash", b"")
_TEXT = b"\0".join(_FIELDS) + b"\0"
#: What a server that crashes still says to each client (quickdie): a notice, and then nothing.
_LAST_WORDS = b"N" + struct.pack("!i", len(_TEXT) + 4) + _TEXT
_READY = b"Z\0\0\0\5I"
_APPEND = b"append_events"  # in the text of a prepared statement
_BYTES_MAX = 1_000_000


class CutLines:
    """Use `cut_lines`."""

    def __init__(self, dsn: str, home: Path) -> None:
        server = conninfo_to_dict(dsn)
        self._server = f"{server['host']}/.s.PGSQL.{server.get('port', _PORT)}"
        self.dsn = make_conninfo(dsn, host=str(home), port=_PORT)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(home / f".s.PGSQL.{_PORT}"))
        self._listener.listen(100)
        self._lines: dict[socket.socket, socket.socket] = {}  # a client's, and the server's
        self._open: set[socket.socket] = set()  # of clients who may ask
        self._lose: Lost | None = None
        self._held: tuple[socket.socket, bytes] | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def drop_all(self) -> int:
        """End every open line as a crash does, whatever is under way; how many there were."""
        dying, self._open = self._open, set()
        for client in dying:
            _die(client)
            _end(self._lines[client])
        return len(dying)

    def lose_next_append(self, what: Lost) -> None:
        self._lose = what

    def let_in(self) -> None:
        """The append that is late comes to the server, which answers it to nobody."""
        assert self._held is not None, "one is late"
        _answer(*self._held)

    def close(self) -> None:
        _end(self._listener)
        held = [self._held[0]] if self._held else []
        for line in (*self._lines, *self._lines.values(), *held):
            _end(line)

    def _accept(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                client, _ = self._listener.accept()
                server = self._lines[client] = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        bound: bytes | None = None  # in a Bind of an append: no portal's name, and the statement's
        end = b""  # of what the server has said: it writes 8 kB at a time, so it may come in two
        with suppress(OSError, ValueError):  # either end is gone
            while True:
                ready, _, _ = select.select([client, server], [], [])
                data = ready[0].recv(_BYTES_MAX)
                if not data:
                    break
                if ready[0] is client and data[:1] == b"P" and _APPEND in data:
                    bound = b"\0%b\0" % data[5:].partition(b"\0")[0]
                if ready[0] is client and self._lose and bound and bound in data[:20]:
                    self._lose_append(client, server, data)
                    return
                if ready[0] is server:
                    end = (end + data)[-len(_READY) :]
                    if end == _READY:
                        self._open.add(client)
                (server if ready[0] is client else client).sendall(data)
        self._open.discard(client)
        _end(client)
        _end(server)

    def _lose_append(self, client: socket.socket, server: socket.socket, request: bytes) -> None:
        lost, self._lose = self._lose, None
        self._open.discard(client)
        if lost == "answer":
            _answer(server, request)
        if lost == "late":
            self._held = server, request
        else:
            _end(server)
        _die(client)


def _answer(server: socket.socket, request: bytes) -> None:
    server.sendall(request)
    answer = b""
    while not answer.endswith(_READY):
        data = server.recv(_BYTES_MAX)
        assert data, "the server answers"
        answer += data


def _die(client: socket.socket) -> None:
    with suppress(OSError):
        client.sendall(_LAST_WORDS)
    _end(client)


def _end(line: socket.socket) -> None:
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
    line.close()


@contextmanager
def cut_lines(dsn: str, home: Path) -> Iterator[CutLines]:
    """A proxy to the server of `dsn`; its socket is in `home`."""
    proxy = CutLines(dsn, home)
    try:
        yield proxy
    finally:
        proxy.close()
