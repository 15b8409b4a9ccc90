"""`python -m tests.tour` (`make tour`): write docs/tour.md and all pictures.  Needs Chromium."""

from __future__ import annotations

from tests.tour.night import RESOLVED, night
from tests.tour.page import PAGE, PICTURES, page
from tests.tour.seen import seen, seen_days
from tests.tour.typed import stable, typed
from tests.tour.watched import watched_days


def main() -> None:
    with night() as begun:
        text = page(stable(begun, typed(begun)))
        assert begun.state() == RESOLVED, begun.state()
    PICTURES.mkdir(exist_ok=True)
    with night() as begun:
        seen(begun, PICTURES)
        assert begun.state() == RESOLVED, begun.state()
    with watched_days() as days:
        seen_days(days, PICTURES)
    PAGE.write_text(text)


main()
