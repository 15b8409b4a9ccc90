"""What the lines of a run carry (host_agent/shared/platform/logs.py says how they are written)."""

from __future__ import annotations

from contextlib import AbstractContextManager

from structlog.contextvars import bound_contextvars

from host_agent.shared.contract.messages import Command


def bound(command: Command) -> AbstractContextManager[None]:
    """All lines logged inside belong to this command."""
    volume = {} if command.lane is None else {"volume": command.lane.volume_id}
    return bound_contextvars(
        operation=command.operation_id,
        server=command.server_id,
        request_id=command.request_id,
        **volume,
    )
