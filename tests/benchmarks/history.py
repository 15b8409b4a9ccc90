"""A long history, multiplied in the database from one life that the aggregates wrote.

The life of an attachment is ten events in the streams of attachment, volume and mapping.
For 100 lives there is one host, for 10 a server, for 3 a volume; a volume's three follow
each other over half a year, on different servers, and a part of the last ones still lasts.
One host is old: a fiftieth of all attachments was there, each for so short a time that
about 30 are open at once.

The rows go straight into the tables, and the indexes are made after them, so these are as
tight as after a REINDEX.  What is left out is the hash chain.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid5

import psycopg

from aggregates.attachment import Attachment
from aggregates.base import Aggregate
from aggregates.mapping import BlockDeviceMapping
from aggregates.volume import Volume
from ledger.log.mapper import JSONBody, LedgerMapper

OLD_HOST = "compute-old"
_NAMES = UUID("7b1c4b9e-7a35-4e0c-9d1e-4f4d5f9d8d10")
_IDS = {name: str(uuid5(_NAMES, name)) for name in ("attachment_id", "volume_id", "server_id")}
_HOST = "host-of-the-template"
_MAPPER = LedgerMapper(JSONBody())
_SESSION = "SET synchronous_commit = off; SET work_mem = '256MB'; SET maintenance_work_mem = '1GB'"

#: `spread` gives each life a place in [0, 1) that looks like chance and is the same again;
#: a life takes `share` of its volume's turn, a third of the half year.
_LIVES = """
CREATE TEMP TABLE lives AS
WITH numbered AS (
    SELECT n, n / 3 AS volume, n %% 3 AS turn, (n / 3) %% 50 = 0 AS old,
           (n * 2654435761 %% 1000003) / 1000003.0::float8 AS spread
      FROM generate_series(0, %(lives)s::bigint - 1) AS n
),
placed AS (
    SELECT *,
           CASE WHEN old THEN least(0.8, 4500.0 / %(lives)s) ELSE 0.6 + 0.35 * spread END AS share,
           (volume * 7 + turn * 13) %% greatest(%(lives)s::bigint / 10, 1) AS server
      FROM numbered
),
timed AS (
    SELECT *,
           date_trunc('day', now()) - interval '183 days'
               + (turn + (1 - share) * spread) * interval '61 days' AS began,
           share * interval '61 days' AS lasts
      FROM placed
)
SELECT md5('attachment' || n)::uuid AS attachment_id, md5('mapping' || n)::uuid AS mapping_id,
       md5('volume' || volume)::uuid AS volume_id, md5('server' || server)::uuid AS server_id,
       CASE WHEN old THEN %(old_host)s
            ELSE 'compute-' || (server + turn) %% greatest(%(lives)s::bigint / 100, 1) END AS host,
       turn, began, CASE WHEN turn < 2 OR n %% 2 = 0 THEN began + lasts END AS ended
  FROM timed
"""

#: The template's events for every life, in the order of time.
_EVENTS = """
INSERT INTO events (
    position, originator_id, originator_version, topic, body, recorded_at,
    attachment_id, volume_id, server_id, host,
    operation_id, request_id, cause, actor, user_id, project_id, roles, append_id
)
SELECT row_number() OVER (ORDER BY at, attachment_id, nth),
       CASE stream WHEN 'Volume' THEN volume_id WHEN 'BlockDeviceMapping' THEN mapping_id
                   ELSE attachment_id END,
       version + CASE WHEN stream = 'Volume' THEN 2 * turn ELSE 0 END,
       topic,
       convert_to(replace(replace(replace(replace(body, %(attachment_id)s, attachment_id::text),
                  %(volume_id)s, volume_id::text), %(server_id)s, server_id::text),
                  %(host)s, host), 'UTF8'),
       at,
       CASE WHEN about_attachment THEN attachment_id END, volume_id,
       CASE WHEN about_server THEN server_id END, CASE WHEN about_host THEN host END,
       why, 'req-' || why, 'api', 'alice', 'u' || left(server_id::text, 4),
       'p' || left(server_id::text, 3), ARRAY['member'], why
  FROM (SELECT l.*, t.*,
               CASE WHEN t.ending THEN l.ended ELSE l.began END + t.nth * interval '0.7 s' AS at,
               md5(l.attachment_id::text || t.ending)::uuid AS why
          FROM lives AS l CROSS JOIN template AS t
         WHERE l.ended IS NOT NULL OR NOT t.ending) AS everything
