"""What an operator can ask of a process: its build, and what its threads do now."""

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
    """The version, and the commit if the package has it (deploy/debian/build.sh)."""
    distribution = importlib.metadata.distribution(_PACKAGE)
    commit = (distribution.read_text("COMMIT") or "").strip()
    return f"{distribution.version} (commit {commit})" if commit else distribution.version


class PrintBuild(argparse.Action):
    """`--version`; the version is read only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_arguments: object) -> None:
        sys.stdout.write(f"{parser.prog} {build()}\n")
        parser.exit()


def answer_signals(state: Callable[[], Iterable[str]] = tuple) -> None:
    """Make SIGUSR2 print the stacks of all threads and `state` to stderr, and SIGHUP do nothing.

    SIGUSR2 as in Nova's services; without a handler it ends the process.  The handler runs in the
    main thread, between any two of its instructions, so `state` must not wait for a lock.
    faulthandler.register would print from inside the signal while other threads continue, and has
    killed busy processes.  So faulthandler is used only for signals that end the process, such as
    SIGABRT from systemd's watchdog.  Stacks have no values, so no secrets.

    SIGHUP ends a process that was started by hand when its terminal closes.  Otherwise it requests
    a reload, but files are read again when they change (docs/tls.md).  It has a handler instead of
    SIG_IGN, which child processes would inherit.
    """
    faulthandler.enable(_STDERR)
    signal.signal(signal.SIGUSR2, lambda *_: _tell(state))
    if not os.isatty(_STDERR):
        signal.signal(signal.SIGHUP, lambda *_: None)


def _tell(state: Callable[[], Iterable[str]]) -> None:
    """Not through sys.stderr, which the signal may have interrupted in the middle of a line."""
    lines: list[str] = []
    try:
        lines += _stacks()
        lines += map(visible, state())
    except Exception as error:  # noqa: BLE001 - the state may be changing
        lines.append(f"The state cannot be told: {type(error).__name__}. Ask again.")
    with suppress(OSError):
        os.write(_STDERR, "".join(f"{line}\n" for line in lines).encode())


def _stacks() -> Iterator[str]:
    """In faulthandler's form, with the threads' names."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - the documented way
        yield f"Thread 0x{ident:016x}, {names.get(ident)} (most recent call first):"
        for each, line in traceback.walk_stack(frame):
            code = each.f_code
            yield f'  File "{code.co_filename}", line {line} in {code.co_qualname}'
