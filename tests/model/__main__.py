"""`python -m tests.model` (`make model`): explore all parts of the model, and tell what is broken.

Exit code 1: a rule is broken, or a part could not be explored to its end.  docs/model.md says how
to read it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from tests.model.explore import Bounds, explore
from tests.model.parts import FULL, SMALL

#: So many stories of one part are told; the first ones are the shortest.
STORIES_MAX = 5


def main() -> int:
    options = _options()
    parts = SMALL if options.small else FULL
    if options.faults is not None:
        own = {name: getattr(options, name) for name in ("volumes", "faults", "requests", "acts")}
        parts = {"as asked for": Bounds(**own, states_max=options.states_max)}
    good = True
    with quiet():
        for name, bounds in parts.items():
            print(f"{name}: {bounds}", flush=True)
            explored = explore(bounds, until=STORIES_MAX)
            print("".join(f"{violation}\n" for violation in explored.violations), end="")
            print(f"  {explored}", flush=True)
            good = good and explored.complete and not explored.violations
    return 0 if good else 1


@contextmanager
def quiet() -> Iterator[None]:
    """What the ledger logs of each fault is no news here."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        yield
    finally:
        structlog.configure(**before)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make model", description=__doc__)
    parser.add_argument("--small", action="store_true", help="what every change must pass")
    parser.add_argument("--faults", type=int, metavar="N", help="one part, with these bounds")
    for name, usual in (("volumes", 1), ("requests", 2), ("acts", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual, metavar="N")
    parser.add_argument("--states-max", type=int, default=10_000_000, metavar="N")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
