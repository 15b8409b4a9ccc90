"""The console in a real browser, at a volume that is really attached."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.lab.control import Lab
from tests.lab.guest import LabGuest
from tests.lab.settings import ENV, LAB_DIR

pytestmark = pytest.mark.lab

#: Pictures of the pages, for people.
PICTURES = LAB_DIR / "log"


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page of Debian's Chromium; whatever its console says fails the test."""
    from playwright.sync_api import sync_playwright

    said: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium",
            args=["--no-sandbox"],  # as root there is none
        )
        made = browser.new_page(color_scheme=request.param, base_url=ENV["LAB_LEDGER_URL"])
        made.on("console", lambda message: said.append(message.text))
        made.on("pageerror", lambda error: said.append(str(error)))
        yield made
        made.screenshot(path=PICTURES / f"console-{request.param}.png", full_page=True)
        browser.close()
    assert said == []


def test_an_operator_sees_who_has_a_volume_and_that_nobody_had_it_before(
    page: Any, lab: Lab, guest: LabGuest, volume: str
) -> None:
    assert lab.ledger.attach(guest.id, volume).ok
    attached = lab.ledger.wait_outcome("attach", volume)

    page.goto(f"/ui/volumes/{volume}")
    page.get_by_label("Token").fill(ENV["LAB_OPERATOR_TOKEN"])
    page.get_by_role("main").get_by_role("button", name="Log in").click()
    page.wait_for_url(f"**/ui/volumes/{volume}")
    held = page.get_by_role("table", name="Now")
    assert ENV["LAB_HOST"] in held.inner_text()

    began = datetime.fromisoformat(attached["started_at"]) + timedelta(microseconds=1)
    page.get_by_label("As of").fill(began.isoformat())
    page.get_by_role("button", name="Show").click()
    assert "As of" in page.get_by_role("status").inner_text()
    assert page.get_by_role("table", name="Then").count() == 0, "nobody had it yet"

    page.get_by_role("link", name="Servers").click()
    assert "at=" in page.url, "the moment goes with the operator"
    page.get_by_role("searchbox").fill(volume)
    page.get_by_role("searchbox").press("Enter")
    page.wait_for_url(f"**/ui/volumes/{volume}")

    assert lab.ledger.detach(guest.id, volume).ok
    lab.ledger.wait_outcome("detach", volume)
    page.reload()
    assert page.get_by_role("table", name="Now").count() == 0
    page.get_by_role("button", name="Log out").click()
    page.goto("/ui/operations")
    page.wait_for_url("**/ui/login?**")
