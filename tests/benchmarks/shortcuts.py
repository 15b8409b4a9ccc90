"""Row 12: what each shortcut past a library's public way gives, beside that way.

A shortcut is confined to one file, whose docstring names its figure and says when to delete
it.  Each figure is CPU time, both ways in turns in one run: it holds on a busy machine.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator

from tests.benchmarks.figures import Figure, Size, interleaved

ROUNDS = {Size.QUICK: 5, Size.FULL: 15}
STARTS = 3
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
