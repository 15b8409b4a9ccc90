"""docs/tour.md shows what is printed, and that fits; its console is tried in the lab."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tour.night import RESOLVED, night
from tests.tour.page import PAGE, PICTURES, ROOT, page, screens
from tests.tour.steps import STEPS
from tests.tour.typed import COLUMNS, stable, typed
from tests.tour.watched import PAGES

SHOW = (PAGE, ROOT / "README.md", ROOT / "docs/observe.md")
PICTURE_BYTES_MAX = 110_000


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


def test_the_pictures_are_there_small_and_shown() -> None:
    shown = set(re.findall(r"\((?:docs/)?tour/(\S+\.png)\)", "".join(map(Path.read_text, SHOW))))
    kept = {path.name: path.stat().st_size for path in PICTURES.iterdir()}
    assert shown == {f"{name}.png" for name in (*PAGES, *(each.picture for each in STEPS)) if name}
    assert shown == set(kept)
    assert max(kept.values()) <= PICTURE_BYTES_MAX
