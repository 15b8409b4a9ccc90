-- What projections need to be kept up to date.  {table}, {key} and {type} are filled in from
-- the projection's declaration, never from data.

-- name: session
-- Settings of a projecting connection.  Rows and tracking are one transaction and can be
-- rebuilt, so a crash may take the last of both; waiting for the disk would buy nothing.
SELECT set_config('synchronous_commit', 'off', false);

-- name: register
-- Begins to track projections that are new here.
INSERT INTO tracking (projection, position)
SELECT name, 0 FROM unnest(%(names)s::text[]) AS name
    ON CONFLICT DO NOTHING;

-- name: positions
-- The head of the log and how far each projection is, as of one moment.
SELECT h.position, t.projection, t.position
  FROM log_head AS h LEFT JOIN tracking AS t ON t.projection = ANY(%(names)s);

-- name: lock
-- Takes the right to advance these projections from this position; what another process is
-- advancing right now is left out, not waited for.
SELECT projection
  FROM tracking
 WHERE projection = ANY(%(names)s) AND position = %(position)s
 ORDER BY projection
   FOR UPDATE SKIP LOCKED;

-- name: lock_for_rebuild
-- Takes the right to rebuild one projection; waits for it.
SELECT position FROM tracking WHERE projection = %(name)s FOR UPDATE;

-- name: events
-- The next events, in order.  Range scan of the primary key.
SELECT position, recorded_at, topic, originator_id, originator_version,
       attachment_id, volume_id, server_id, host,
       operation_id, request_id, cause, actor, user_id, project_id, body
  FROM events
 WHERE position > %(after)s AND position <= %(until)s
 ORDER BY position
 LIMIT %(limit)s;

-- name: load
-- The present rows of some keys.
SELECT * FROM {table} WHERE {key} = ANY(%(keys)s::{type}[]);

-- name: delete
-- Makes room for the new rows of some keys.
DELETE FROM {table} WHERE {key} = ANY(%(keys)s::{type}[]);

-- name: delete_all
-- Empties a projection before it is rebuilt; readers see the old rows until the commit.
DELETE FROM {table};

-- name: insert
-- The new rows, from JSON; the table's own columns say how to read it.
INSERT INTO {table} SELECT * FROM json_populate_recordset(NULL::{table}, %(rows)s::json);

-- name: advance
-- Records how far projections have come, in the transaction that brought them there, and
-- tells everybody.
WITH moved AS (
    UPDATE tracking SET position = %(position)s WHERE projection = ANY(%(names)s)
)
SELECT pg_notify('ledger_projected', '');

-- name: listen_appended
-- Be woken by appends.
LISTEN ledger_appended;

-- name: listen_projected
-- Be woken by projections that have advanced.
LISTEN ledger_projected;
