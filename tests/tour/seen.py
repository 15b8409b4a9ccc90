"""The tour in the console: Debian's Chromium, from the log-in to the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.lab.browser import chromium
from tests.stack import ADMIN
from tests.tour.night import Night
from tests.tour.png import smaller
from tests.tour.stable import Stable
from tests.tour.steps import STEPS
from tests.tour.watched import PAGES, Days

SIZE = {"width": 1100, "height": 700}
HEIGHT_MAX = 900
#: For pages whose end is worth showing.
LARGER = {"width": 1280, "height": 600}
LARGER_HEIGHT_MAX = 940
#: The page's words, and the moments in it, of a copy that nothing moves any more.
_TEXTS = """() => {
    const main = document.querySelector("main");
    const still = main.cloneNode(true);
    still.querySelector("#moving")?.removeAttribute("id");
    main.replaceWith(still);
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = [];
    while (walker.nextNode()) {
        const moment = walker.currentNode.parentElement.closest("time");
        found.push([walker.currentNode.data, moment && moment.dateTime]);
    }
    return found;
}"""
_PUT = """([were, texts]) => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let n = 0; walker.nextNode(); n++) {
        if (walker.currentNode.data !== were[n][0]) throw new Error("the page has moved");
        walker.currentNode.data = texts[n];
    }
}"""


def seen(night: Night, pictures: Path) -> None:
    """Go all steps, with pictures of them; what cannot be done, or is not shown, fails."""
    with _console(night.cloud.url, night.cloud.operator_token, pictures) as page:
        for step in STEPS:
            step.before(night)
            step.clicks(page)
            if step.picture:
                _make_stable(night, page)
                _take(page, step.top, pictures / f"{step.picture}.png")
                page.reload()
            step.then(page)


def seen_days(days: Days, pictures: Path) -> None:
    """Pictures of a cloud that is watched."""
    with _console(days.stack.url(""), ADMIN, pictures) as page:
        page.set_viewport_size(LARGER)
        for name, path in PAGES.items():
            page.goto(path.format(moved=days.moved))
            _take(page, "body", pictures / f"{name}.png", LARGER_HEIGHT_MAX)


@contextmanager
def _console(url: str, token: str, failed: Path) -> Iterator[Any]:
    """Playwright's page, logged in."""
    with chromium(url, failed=failed) as browser:
        page = browser.page
        page.set_viewport_size(SIZE)
        page.goto("/ui/")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        yield page


def _make_stable(night: Night, page: Any) -> None:
    """Ids and times; the page is to be loaded anew afterwards."""
    stable = Stable(night, page.content())
    were = page.evaluate(_TEXTS)
    texts = [stable.age(text, moment) if moment else stable.text(text) for text, moment in were]
    page.evaluate(_PUT, [were, texts])


def _take(page: Any, top: str, path: Path, height_max: int = HEIGHT_MAX) -> None:
    begins = page.locator(top).bounding_box()["y"]
    height = page.evaluate("document.documentElement.scrollHeight") - begins
    clip = {
        "x": 0,
        "y": begins,
        "width": page.viewport_size["width"],
        "height": min(height, height_max),
    }
    path.write_bytes(smaller(page.screenshot(full_page=True, clip=clip)))
