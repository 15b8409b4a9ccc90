"""The tour in the console: Debian's Chromium, from the log-in to the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.lab.browser import chromium
from tests.tour.night import Night
from tests.tour.png import smaller
from tests.tour.stable import Stable
from tests.tour.steps import STEPS

SIZE = {"width": 1100, "height": 700}
HEIGHT_MAX = 900
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
    with chromium(night.cloud.url, failed=pictures) as browser:
        page = browser.page
        page.set_viewport_size(SIZE)
        page.goto("/ui/")
        page.get_by_label("Token").fill(night.cloud.operator_token)
        page.get_by_role("button", name="Log in").click()
        for step in STEPS:
            step.before(night)
            step.clicks(page)
            if step.picture:
                _take(night, page, step.top, pictures / f"{step.picture}.png")
            step.then(page)


def _take(night: Night, page: Any, top: str, path: Path) -> None:
    """A picture with stable ids and times; the page is loaded anew afterwards."""
    stable = Stable(night, page.content())
    were = page.evaluate(_TEXTS)
    texts = [stable.age(text, moment) if moment else stable.text(text) for text, moment in were]
    page.evaluate(_PUT, [were, texts])
    begins = page.locator(top).bounding_box()["y"]
    height = page.evaluate("document.documentElement.scrollHeight") - begins
    clip = {"x": 0, "y": begins, "width": SIZE["width"], "height": min(height, HEIGHT_MAX)}
    path.write_bytes(smaller(page.screenshot(full_page=True, clip=clip)))
    page.reload()