"""
_TEMPLATE = """
CREATE TEMP TABLE template (
    nth int, ending boolean, stream text, version int, topic text, body text,
    about_attachment boolean, about_server boolean, about_host boolean
)
"""
_INTO_TEMPLATE = "INSERT INTO template VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
_KEYS = """
SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
 WHERE conrelid = %(table)s::regclass AND contype IN ('p', 'u')
"""
_HEAD = """
UPDATE log_head SET (position, recorded_at) =
       (SELECT position, recorded_at FROM events ORDER BY position DESC LIMIT 1)
"""


def fill(dsn: str, lives: int) -> int:
    """Fill an empty log; returns the number of events, a little below ten per life."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_SESSION)
        connection.execute(_LIVES, {"lives": lives, "old_host": OLD_HOST})
        connection.execute(_TEMPLATE)
        with connection.cursor() as cursor:
            cursor.executemany(_INTO_TEMPLATE, list(_template()))
        with _without_indexes(connection, "events"):
            count = connection.execute(_EVENTS, {**_IDS, "host": _HOST}).rowcount
        connection.execute(_HEAD)
        connection.execute("VACUUM ANALYZE events")
    return count


def _template() -> Iterator[tuple[Any, ...]]:
    """One life, as the aggregates record it."""
    attachment, volume = Attachment(UUID(_IDS["attachment_id"])), Volume(UUID(_IDS["volume_id"]))
    mapping = BlockDeviceMapping(uuid5(_NAMES, "mapping"))
    held = {name: _IDS[name] for name in ("server_id", "attachment_id")}
    device = {"device_name": "vdb", "tag": None, "boot_index": None}
    flags = {"delete_on_termination": False, "multiattach": False}
    target = {"driver": "iscsi", "target_digest": sha256(b"target").hexdigest()}

    attachment.record(
        Attachment.AttachmentCreated, volume_id=_IDS["volume_id"], server_id=_IDS["server_id"]
    )
    volume.record(Volume.Held, **held)
    mapping.record(BlockDeviceMapping.MappingCreated, **_IDS, **device, **flags)
    attachment.record(Attachment.ConnectorUpdated, host=_HOST, **target)
    attachment.record(Attachment.Connected, device_path="/dev/disk/by-id/dm-uuid-mpath-3707c1d47")
    attachment.record(Attachment.Completed)
    yield from _rows(attachment, volume, mapping, ending=False)

    attachment.record(Attachment.Disconnected)
    attachment.record(Attachment.Deleted)
    volume.record(Volume.Released, **held)
    mapping.record(BlockDeviceMapping.MappingEnded)
    yield from _rows(attachment, volume, mapping, ending=True)


def _rows(*aggregates: Aggregate, ending: bool) -> Iterator[tuple[Any, ...]]:
    streams = {aggregate.id: type(aggregate).__name__ for aggregate in aggregates}
    events = [event for aggregate in aggregates for event in aggregate.collect_events()]
    for event in sorted(events, key=lambda event: event.recording_order):
        stored, about = _MAPPER.to_stored_event(event), event.about
        yield (
            event.recording_order,
            ending,
            streams[event.originator_id],
            event.originator_version,
            stored.topic,
            stored.state.decode(),
            about.attachment_id is not None,
            about.server_id is not None,
            about.host is not None,
        )


@contextmanager
def _without_indexes(connection: psycopg.Connection[Any], table: str) -> Iterator[None]:
    """Take a table's indexes away and make them anew: faster than keeping them."""
    keys = connection.execute(_KEYS, {"table": table}).fetchall()
    for name, _ in keys:
        connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    indexes = connection.execute(
        "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = %(table)s", {"table": table}
    ).fetchall()
    for name, _ in indexes:
        connection.execute(f"DROP INDEX {name}")
    yield
    for name, definition in keys:
        connection.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}")
    for _, definition in indexes:
        connection.execute(definition)
