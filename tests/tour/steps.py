"""The tour's steps: gone in the console and on the command line, told in docs/tour.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.tour.night import Night

#: Playwright's page.
Page = Any


def _nothing(_: Any) -> None:
    """Nothing is to be done."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """`sees`, `means`, `does`, `over`: as docs/tour.md tells it.

    `clicks` goes to what the picture shows (from `top` down), `then` on from there.  `typed` may
    name in braces what `finds` has: expressions that read it off the screen, of a step before.
    """

    title: str
    sees: str
    means: str
    does: str
    over: str
    clicks: Callable[[Page], None]
    typed: tuple[str, ...]
    picture: str | None = None
    top: str = "body"
    then: Callable[[Page], None] = _nothing
    finds: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[Night], None] = _nothing


def _main(page: Page) -> Any:
    return page.get_by_role("main")


def _link(page: Page, name: str) -> None:
    _main(page).get_by_role("link", name=name, exact=True).first.click()


def _menu(page: Page, name: str) -> None:
    page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
    page.get_by_role("heading", name=name, level=1).wait_for()


def _shows(page: Page, text: str) -> None:
    _main(page).get_by_text(text).first.wait_for()


def _ends(page: Page) -> None:
    """The operation, by its state and by its history."""
    _main(page).locator(".state", has_text="completed").first.wait_for()
    _shows(page, "Operation completed")


def _first_of(page: Page, table: str, having: str) -> None:
    """To what the first row with this text is about."""
    row = page.get_by_role("table", name=table).get_by_role("row").filter(has_text=having)
    row.get_by_role("link").first.click()


def _submit(page: Page, button: str, reason: str) -> None:
    page.get_by_label("Why; stored permanently in the history").fill(reason)
    _main(page).get_by_role("button", name=button, exact=True).click()


def _overview(page: Page) -> None:
    _shows(page, "Open drift")
    _shows(page, "reservation unknown")


def _operation(page: Page) -> None:
    _first_of(page, "Parked operations", "detach")
    _shows(page, "Retry")


def _skip(page: Page) -> None:
    _link(page, "Skip a step")
    _shows(page, "leaves behind")


def _retry(page: Page) -> None:
    _link(page, "Retry")
    _submit(page, "Retry", "array-7 is back")
    _ends(page)


def _finding(page: Page) -> None:
    _menu(page, "Drift")
    _first_of(page, "Findings", "reservation unknown")
    _shows(page, "suspected")


def _look(page: Page) -> None:
    _link(page, "Look now")
    _main(page).get_by_role("button", name="Look now", exact=True).click()
    confirmed = page.get_by_role("row").filter(has_text="reservation unknown")
    confirmed.get_by_text("confirmed").wait_for()


def _repair(page: Page) -> None:
    _first_of(page, "Findings", "reservation unknown")
    _link(page, "Repair")
    _shows(page, "nothing has been done yet")


def _repaired(page: Page) -> None:
    _submit(page, "Repair", "nobody waits for it")
    _ends(page)


def _calm(page: Page) -> None:
    _menu(page, "Overview")
    _shows(page, "Parked operations: none.")
    _shows(page, "Open drift: none.")


def _volume(page: Page) -> None:
    page.get_by_role("link", name="Servers").click()
    page.get_by_role("searchbox").fill("93b5d2f8")
    page.get_by_role("searchbox").press("Enter")
    _shows(page, "Retry requested: array-7 is back")


STEPS = (
    Step(
        title="Find it",
        sees="One operation is parked, and one finding is open. All hosts are up.",
        means="Parked means that the ledger has tried what it may try, and waits for an operator. "
        "Everything else continues.",
        does="Open the first page, *Overview*.",
        over="Once you know what is open: here a parked operation and a finding. Take one at a "
        "time.",
        clicks=_overview,
        picture="overview",
        typed=("drift list",),
        finds={
            "operation": r"^(\w{8})  operation_parked",
            "finding": r"^(\w{8})  reservation_unknown",
        },
    ),
    Step(
        title="Understand what is parked",
        sees="A user detached a volume from server db-1. The guest released the disk, and the "
        "host disconnected the volume; but Cinder refuses to delete the attachment, and says why.",
        means="The volume is safe: no guest uses it any more. It stays reserved until Cinder "
        "deletes its attachment.",
        does="Follow the operation's id.",
        over="Once you can say which step failed, what caused it, and what is where.",
        clicks=_operation,
        picture="operation",
        typed=("operation show {operation}",),
        finds={"stuck": r"^volumes +(\w{8})"},
    ),
    Step(
        title="See what an act would leave, before you choose one",
        sees="Skipping the step would end the operation now, and leave the attachment behind in "
        "Cinder.",
        means="Skip a step only if it can never succeed. Here the cause can be fixed, so do not "
        "skip. A dry run changes nothing.",
        does="Follow *Skip a step*, read the page, and go back without pressing the button.",
        over="Once you have decided: the array has to come back, then you retry the step. Call "
        "the storage team of array-7.",
        clicks=_skip,
        picture="skip",
        then=lambda page: page.go_back(),
        typed=('operation skip {operation} delete --reason "array-7 is away" --dry-run',),
    ),
    Step(
        title="Try again, once the cause is gone",
        sees="The array is out of maintenance. *Retry* runs the two pending steps; it does not "
        "run the others again.",
        means="A step checks the state before it acts, so a retry is always safe.",
        does="Follow *Retry*, give a reason, and press the button.",
        over="When the operation is `completed`. Its history has the reason.",
        before=Night.mend_the_array,
        clicks=_retry,
        picture="retried",
        typed=('operation retry {operation} --reason "array-7 is back" --wait',),
    ),
    Step(
        title="Understand what differs",
        sees="In Cinder, volume data-1 is reserved for server web-1. The ledger has no such "
        "attachment.",
        means="Cinder carried out a request after a time-out, or a client called Cinder past the "
        "ledger. No other server can get the volume until the reservation is gone. The finding is "
        "`suspected`: one look has seen it.",
        does="Follow *Drift*, then the finding's id.",
        over="Once you know what each party says.",
        clicks=_finding,
        picture="finding",
        typed=("drift show {finding}",),
        finds={"reserved": r"^volume +(\w{8})"},
    ),
    Step(
        title="Look again",
        sees="A second look sees the same, and the finding is `confirmed`.",
        means="A difference that lasts for a moment, in the middle of an operation, is no drift. "
        "Only what a second look sees, at least a minute later, can be repaired.",
        does="Follow *Look now*, and press the button.",
        over="When the finding is `confirmed`, or gone.",
        clicks=_look,
        typed=("drift run --volume {reserved} --wait",),
    ),
    Step(
        title="Repair it",
        sees="The plan: whom the repair asks again, what it does then, and what it never does.",
        means="The repair asks every party of the finding again before it deletes anything. If "
        "the finding no longer holds, it changes nothing.",
        does="Follow the finding, then *Repair*. Read the plan, give a reason, and press the "
        "button.",
        over="When the repair's operation is `completed`.",
        clicks=_repair,
        picture="repair",
        then=_repaired,
        typed=(
            'drift repair {finding} --reason "nobody waits for it"',
            'drift repair {finding} --reason "nobody waits for it" --apply --wait',
        ),
    ),
    Step(
        title="Know that it is over",
        sees="No operation is parked, and no finding is open.",
        means="Both volumes are `available` in Cinder, and can be attached again.",
        does="Open *Overview* once more.",
        over="Now. Write down the operation's id for the day shift.",
        clicks=_calm,
        picture="calm",
        typed=("drift list", "operation list --parked"),
    ),
    Step(
        title="Show what happened at 02:14",
        sees="Every step of the volume, who requested it, what Cinder answered, and your reason.",
        means="The history is stored permanently. Show it to the volume's owner.",
        does="Type the first characters of the volume's id into the search field.",
        over="",
        clicks=_volume,
        picture="volume",
        top="#history",
        typed=("history volume {stuck}",),
    ),
)
