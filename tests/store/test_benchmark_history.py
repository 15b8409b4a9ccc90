"""The long history that benchmarks read is one that the ledger could have written."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg

from aggregates.attachment import Attachment, AttachmentState
from aggregates.mapping import BlockDeviceMapping
from aggregates.volume import Volume
from ledger.log.application import Ledger
from tests.benchmarks.history import OLD_HOST, fill

KINDS = (Attachment, BlockDeviceMapping, Volume)
CATALOG = "SELECT indexdef FROM pg_indexes WHERE tablename = 'events' ORDER BY 1"


def test_every_stream_is_whole_and_is_taken_by_its_aggregate(
    ledger: Ledger, database_url: str, db: psycopg.Connection[Any]
) -> None:
    indexes = db.execute(CATALOG).fetchall()
    count = fill(database_url, 300)

    assert db.execute(CATALOG).fetchall() == indexes
    assert ledger.log_recorder.max_notification_id() == count
    events = ledger.log_recorder.select_notifications(1, count)
    assert [event.id for event in events] == list(range(1, count + 1))
    streams = {(UUID(str(e.originator_id)), e.topic.partition(".")[0]) for e in events}
    kinds = {kind.__name__: kind for kind in KINDS}
    found = [ledger.load(kinds[name], id_) for id_, name in streams]
    assert {type(aggregate) for aggregate in found} == set(KINDS)
    assert sum(aggregate.version for aggregate in found) == count
    ended = [one for one in found if isinstance(one, Attachment)]
    assert {one.state for one in ended} == {AttachmentState.DELETED, AttachmentState.ATTACHED}
    for volume in (one for one in found if isinstance(one, Volume)):
        assert len(volume.holders) <= 1
    assert sum(one.host == OLD_HOST for one in ended) == 6


def test_columns_say_what_the_events_are_about(
    ledger: Ledger, database_url: str, db: psycopg.Connection[Any]
) -> None:
    fill(database_url, 30)
    for id_, attachment_id, volume_id, server_id, host in db.execute(
        "SELECT DISTINCT ON (originator_id) originator_id, attachment_id, volume_id, server_id,"
        " host FROM events WHERE topic LIKE 'Attachment.%' ORDER BY 1, position DESC"
    ):
        about = ledger.load(Attachment, id_).about()
        wanted = (about.attachment_id, about.volume_id, about.server_id, about.host)
        assert (str(attachment_id), str(volume_id), str(server_id), host) == wanted
    times = [at for (at,) in db.execute("SELECT recorded_at FROM events ORDER BY position")]
    assert times == sorted(times)
