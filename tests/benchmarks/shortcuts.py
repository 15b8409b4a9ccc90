"""Row 12: what each shortcut past a library's public way gives, beside that way.

A shortcut is confined to one file, whose docstring names its figure and says when to delete
it.  Each figure is CPU time, both ways in turns in one run: it holds on a busy machine.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import requests

from host_agent.shared.cinder.http import Transport
from tests.benchmarks.figures import Figure, Size, interleaved

ROUNDS = {Size.QUICK: 5, Size.FULL: 15}
CALLS, STARTS = 200, 3
#: The command's own help, by cliff's way: hooks from entry points, the distribution's name.
STOCK_CLI = """
from cliff.command import Command
import ledger.cli.cliff_parts as ours
ours.WithoutPlugins._load_hooks = Command._load_hooks
ours.WithoutPlugins.get_epilog = Command.get_epilog
"""
RUN_CLI = "from ledger.cli.shell import main; main(['operation', 'list', '--help'])"


def figures(size: Size) -> Iterator[Figure]:
    rounds = ROUNDS[size]
    yield from _beside("HTTP below keystoneauth", "us a call", _http(rounds))
    yield from _beside("help of a command", "ms a start", _cli(rounds))


def _beside(name: str, unit: str, medians: list[float]) -> Iterator[Figure]:
    ours, theirs = medians
    yield Figure(
        row=12,
        name=f"shortcut: {name}",
        value=ours,
        unit=f"CPU {unit}",
        compared_with=f"the library's own way: {theirs:.3g}",
    )


def _cpu_us(work: Callable[[], object], count: int) -> float:
    begun = time.thread_time()
    work()
    return (time.thread_time() - begun) / count * 1e6


class _Answer(BaseHTTPRequestHandler):
    """Answers as Cinder does, in a thread of its own: its CPU is not counted."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_GET(self) -> None:
        body = b'{"volume": {"status": "in-use"}}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        del format, args


def _http(rounds: int) -> list[float]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{httpd.server_address[1]}/v3/volumes/x"

        def asked(session: requests.Session) -> float:
            def ask() -> None:
                for _ in range(CALLS):
                    session.request("GET", url, headers={"X-Auth-Token": "t"}, timeout=5).json()

            return _cpu_us(ask, CALLS)

        ours, theirs = Transport(), requests.Session()
        asked(ours)
        asked(theirs)
        medians = interleaved(rounds, lambda: asked(ours), lambda: asked(theirs))
        ours.close()
        theirs.close()
        httpd.shutdown()
    return medians


def _cli(rounds: int) -> list[float]:
    def started(script: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        for _ in range(STARTS):
            command = [sys.executable, "-c", script]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return spent / STARTS * 1e3

    return interleaved(rounds, lambda: started(RUN_CLI), lambda: started(STOCK_CLI + RUN_CLI))
