"""Logs of both programs: human lines on a terminal, one JSON object per line elsewhere.

Our code logs an event with fields, by `structlog.get_logger(__name__)`.  Event names are snake_case
words; sentences and values are fields: `why` says what went wrong, `hint` what to do.  All records,
also those of libraries, pass the same processors: the bound context (`structlog.contextvars`) is
added, and secrets are masked.  Masking is the second safeguard; the first is not to log secrets.

Texts also come from tenants, Cinder and guests, and must not look like a record.  A record is one
JSON object on one line; or, for people, one line with line ends and control characters escaped,
followed by its traceback, indented.  So every line that begins in the first column is a record.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from host_agent.shared.platform.masking import is_blanked, mask, masked
from host_agent.shared.platform.text import one_line

#: Libraries that log every request: only at DEBUG.
_TALKATIVE = ("aiohttp.access", "keystoneauth", "urllib3", "asyncio")


def set_up(level: str = "info", form: str = "auto", stream: TextIO | None = None) -> None:
    """Configure logging for this process; a second call replaces the first.

    `form` is "human", "json" or "auto": human where `stream` (stderr) is a terminal.
    """
    stream = stream or sys.stderr
    human = form == "human" or (form == "auto" and stream.isatty())
    through_the_standard_library()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_shared_processors(), processors=_final_processors(human=human)
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    quiet = logging.NOTSET if root.level <= logging.DEBUG else max(root.level, logging.WARNING)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(quiet)


def through_the_standard_library() -> None:
    """Send structlog's events to the handlers of the standard library."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,  # first: what is not logged costs nothing
            *_shared_processors(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _shared_processors() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _final_processors(*, human: bool) -> list[Processor]:
    """Exceptions become text before masking, so that they are masked as well."""
    common: list[Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        _mask_secrets,
    ]
    if human:
        return [*common, _render_for_people]
    return [*common, structlog.processors.JSONRenderer(default=str, skipkeys=True)]


_one_text = structlog.dev.ConsoleRenderer(colors=False)


def _render_for_people(logger: WrappedLogger, method: str, event: EventDict) -> str:
    """One line, then the indented lines of a stack or traceback."""
    behind = [str(event.pop(key)) for key in ("stack", "exception") if event.get(key)]
    lines = [one_line(line) for text in behind for line in text.split("\n")]
    return "\n    ".join([one_line(_one_text(logger, method, event)), *lines])


def _mask_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Most records have no secret, so the texts of a record are first checked together."""
    together = "\n".join(value for value in event.values() if isinstance(value, str))
    clean = mask(together) == together

    def shown(key: str, value: Any) -> Any:
        # Names with an underscore are structlog's own (the record, exc_info before it is text).
        harmless = clean and isinstance(value, str) and not is_blanked(key)
        return value if harmless or key.startswith("_") else masked(value, key)

    return {key: shown(key, value) for key, value in event.items()}
