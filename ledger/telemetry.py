"""Logs of the service: human lines on a terminal, one JSON object per line elsewhere.

Every line of ours and of any library passes the same processors: what is bound to
the context (`bind(operation=..., request_id=...)`) is added, secrets are masked.
Masking is the second net; the first is that secrets are not handed to a logger.

`Tally` counts what happens often.
"""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, TextIO

import orjson
import structlog
from structlog.contextvars import bind_contextvars as bind
from structlog.typing import EventDict, Processor, WrappedLogger

from host_agent.shared.masking import masked

__all__ = ["Tally", "bind", "set_up"]

#: Libraries that tell every request at INFO.
_TALKATIVE = ("aiohttp.access", "keystoneauth", "urllib3", "asyncio")


def _mask_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    # Names with an underscore are structlog's own (the record, exc_info before it is text).
    return {
        key: value if key.startswith("_") else masked(value, key) for key, value in event.items()
    }


def _to_json(event: EventDict, **_options: Any) -> str:
    return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def set_up(level: str = "info", form: str = "auto", stream: TextIO | None = None) -> None:
    """Configure logging for this process; a second call replaces the first.

    `form` is "human", "json" or "auto": human where `stream` (stderr) is a terminal.
    """
    stream = stream or sys.stderr
    human = form == "human" or (form == "auto" and stream.isatty())
    shared = _shared_processors()
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,  # first: what is not logged costs nothing
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=_final_processors(human=human)
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))


def _shared_processors() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _final_processors(*, human: bool) -> list[Processor]:
    """Exceptions become text before masking, so that theirs is masked as well."""
    common: list[Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        _mask_secrets,
    ]
    if human:
        return [*common, structlog.dev.ConsoleRenderer(colors=False)]
    return [*common, structlog.processors.JSONRenderer(serializer=_to_json)]


class Tally:
    """A histogram, counted without locks, as Prometheus shows it.

    One thread at a time adds, any may read.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last for what is larger than all bounds
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
