"""Surveys for tests: what is not said of one is empty."""

from __future__ import annotations

from typing import Any

from host_agent.shared.contract.survey import Survey, SurveyAnswer
from host_agent.shared.contract.wire import plain

_PARTS = ("guests", "connections", "storage", "secrets", "blind", "why_blind")


def survey(**told: Any) -> Survey:
    return Survey(**{"boot_id": "b", "epoch": 0, **dict.fromkeys(_PARTS, ()), **told})


def whole(shown: Survey, token: str) -> dict[str, Any]:
    """The survey as an agent sends it."""
    answer = SurveyAnswer(token=token, epoch=shown.epoch, digest=shown.digest())
    return {**plain(shown), **plain(answer)}
