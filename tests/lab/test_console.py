"""The console in a real browser: who has a volume, what moves by itself, and what is done there."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from handlers.drift.judge import APART_S
from tests.lab.browser import Browser, chromium
from tests.lab.control import Lab
from tests.lab.guest import LabGuest, wait_until
from tests.lab.settings import ENV, SETTLE_S

pytestmark = pytest.mark.lab


@pytest.mark.parametrize("scripts", [True, False], ids=["script", "no-script"])
def test_an_operator_sees_who_has_a_volume_and_that_nobody_had_it_before(
    scripts: bool, lab: Lab, guest: LabGuest, volume: str
) -> None:
    assert lab.ledger.attach(guest.id, volume).ok
    attached = lab.ledger.wait_outcome("attach", volume)
    with chromium(scripts=scripts) as browser:
        page = browser.page
        browser.hinder()
        browser.log_in(f"/ui/volumes/{volume}")
        held = page.get_by_role("table", name="Now", exact=True)
        assert ENV["LAB_HOST"] in held.inner_text()

        began = datetime.fromisoformat(attached["started_at"]) + timedelta(microseconds=1)
        page.get_by_label("As of").fill(began.isoformat())
        browser.button("Show")
        assert "As of" in page.get_by_role("status").inner_text()
        assert page.get_by_role("table", name="Then", exact=True).count() == 0, "nobody had it yet"

        page.get_by_role("link", name="Servers").click()
        assert "at=" in page.url, "the moment goes with the operator"
        page.get_by_role("searchbox").fill(volume)
        page.get_by_role("searchbox").press("Enter")
        page.wait_for_url(f"**/ui/volumes/{volume}")

        _look(browser, volume, 1)
        assert all("503" in each for each in browser.said), browser.said
        assert len(browser.said) == browser.scripts, "its first stream was refused"
        browser.said.clear()
        page.goto(f"/ui/volumes/{volume}")
        assert lab.ledger.detach(guest.id, volume).ok
        lab.ledger.wait_outcome("detach", volume)
        page.reload()
        assert page.get_by_role("table", name="Now", exact=True).count() == 0
        page.get_by_role("button", name="Log out").click()
        page.goto("/ui/operations")
        page.wait_for_url("**/ui/login?**")


def _look(browser: Browser, volume_id: str, times: int) -> None:
    """Ask for one at this volume from its page, and see it end, as so many before."""
    page = browser.page
    page.goto(f"/ui/volumes/{volume_id}")
    browser.link("Look now")
    browser.button("Look now")
    page.wait_for_url("**/ui/drift")
    of_volume = page.get_by_role("row").filter(has_text=volume_id[:8])
    ended = of_volume.filter(has_text="completed").nth(times - 1)
    if browser.scripts:
        ended.wait_for()
    else:
        wait_until(lambda: page.reload() and ended.count(), "the look to end", SETTLE_S)


def _moves(lab: Lab, browser: Browser, server_id: str, volume_id: str) -> None:
    """What is done elsewhere appears in the list and in the log without being asked for."""
    page = browser.page
    about = page.get_by_role("row").filter(has_text=volume_id[:8])
    page.goto("/ui/operations")
    assert about.count() == 0
    assert lab.ledger.attach(server_id, volume_id).ok
    about.get_by_text("completed").wait_for()
    browser.looked_at("operations")
    page.goto("/ui/log")
    deleted = about.filter(has_text="Attachment.Deleted")
    assert deleted.count() == 0
    assert lab.ledger.detach(server_id, volume_id).ok
    deleted.wait_for()
    browser.looked_at("log")
    for name, path in (("volumes", "/ui/volumes"), ("hosts", "/ui/hosts"), ("overview", "/ui/")):
        page.goto(path)
        browser.looked_at(name)


def test_an_incident_is_found_understood_and_mended_by_the_console_alone(
    lab: Lab, guest: LabGuest, volume: str, new_volume: Callable[[str], str]
) -> None:
    """Somebody has reserved a volume in Cinder for a server, and nobody is to attach it."""
    lab.cloud.as_service.attachments.create(volume, None, guest.id)
    with chromium() as browser:
        page = browser.page
        page.goto("/ui/login")
        browser.looked_at("login")
        browser.log_in("/ui/drift")
        _look(browser, volume, 1)
        first = time.monotonic()
        _moves(lab, browser, guest.id, new_volume("nfs"))
        wait_until(lambda: time.monotonic() - first > APART_S, "between looks", 2 * APART_S)
        _look(browser, volume, 2)
        page.goto(f"/ui/drift?volume={volume}")
        assert "confirmed" in browser.text()
        browser.looked_at("drift")
        page.get_by_role("table", name="Findings").get_by_role("link").first.click()
        page.wait_for_url("**/ui/drift/*-*")
        browser.looked_at("finding")
        finding = page.url
        browser.link("Ignore")
        browser.looked_at("ignore")
        page.goto(finding)
        browser.link("Repair")
        assert "nothing has been done yet" in browser.text()
        browser.looked_at("repair")
        page.get_by_label("Why").fill("nobody attaches it, the console says so")
        browser.button("Repair")
        page.wait_for_url("**/ui/operations/*-*")
        browser.shows("completed")
        browser.shows("Operation completed")
        browser.looked_at("operation")
        page.goto(finding)
        assert "over" in browser.text()
    assert lab.cloud.attachments(volume) == []
