"""A small HTTP server beside a test: the test says how it answers."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.authority import Pair

#: A server looks so often whether it is to stop.
POLL_S = 0.02


class Handler(BaseHTTPRequestHandler):
    """Answers whole bodies, and writes no log."""

    def respond(self) -> None:
        """To a request of any method, `self.command`."""
        self.answer(501)

    def do_GET(self) -> None:
        self.respond()

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - http.server's names

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Headers by keyword: `Content_Type="text/html"`."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(
    handler: type[BaseHTTPRequestHandler], pair: Pair | None = None, host: str = "127.0.0.1"
) -> Iterator[str]:
    """Serve at `host` for the length of the `with`; the URL without a path.  `pair`: over TLS."""
    with ThreadingHTTPServer((host, 0), handler) as server:
        if pair is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pair.certificate, pair.key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        server.daemon_threads = True
        server.block_on_close = False  # a request that a test left waiting ends with the process
        thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True)
        thread.start()
        try:
            yield f"{'https' if pair else 'http'}://{host}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
