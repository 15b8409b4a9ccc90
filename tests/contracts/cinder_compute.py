"""A compute endpoint for the simulated Cinder to ask: every answer is the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class Asked:
    method: str
    path: str
    version: str | None
    token: str | None
    body: Any


class Compute:
    """Answers `status`, with this attachment's id if there is one, and remembers who asked."""

    def __init__(self, status: int, attachment_id: str | None = None) -> None:
        self.asked: list[Asked] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                outer.asked.append(
                    Asked(
                        method=self.command,
                        path=self.path,
                        version=self.headers.get("OpenStack-API-Version"),
                        token=self.headers.get("X-Auth-Token"),
                        body=json.loads(self.rfile.read(size) or "null"),
                    )
                )
                found = {"attachment_id": attachment_id} if attachment_id else {}
                body = b"" if status == 202 else json.dumps({"volumeAttachment": found}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = answer  # noqa: N815 - http.server wants these names

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v2.1"
        self._thread = Thread(target=self.server.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()
