"""Keystone's WSGI application on a plain threaded server, at the lab's address.

Run by Keystone's own environment, with OS_KEYSTONE_CONFIG_FILES=FILE:
`python keystone_server.py ADDRESS PORT`.
"""

from __future__ import annotations

import socketserver
import sys
from importlib import import_module
from typing import Any
from wsgiref import simple_server

ADDRESS, PORT = sys.argv.pop(1), int(sys.argv.pop(1))  # keystone parses what is left itself


class Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def server_bind(self) -> None:
        """Without a look-up of the address's name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, PORT
        self.setup_environ()


class Handler(simple_server.WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Keystone logs."""


if __name__ == "__main__":
    keystone: Any = import_module("keystone.server.wsgi")
    app = keystone.initialize_public_application()
    simple_server.make_server(ADDRESS, PORT, app, Server, Handler).serve_forever()
