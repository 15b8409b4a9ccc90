"""What a flow asks Cinder when nothing goes wrong: each call, by the step that it belongs to.

A call is counted where the simulated Cinder takes it, so it is one of HTTP, whoever makes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from host_agent.executor import lock_names
from host_agent.shared.contract.messages import Command
from host_agent.verbs.context import RunContext
from ledger.trial.cinder.model.model import CinderModel
from tests.flows.scenarios import Scenario

#: Outside of steps: a request is judged, and a host takes its locks.
ACCEPT, LOCKS = "accept", "locks"

#: Who asks, in which step ("verb", ACCEPT or LOCKS).
Asker = tuple[str, str]


class Counting:
    """The calls of one scenario, by who asks."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: dict[Asker, Counter[str]] = {}
        self._asker: Asker = ("service", ACCEPT)
        patch.setattr("tests.world.run_command", self._locked(_real("tests.world.run_command")))
        patch.setattr("tests.commands.carry_out", self._on_host(_real("tests.commands.carry_out")))
        patch.setattr(
            "ledger.core.service.carry_out", self._own(_real("ledger.core.service.carry_out"))
        )
        real = CinderModel.note_call

        def note(model: CinderModel, call: str, **ids: str | None) -> None:
            self.calls.setdefault(self._asker, Counter())[ids.get("action") or call] += 1
            real(model, call, **ids)

        patch.setattr(CinderModel, "note_call", note)

    def of(self, scenario: Scenario) -> dict[Asker, Counter[str]]:
        """All calls of the scenario's operation, which has to end well."""
        world = scenario.begin()
        self.calls.clear()
        world.done(scenario.ask(world))
        return self.calls

    def _during(self, asker: Asker, act: Callable[[], Any]) -> Any:
        before, self._asker = self._asker, asker
        try:
            return act()
        finally:
            self._asker = before

    def _locked(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def run(command: Command, ctx: RunContext, *args: Any, **more: Any) -> Any:
            self._during(("agent", LOCKS), lambda: lock_names(ctx, command))
            return real(command, ctx, *args, **more)

        return run

    def _on_host(self, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda command, step, ctx: self._during(
            ("agent", step.verb.value), lambda: real(command, step, ctx)
        )

    def _own(self, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda step, verb, *args: self._during(
            ("service", str(verb)), lambda: real(step, verb, *args)
        )


def _real(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(__import__(module, fromlist=[attribute]), attribute)


def line(calls: Counter[str]) -> str:
    """ "attachment_list, volume_show 2": the calls of one step."""
    named = sorted(calls.items())
    return ", ".join(call if count == 1 else f"{call} {count}" for call, count in named)
