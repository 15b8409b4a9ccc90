"""The tour of docs/tour.md in a real browser, on a trial's cloud of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.settings import FULL
from tests.tour.night import RESOLVED, night
from tests.tour.seen import seen

pytestmark = pytest.mark.lab


@pytest.mark.skipif(not FULL, reason="full tier: test_console mends an incident in the quick")
def test_an_incident_is_resolved_in_the_console_as_the_tour_says(tmp_path: Path) -> None:
    with night() as begun:
        seen(begun, tmp_path)
        assert begun.state() == RESOLVED
