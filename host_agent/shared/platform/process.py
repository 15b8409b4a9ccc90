"""What an operator asks of a process itself: which build it is, and what its threads do now."""

from __future__ import annotations

import argparse
import faulthandler
import importlib.metadata
import os
import signal
import sys

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


def answer_signals() -> None:
    """Let SIGUSR2 print the stacks of all threads to stderr, and SIGHUP do nothing at all.

    SIGUSR2 as in Nova, whose services report on that signal; without a handler it ends the
    process.  It is C that prints: also where the interpreter or the event loop hangs.  No
    values, no secrets.

    SIGHUP ends what is started by hand when its terminal goes away.  Elsewhere it asks to reload,
    and what may change is read when it changes (docs/tls.md).  It has a handler and is not ignored
    (SIG_IGN), which programs that the agent starts would inherit.
    """
    faulthandler.register(signal.SIGUSR2, file=_STDERR)
    if not os.isatty(_STDERR):
        signal.signal(signal.SIGHUP, lambda *_: None)
