"""Detached months: some of their events are in the archive's files only.

Positions have no gaps, so where one is missing in the table its event was detached: it is
in an archive, and `attachment-ledger event restore` puts it back.  Whoever reads the log as
a whole gets DetachedError instead of fewer events.
"""

from __future__ import annotations

from typing import Any

import psycopg

import sql
from aggregates.attachment import Attachment
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation

#: Events after which there is none in their stream.  What lies between the first event and
#: such a one tells a story, and is needed for nothing else.
ENDINGS = [
    Operation.OperationFinished.TOPIC,
    Attachment.Deleted.TOPIC,
    Attachment.Disowned.TOPIC,
    BlockDeviceMapping.MappingEnded.TOPIC,
]


#: What an operator did in the middle of a stream stays: who did what by hand is always asked.
#: None of these needs what was before it (Operation.apply).
ACTS = [
    Operation.RetryRequested.TOPIC,
    Operation.StepSkipped.TOPIC,
    Operation.UnwindRequested.TOPIC,
]
#: So does what was taken as done without proof.
WAIVABLE = [Attachment.Disconnected.TOPIC, BlockDeviceMapping.DeviceUnplugged.TOPIC]


class DetachedError(Exception):
    """Events that are asked for are in an archive's files and no longer in the database."""

    def __init__(self, last_position: int, files: list[str]) -> None:
        super().__init__(
            f"Events up to position {last_position} are, in part, in the archive only "
            f"({', '.join(files)})."
        )
        self.last_position = last_position


def detached(connection: psycopg.Connection[Any], after: int) -> list[tuple[int, int, str]]:
    """First and last position, and file, of the months that end behind a position."""
    return connection.execute(sql.query("reads", "detached"), {"after": after}).fetchall()


def refuse_detached(connection: psycopg.Connection[Any], after: int) -> None:
    """Raise DetachedError if events after this position were detached."""
    if months := detached(connection, after):
        raise DetachedError(months[-1][1], [file for *_, file in months])
