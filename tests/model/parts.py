"""The parts of the model that are explored to their end: in its small size, and in its full one."""

from __future__ import annotations

from tests.model.explore import Bounds

SMALL = {
    "one fault, two requests": Bounds(faults=1, requests=2),
    "one fault, a request, and an operator who looks, repairs, undoes or gives up": Bounds(
        faults=1, requests=1, acts=1
    ),
    "one fault, two volumes": Bounds(volumes=2, faults=1, requests=1),
}
FULL = {**SMALL}
