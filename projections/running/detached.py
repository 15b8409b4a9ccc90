"""Detached months: some of their events are only in archive files.

Positions have no gaps, so a missing position means that its event was detached;
`attachment-ledger event restore` puts it back.  A reader of the whole log gets DetachedError
instead of fewer events.
"""

from __future__ import annotations

from typing import Any

import psycopg

import sql
from aggregates.attachment import Attachment
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation

#: The last events of streams.  What is between the first event and one of these is needed only as
#: history.
ENDINGS = [
    Operation.OperationFinished.TOPIC,
    Attachment.Deleted.TOPIC,
    Attachment.Disowned.TOPIC,
    BlockDeviceMapping.MappingEnded.TOPIC,
]


#: Acts of operators in the middle of a stream are never detached, because auditors ask for them.
#: None of them needs the events before it (Operation.apply).
ACTS = [
    Operation.RetryRequested.TOPIC,
    Operation.StepSkipped.TOPIC,
    Operation.UnwindRequested.TOPIC,
]
#: Nor are these, if they were waived: recorded without proof.
WAIVABLE = [Attachment.Disconnected.TOPIC, BlockDeviceMapping.DeviceUnplugged.TOPIC]


class DetachedError(Exception):
    """Requested events are only in archive files, no longer in the database."""

    def __init__(self, last_position: int, files: list[str]) -> None:
        super().__init__(
            f"Events up to position {last_position} are, in part, in the archive only "
            f"({', '.join(files)})."
        )
        self.last_position = last_position


def detached(connection: psycopg.Connection[Any], after: int) -> list[tuple[int, int, str]]:
    """First and last position, and file, of the detached months that end after a position."""
    return connection.execute(sql.query("reads", "detached"), {"after": after}).fetchall()


def refuse_detached(connection: psycopg.Connection[Any], after: int) -> None:
    """Raise DetachedError if events after this position were detached."""
    if months := detached(connection, after):
        raise DetachedError(months[-1][1], [file for *_, file in months])
