"""What docs/ has pictures of in a real browser: the tour, and a Nova that is watched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.settings import FULL
from tests.tour.night import RESOLVED, night
from tests.tour.seen import seen, seen_days
from tests.tour.watched import watched_days

pytestmark = pytest.mark.lab


@pytest.mark.skipif(not FULL, reason="full tier: test_console mends an incident in the quick")
def test_an_incident_is_resolved_in_the_console_as_the_tour_says(tmp_path: Path) -> None:
    with night() as begun:
        seen(begun, tmp_path)
        assert begun.state() == RESOLVED


@pytest.mark.skipif(not FULL, reason="full tier: test_console has the pages in the quick")
def test_the_console_shows_a_nova_that_is_watched(tmp_path: Path) -> None:
    with watched_days() as days:
        seen_days(days, tmp_path)
