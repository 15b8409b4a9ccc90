"""What the fabric's Cinder, which is outside, has done in its storage's machine: one JSON a line.

A process that stays, for a Python that is started for each call costs seconds under emulation.
Only what Cinder asks for (fab_service.py): commands, its LIO tool, and files, of nvmet's configfs.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import socketserver
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

PORT = 8777
_ONE = threading.Lock()  # rtslib is not for several at once, nor is what it prints


def _tool() -> Any:
    """Cinder's `cinder-rtstool`, as it is; of Cinder itself it wants translations only."""
    cinder, said = types.ModuleType("cinder"), types.ModuleType("cinder.i18n")
    vars(said).update(enable_lazy=lambda: None, _=str)
    vars(cinder).update(i18n=said)
    sys.modules.update({"cinder": cinder, "cinder.i18n": said})
    return importlib.import_module("rtstool")


def rtstool(*words: str) -> tuple[int, str, str]:
    told = io.StringIO()
    with _ONE, contextlib.redirect_stdout(told):
        try:
            TOOL.main(["cinder-rtstool", *words])
        except (Exception, SystemExit) as error:  # noqa: BLE001 - as a process tells any of them
            return 1, told.getvalue(), repr(error)
    return 0, told.getvalue(), ""


def run(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def read(path: str) -> str:
    return Path(path).read_text()


def write(path: str, value: str) -> None:
    Path(path).write_text(value)


FILES = (os.mkdir, os.rmdir, os.unlink, os.symlink, os.listdir, os.path.exists)
CALLS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (*FILES, run, rtstool, read, write)
}


class Asked(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        name, words = json.loads(self.rfile.readline())
        try:
            answer = {"answer": CALLS[name](*words)}
        except OSError as error:
            answer = {"errno": error.errno, "error": str(error)}
        self.wfile.write(json.dumps(answer).encode() + b"\n")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    TOOL = _tool()
    Server(("127.0.0.1", PORT), Asked).serve_forever()
