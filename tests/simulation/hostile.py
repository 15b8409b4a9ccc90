"""Texts that tenants, hosts and Cinder send, and the doors through which they come.

The doors are the real ones: what a user's body must be (ledger.http.call), what is made of what an
agent says (ledger.agents.checks), and of Cinder's errors (host_agent.shared.cinder.calls).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aggregates.base import Event
from host_agent.shared.contract.messages import Registration, Report, StepResult
from host_agent.shared.contract.ports import PortError
from host_agent.shared.contract.wire import plain, read
from host_agent.shared.platform.masking import clean_message
from host_agent.shared.platform.text import is_showable, texts_in
from ledger.agents.checks import checked_registration, checked_report
from ledger.http.call import shown
from ledger.http.problem import ApiError

if TYPE_CHECKING:
    from tests.simulation.cloud import Cloud

#: What a terminal obeys or misreads, what XML cannot hold, what is no character, what is huge.
TEXTS = (
    "\x1b]0;owned\x07\x1b[2J",
    "\x9b31m",
    "safe\u202egnp.exe\u2066",
    "line\u2028end",
    "\ufffe\uffff\U0001fffe",
    "\ufdd0\x7f\x85",
    "two\r\nlines\tand more",
    "A" * 100_000,
)
#: Those that are not too long for what has a length in the API's schemas.
SHORT = tuple(text for text in TEXTS if len(text) < 100)
#: How often a text of a user is such a one.
RATE = 0.25
#: Longer than any text that somebody sent; plans and definitions have no such limit.
CHARS_MAX = 6 * 1000 + 200
_LONG = frozenset({"definition"})


class Hostile:
    """Draws texts, and shows them in at the doors; its draws are its own."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def text(self, plain: str) -> str:
        """A text of a user: now and then not what is expected."""
        chance = self._cloud.chance
        if chance.calm or chance.random.random() >= RATE:
            return plain
        return self._with(plain, SHORT)

    def message(self, plain: str) -> str:
        """Of an error: it quotes what others wrote."""
        return plain if self._cloud.chance.calm else self._with(plain, TEXTS)

    def _with(self, plain: str, among: tuple[str, ...]) -> str:
        self._cloud.happened["hostile text"] += 1
        return plain + self._cloud.chance.random.choice(among)

    def is_let_in(self, **texts: str | None) -> bool:
        """Whether the API takes a body with these texts of a user's."""
        with suppress(ApiError):
            return bool(shown(dict(texts)))
        return False

    def registered(self, said: Registration) -> Registration:
        """What becomes of what an agent says; every second guest has a bad name."""
        guests = tuple(
            replace(guest, name=guest.name + SHORT[number % len(SHORT)])
            if (number := int(guest.server_id[:8], 16)) % 2
            else guest
            for guest in said.guests
        )
        return checked_registration(read(plain(replace(said, guests=guests)), Registration))

    def reported(self, report: Report) -> Report:
        results = tuple(map(self._worded, report.results))
        report = read(plain(replace(report, results=results)), Report)
        return checked_report(report, self._cloud.database_now())

    def _worded(self, result: StepResult) -> StepResult:
        error = result.error
        if error is None:
            return result
        return replace(result, error=replace(error, message=self.message(error.message)))


class Worded:
    """Cinder's port: its errors quote what others wrote, and the adapter reads them."""

    def __init__(self, cloud: Cloud, port: Any) -> None:
        self._cloud, self._port = cloud, port

    def __getattr__(self, call: str) -> Any:
        real = getattr(self._port, call)

        def worded(*args: Any, **kwargs: Any) -> Any:
            try:
                return real(*args, **kwargs)
            except PortError as error:
                text = clean_message(self._cloud.hostile.message(error.message))
                raise PortError(error.kind, error.code, text) from error

        return worded


def unshowable(event: Event) -> Iterator[str]:
    """What the log says can be shown, whoever said it."""
    for name, value in vars(event).items():
        for text in texts_in(value):
            if not is_showable(text):
                yield f"{event.TOPIC} has {name} {text!a}"
            if len(text) > CHARS_MAX and name not in _LONG:
                yield f"{event.TOPIC} has {name} of {len(text)} characters"
