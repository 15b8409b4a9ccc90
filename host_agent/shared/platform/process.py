"""What an operator can ask a process: its build, and what its threads do now."""

from __future__ import annotations

import argparse
import faulthandler
import importlib.metadata
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from host_agent.shared.platform.text import visible

_PACKAGE = "attachment-ledger"
_STDERR = 2


def build() -> str:
    """The version, and the commit if the package says it (deploy/debian/build.sh)."""
    distribution = importlib.metadata.distribution(_PACKAGE)
    commit = (distribution.read_text("COMMIT") or "").strip()
    return f"{distribution.version} (commit {commit})" if commit else distribution.version


class PrintBuild(argparse.Action):
    """`--version`.  Reading it costs a little, so only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_arguments: object) -> None:
        sys.stdout.write(f"{parser.prog} {build()}\n")
        parser.exit()


def answer_signals(state: Callable[[], Iterable[str]] = tuple) -> None:
    """Let SIGUSR2 print the stacks of all threads, and `state`, to stderr, and SIGHUP do nothing.

    SIGUSR2 as in Nova, whose services report on that signal; without a handler it ends the
    process.  The main thread tells, when it gets its turn, between any two of its instructions:
    `state`, lines of what this process is at, must wait for no lock.  Stacks that C prints from
    inside the signal (faulthandler.register) are of frames that go on meanwhile: it killed busy
    processes.  So C prints them where the process ends anyway: on SIGABRT, systemd's signal where
    its watchdog finds that nothing goes on.  No values, no secrets.

    SIGHUP ends what is started by hand when its terminal goes away.  Elsewhere it asks to reload,
    and what may change is read when it changes (docs/tls.md).  It has a handler and is not ignored
    (SIG_IGN), which programs that the agent starts would inherit.
    """
    faulthandler.enable(_STDERR)
    signal.signal(signal.SIGUSR2, lambda *_: _tell(state))
    if not os.isatty(_STDERR):
        signal.signal(signal.SIGHUP, lambda *_: None)


def _tell(state: Callable[[], Iterable[str]]) -> None:
    """Past sys.stderr, which the signal may have interrupted in the middle of a line."""
    lines: list[str] = []
    try:
        lines += _stacks()
        lines += map(visible, state())
    except Exception as error:  # noqa: BLE001 - it was asked for while something was changing it
        lines.append(f"The state cannot be told: {type(error).__name__}. Ask again.")
    with suppress(OSError):
        os.write(_STDERR, "".join(f"{line}\n" for line in lines).encode())


def _stacks() -> Iterator[str]:
    """As faulthandler prints them, and with the threads' names."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - the documented way
        yield f"Thread 0x{ident:016x}, {names.get(ident)} (most recent call first):"
        for each, line in traceback.walk_stack(frame):
            code = each.f_code
            yield f'  File "{code.co_filename}", line {line} in {code.co_qualname}'
