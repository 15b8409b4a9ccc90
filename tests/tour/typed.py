"""The tour on the command line: 80 columns, in this process, as a terminal would show it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from unittest.mock import patch

from ledger.cli import shell, table
from tests.service.cli_stub import Terminal
from tests.tour.night import Night
from tests.tour.stable import LATER, Stable
from tests.tour.steps import STEPS, Step

COLUMNS = 80
#: What a terminal is told to forget of a line: what is written before it.
_ERASED = re.compile(r"[^\n]*\r\x1b\[K")


@dataclass(frozen=True)
class Shown:
    """A command line, and what came of it."""

    step: Step
    typed: str
    printed: str


def typed(night: Night) -> list[Shown]:
    """All commands of all steps; what one needs is read off the screen, as a person does.

    The operator comes LATER: the ages that are told are the same every time.
    """
    now = night.planted_at + LATER + timedelta(seconds=5)
    cloud = night.cloud
    environ = {
        "LEDGER_URL": cloud.url,
        "LEDGER_TOKEN": cloud.operator_token,
        "COLUMNS": str(COLUMNS),
        "LINES": "40",
        "NO_COLOR": "1",
        "TERM": "xterm",
    }
    with patch.dict(os.environ, environ), patch.object(table, "now", lambda: now):
        return list(_steps(night))


def _steps(night: Night) -> Iterator[Shown]:
    known: dict[str, str] = {}
    for step in STEPS:
        step.before(night)
        screen = ""
        for command in step.typed:
            line = command.format(**known)
            printed = _run(line)
            screen += printed
            yield Shown(step, line, printed)
        for name, expression in step.finds.items():
            found = re.search(expression, screen, re.MULTILINE)
            assert found, f"{step.title}: no {name} to be read in:\n{screen}"
            known[name] = found[1]


def _run(line: str) -> str:
    screen = Terminal()
    with patch("sys.stdout", screen), patch("sys.stderr", screen):
        code = shell.main(shlex.split(line))
    printed = _ERASED.sub("", screen.getvalue())
    assert code == 0, f"{line}: {code}\n{printed}"
    return printed


def stable(night: Night, shown: list[Shown]) -> list[Shown]:
    """The same with ids and times that are the same every time."""
    of = Stable(night, "\n".join(each.printed for each in shown))
    return [Shown(each.step, of.text(each.typed), of.text(each.printed)) for each in shown]
