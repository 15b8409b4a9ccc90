"""A WSGI application of OpenStack's on a plain threaded server, at the lab's address.

Run by the application's own environment, with the variable that says where its settings are:
`python wsgi_server.py MODULE:FUNCTION ADDRESS PORT`; the function makes the application.
"""

from __future__ import annotations

import socketserver
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any
from wsgiref import simple_server

# Keystone parses what is left itself.
APP, ADDRESS, PORT = sys.argv.pop(1), sys.argv.pop(1), int(sys.argv.pop(1))


class Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def server_bind(self) -> None:
        """Without a look-up of the address's name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, PORT
        self.setup_environ()


class Handler(simple_server.WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """The application logs."""


def one_at_a_time(app: Any) -> Callable[[Any, Any], Any]:
    """SQLite refuses at once who has read, and would write, while another one wrote."""
    lock = threading.Lock()

    def called(environ: Any, start_response: Any) -> Any:
        with lock:
            return app(environ, start_response)

    return called


if __name__ == "__main__":
    module, _, function = APP.partition(":")
    app = one_at_a_time(getattr(import_module(module), function)())
    simple_server.make_server(ADDRESS, PORT, app, Server, Handler).serve_forever()
