"""The parts of the model that are explored to their end: in its small size, and in its full one."""

from __future__ import annotations

from tests.model.explore import Bounds

SMALL = {
    "one fault, two requests": Bounds(faults=1, requests=2),
    "one fault, one request, one act of an operator": Bounds(faults=1, requests=1, acts=1),
    "one fault, two volumes": Bounds(volumes=2, faults=1, requests=1),
    "two faults, one request": Bounds(faults=2, requests=1),
}
FULL = {
    "one fault, two requests, one act": Bounds(faults=1, requests=2, acts=1),
    "two faults, two volumes": Bounds(volumes=2, faults=2, requests=1),
    "two faults, one request, one act": Bounds(faults=2, requests=1, acts=1),
    "two faults, two requests": Bounds(faults=2, requests=2),
}
