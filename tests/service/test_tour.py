"""docs/tour.md shows what is printed, and that fits; its console is tried in the lab."""

from __future__ import annotations

import re

import pytest

from tests.tour.night import RESOLVED, night
from tests.tour.page import PAGE, PICTURES, page, screens
from tests.tour.steps import STEPS
from tests.tour.typed import COLUMNS, stable, typed

PICTURE_BYTES_MAX = 100_000


@pytest.mark.slow
def test_an_incident_is_resolved_on_the_command_line_as_the_tour_says() -> None:
    with night() as begun:
        shown = typed(begun)
        assert begun.state() == RESOLVED
        assert page(stable(begun, shown)) == PAGE.read_text(), "write it anew: make tour"
    for each in shown:
        for line in each.printed.splitlines():
            assert len(line) <= COLUMNS, (each.typed, line)


def test_what_the_tour_shows_fits_80_columns_and_has_every_command() -> None:
    shown = screens(PAGE.read_text())
    assert len(shown) == sum(len(step.typed) for step in STEPS)
    for screen in shown:
        assert max(map(len, screen.splitlines())) <= COLUMNS, screen


def test_the_pictures_of_the_tour_are_there_and_small() -> None:
    named = set(re.findall(r"\(tour/(\S+\.png)\)", PAGE.read_text()))
    kept = {path.name: path.stat().st_size for path in PICTURES.iterdir()}
    assert named == {f"{step.picture}.png" for step in STEPS if step.picture}
    assert named == set(kept)
    assert max(kept.values()) <= PICTURE_BYTES_MAX
