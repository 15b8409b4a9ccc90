"""The parts of the model that are explored to their end: in its small size, and in its full one."""

from __future__ import annotations

from dataclasses import replace

from tests.model.explore import Bounds

SMALL = {
    "one fault, two requests": Bounds(faults=1, requests=2),
    "one fault, one request, one act of an operator": Bounds(faults=1, requests=1, acts=1),
    "one fault, two volumes": Bounds(volumes=2, faults=1, requests=1),
}
#: With two faults a guest that is moved by hand in the midst of an attach is not safe yet
#: (docs/model.md, "What it has found").
_TWO = Bounds(faults=2, moved=False)
FULL = {
    "one fault, two requests, one act": Bounds(faults=1, requests=2, acts=1),
    "two faults, two volumes": replace(_TWO, volumes=2, requests=1),
    "two faults, one request, one act": replace(_TWO, requests=1, acts=1),
    "two faults, two requests": replace(_TWO, requests=2),
}
