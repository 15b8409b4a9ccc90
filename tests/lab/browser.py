"""Debian's Chromium at the console: what it complains of fails, and people get pictures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from tests.lab.settings import ENV, LOG_DIR, SETTLE_S

#: Pictures of the pages, for people.
PICTURES = LOG_DIR
#: A desk, a telephone, and a wall; and A4 within the margins of the console's @page.
SIZES, PAPER = ((1280, 800), (390, 800), (2560, 1300)), (1031, 702)
LOOKS = (*product(["screen"], ["light", "dark"], SIZES), ("print", "light", PAPER))
#: For what the service does by itself, and for a page that is to show it.
SHOWN_MS = SETTLE_S * 1000.0
#: A script that comes so late has been waited for.
LATE_S = 0.5


class Browser:
    """One tab.  `page`: Playwright's.  `scripts`: whether pages' own are run.

    `said`: what its console complains of; who expects that takes it out.
    """

    def __init__(self, page: Any, *, scripts: bool, said: list[str]) -> None:
        from axe_playwright_python.sync_playwright import Axe

        self.page = page
        self.scripts = scripts
        self.said = said
        self._axe = Axe()
        self._main = page.get_by_role("main")
        page.set_default_timeout(SHOWN_MS)

    def log_in(self, path: str) -> None:
        """As Keystone's administrator, by password, on the way to this page."""
        self.page.goto(path)
        self.page.get_by_label("User").fill("admin")
        self.page.get_by_label("Project").fill("admin")
        password = self.page.get_by_label("Password")
        password.fill(ENV["LEDGER_LAB_KEYSTONE_PASSWORD"])
        password.press("Enter")
        self.page.wait_for_url(f"**{path}")

    def link(self, name: str) -> None:
        self._main.get_by_role("link", name=name, exact=True).first.click()

    def button(self, name: str) -> None:
        self._main.get_by_role("button", name=name, exact=True).click()

    def hinder(self) -> None:
        """Pages' second script comes late, and the first of their streams is refused."""
        refusals = iter(range(1))

        def late(route: Any) -> None:
            time.sleep(LATE_S)
            route.continue_()

        def refused(route: Any) -> None:
            streams = "text/event-stream" in route.request.headers.get("accept", "")
            if streams and next(refusals, None) is not None:
                route.fulfill(status=503)
            else:
                route.fallback()

        self.page.route("**/ui/**", refused)
        self.page.route("**/hx-sse.min.js", late)

    def shows(self, text: str) -> None:
        """Wait until it does, without being asked to load anything."""
        self._main.get_by_text(text).first.wait_for()

    def text(self) -> str:
        return str(self._main.inner_text())

    def looked_at(self, name: str) -> None:
        """A picture in each light and size; whoever cannot see it has to get along, too."""
        for media, light, (width, height) in LOOKS:
            self.page.emulate_media(media=media, color_scheme=light)
            self.page.set_viewport_size({"width": width, "height": height})
            picture = PICTURES / f"console-{name}-{light}-{width}.png"
            self.page.screenshot(path=picture, full_page=True)
            wide = self.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, (picture.name, "a table scrolls, not the page; on paper nothing")
            found = self._axe.run(self.page)
            assert found.violations_count == 0, (picture.name, found.generate_report())
        assert not self.page.get_by_role("navigation").is_visible(), "it is of no use on paper"
        self.page.emulate_media(media="screen", color_scheme="light")
        self.page.set_viewport_size({"width": SIZES[0][0], "height": SIZES[0][1]})


@contextmanager
def chromium(
    url: str = ENV["LAB_LEDGER_URL"], *, scripts: bool = True, failed: Path = PICTURES
) -> Iterator[Browser]:
    """A tab; whatever its console says, and what the content policy refuses, fails at the end.

    `failed`: the directory for a picture of the page at which a test has failed.
    """
    from playwright.sync_api import sync_playwright

    said: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium",
            args=["--no-sandbox"],  # as root there is none
        )
        context = browser.new_context(base_url=url, java_script_enabled=scripts)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        try:
            yield Browser(page, scripts=scripts, said=said)
        except BaseException as error:
            page.screenshot(path=failed / "console-failed.png", full_page=True)
            error.add_note(f"its console: {said}\n{page.url}\n{page.inner_text('main')}")
            raise
        finally:
            browser.close()
    assert said == [], said
