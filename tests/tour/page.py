"""docs/tour.md: the steps in words, with what the console and the command line show."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.tour.night import RULE
from tests.tour.steps import STEPS, Step
from tests.tour.typed import COLUMNS, Shown

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tour.md"
PICTURES = ROOT / "docs/tour"
PROGRAM = "attachment-ledger"

_HEAD = """# A night shift, step by step

<!-- made by `make tour`: do not edit -->

One incident, found, understood and resolved twice: with the [console](console.md) only, and with
the [command line](cli.md) only, on a terminal of 80 columns. Each step shows both. Follow one of
them: it does not need the other.

## The incident

It runs on the trial's cloud, with a simulated Cinder and scripted [faults](faults.md).
At 02:14 the array behind Cinder goes into maintenance, and a user detaches a volume:

```json
[{rule}]
```

At the same time a script reserves another volume in Cinder, past the ledger, and never releases it.
A look finds that. Your shift begins at 02:31.
"""


def page(shown: Sequence[Shown]) -> str:
    """The whole page."""
    head = _HEAD.replace("{rule}", json.dumps(RULE, indent=1))
    return "\n".join([head, *(line for step in STEPS for line in _told(step, shown))]) + "\n"


def _told(step: Step, shown: Sequence[Shown]) -> Iterator[str]:
    yield f"## {STEPS.index(step) + 1}. {step.title}"
    yield ""
    yield f"**You see.** {step.sees}"
    yield ""
    yield f"**It means.** {step.means}"
    yield ""
    yield f"**In the console.** {step.does}"
    yield ""
    if step.picture:
        yield f"![{step.title}: the console](tour/{step.picture}.png)"
        yield ""
    yield "**On the command line.**"
    yield ""
    for each in shown:
        if each.step is step:
            yield "```console"
            yield from _typed(each.typed)
            yield each.printed.rstrip("\n")
            yield "```"
            yield ""
    if step.over:
        yield f"**It is over** {step.over[0].lower()}{step.over[1:]}"
        yield ""


def _typed(line: str) -> Iterator[str]:
    whole = f"$ {PROGRAM} {line}"
    if len(whole) <= COLUMNS:
        yield whole
        return
    first, reason, rest = whole.partition(" --reason ")
    yield f"{first} \\"
    yield f"   {reason}{rest}"


def screens(text: str) -> list[str]:
    """What stands in the page's blocks of the command line."""
    return [block.partition("\n```")[0] for block in text.split("```console\n")[1:]]
