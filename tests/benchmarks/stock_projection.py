"""The library's own way to keep the attachments projection: a view, and one event at a time.

As its documentation has it: a tracking recorder with methods that write rows and tracking
in one transaction, a projection that calls them by the kind of event, and a runner.  Its
tables have the columns and indexes of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatchmethod
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
from eventsourcing.application import Application
from eventsourcing.persistence import StoredEvent, Tracking
from eventsourcing.postgres import PostgresTrackingRecorder
from eventsourcing.projection import Projection, ProjectionRunner

from aggregates.attachment import Attachment
from projections.attachments import ATTACHMENTS

TABLES = """
CREATE TABLE IF NOT EXISTS stock_attachments (LIKE attachments INCLUDING ALL);
CREATE TABLE IF NOT EXISTS stock_spans (LIKE spans INCLUDING ALL);
"""
CREATED = """
INSERT INTO stock_attachments (
    attachment_id, volume_id, server_id, host, state, adopted, created_at, spans,
    created_position, updated_at, position
) VALUES (
    %(id)s, %(volume_id)s, %(server_id)s, %(host)s, %(state)s, %(adopted)s, now(), '[]',
    %(position)s, now(), %(position)s
)
"""
MOVED = """
UPDATE stock_attachments SET state = %(state)s, updated_at = now(), position = %(position)s
 WHERE attachment_id = %(id)s
"""
CONNECTOR = """
UPDATE stock_attachments
   SET state = %(state)s, host = %(host)s, driver = %(driver)s, target_digest = %(target_digest)s,
       updated_at = now(), position = %(position)s
 WHERE attachment_id = %(id)s
"""
SPAN = """
INSERT INTO stock_spans (
    attachment_id, host, from_position, from_at, volume_id, server_id
) SELECT attachment_id, host, %(position)s, now(), volume_id, server_id
    FROM stock_attachments WHERE attachment_id = %(id)s
"""
CONNECTED = """
UPDATE stock_attachments
   SET state = %(state)s, device_path = %(device_path)s, updated_at = now(), position = %(position)s
 WHERE attachment_id = %(id)s
"""
SPAN_ENDED = """
UPDATE stock_spans SET to_position = %(position)s, to_at = now()
 WHERE attachment_id = %(id)s AND to_position IS NULL
"""


class AttachmentsView(PostgresTrackingRecorder):
    """Rows and tracking, in one transaction."""

    def write(self, statements: Sequence[str], values: dict[str, Any], tracking: Tracking) -> None:
        values["position"] = tracking.notification_id
        with self.datastore.transaction(commit=True) as cursor:
            for statement in statements:
                cursor.execute(statement, values, prepare=True)
            self._insert_tracking(cursor, tracking)


def _values(event: Any) -> dict[str, Any]:
    state = Attachment.TRANSITIONS[type(event)][1].value
    return {**event.__dict__, "id": event.originator_id, "state": state}


class StockAttachments(Projection[AttachmentsView]):
    name = "stock"
    topics = tuple(sorted(ATTACHMENTS.topics))

    @singledispatchmethod
    def process_event(self, domain_event: Any, tracking: Tracking) -> None:
        self.view.write([MOVED], _values(domain_event), tracking)

    @process_event.register
    def _(self, event: Attachment.AttachmentCreated, tracking: Tracking) -> None:
        self.view.write([CREATED], {"host": None, **_values(event)}, tracking)

    @process_event.register
    def _(self, event: Attachment.ConnectorUpdated, tracking: Tracking) -> None:
        self.view.write([CONNECTOR, SPAN], _values(event), tracking)

    @process_event.register
    def _(self, event: Attachment.Connected, tracking: Tracking) -> None:
        self.view.write([CONNECTED], _values(event), tracking)

    @process_event.register
    def _(self, event: Attachment.Disconnected, tracking: Tracking) -> None:
        self.view.write([MOVED, SPAN_ENDED], _values(event), tracking)

    @process_event.register
    def _(self, event: Attachment.Deleted, tracking: Tracking) -> None:
        self.view.write([MOVED, SPAN_ENDED], _values(event), tracking)


class StockLedger(Application):
    """The library's own application, with the library's own recorder."""

    is_snapshotting_enabled = False


class Stock:
    """The stock log and its projection, in the database of ours."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._env = {
            "PERSISTENCE_MODULE": "eventsourcing.postgres",
            "POSTGRES_DBNAME": "postgres",
            "POSTGRES_HOST": parse_qs(urlsplit(dsn).query)["host"][0],
            "POSTGRES_PORT": "5432",
            "POSTGRES_USER": "ledger",
            "POSTGRES_PASSWORD": "none",
        }
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(TABLES)

    def store(self, appends: Sequence[Sequence[StoredEvent]]) -> None:
        app: StockLedger = StockLedger(self._env)
        for events in appends:
            app.recorder.insert_events(events)
        app.close()

    def project(self) -> int:
        """Project all of the log from zero; the number of its events."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS stock_tracking, notification_tracking")
            connection.execute("TRUNCATE stock_attachments, stock_spans")
        with ProjectionRunner(
            application_class=StockLedger,
            projection_class=StockAttachments,
            view_class=AttachmentsView,
            env=self._env,
        ) as runner:
            head: int | None = runner.app.recorder.max_notification_id()
            assert head is not None, "the log was filled"
            runner.wait(self._last_wanted(), timeout=600)
        return head

    def _last_wanted(self) -> int:
        with psycopg.connect(self._dsn) as connection:
            [(last,)] = connection.execute(
                "SELECT max(notification_id) FROM stockledger_events WHERE topic = ANY(%s)",
                (list(StockAttachments.topics),),
            ).fetchall()
        return int(last)

    def rows(self) -> list[Any]:
        """What it came to, of the columns that do not tell when."""
        with psycopg.connect(self._dsn) as connection:
            return connection.execute(
                "SELECT state, count(*) FROM stock_attachments GROUP BY 1 ORDER BY 1"
            ).fetchall()
