"""Logging: one line per event, for people on a terminal and as JSON otherwise.

Every line within a run carries its operation, server, volume and request id, and
every line passes the masking of secrets, whichever library wrote it.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

from host_agent.shared import masking
from host_agent.shared.contract import Command

_bound: ContextVar[dict[str, str] | None] = ContextVar("bound", default=None)


@contextmanager
def bound(command: Command) -> Iterator[None]:
    """All lines logged inside belong to this command."""
    fields = {
        "operation": command.operation_id,
        "server": command.server_id,
        "request_id": command.request_id,
    }
    if command.lane is not None:
        fields["volume"] = command.lane.volume_id
    token = _bound.set(fields)
    try:
        yield
    finally:
        _bound.reset(token)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": masking.mask(_text(self, record)),
            **(_bound.get() or {}),
        }
        return json.dumps(line)


class HumanFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        fields = "".join(f" {key}={value}" for key, value in (_bound.get() or {}).items())
        text = masking.mask(_text(self, record))
        return f"{when} {record.levelname.lower():7} {text}{fields}"


def _text(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info:
        text += "\n" + formatter.formatException(record.exc_info)
    return text


def set_up(level: str, form: str, stream: TextIO | None = None) -> None:
    """`form` is "human", "json", or "auto": human if the stream is a terminal."""
    stream = stream or sys.stderr
    human = form == "human" or (form == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(HumanFormatter() if human else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
