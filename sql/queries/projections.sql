-- Keeping projections current.  {table}, {key} and {type} are filled in from the projection's
-- declaration, never from data.

-- name: session
-- Settings of a projector's connection.  Rows and tracking are one transaction and can be rebuilt,
-- so a crash may lose the last of both, and commits need not wait for the disk.  Every statement
-- has its index, and one generic plan, which does not depend on the size of a table and costs no
-- planning.
SELECT set_config('synchronous_commit', 'off', false), set_config('enable_seqscan', 'off', false),
       set_config('plan_cache_mode', 'force_generic_plan', false);

-- name: register
-- Adds new projections to `tracking`.
INSERT INTO tracking (projection, position)
SELECT name, 0 FROM unnest(%(names)s::text[]) AS name
    ON CONFLICT DO NOTHING;

-- name: positions
-- The head of the log, and each projection's position and number of rebuilds, as of one moment.
SELECT h.position, t.projection, t.position, t.rebuilds
  FROM log_head AS h JOIN tracking AS t ON t.projection = ANY(%(names)s);

-- name: lags
-- For some projections: position, lag in events, the age in seconds of the first event that each
-- lacks (0: none), and what holds it back (NULL: nothing).
SELECT projection, coalesce(t.position, 0) AS position,
       h.position - coalesce(t.position, 0) AS lag_events,
       coalesce(extract(epoch FROM clock_timestamp() - e.recorded_at), 0)::float8 AS lag_s,
       t.held
  FROM unnest(%(names)s::text[]) AS projection CROSS JOIN log_head AS h
  LEFT JOIN tracking AS t USING (projection)
  LEFT JOIN events AS e ON e.position = coalesce(t.position, 0) + 1
 ORDER BY projection;

-- name: unrest
-- Counts of unfinished operations and open findings, by kind and host (NULL: none).  An operation
-- counts at the host with an active run.  operations_open, the mailbox's primary key,
-- findings_open.
SELECT o.state AS reason, coalesce(m.host, o.host) AS host, count(DISTINCT operation_id)
  FROM operations AS o LEFT JOIN mailbox AS m USING (operation_id)
 WHERE o.state IN ('running', 'parked')
 GROUP BY 1, 2
UNION ALL
SELECT 'drift', host, count(*) FROM findings
 WHERE over_position IS NULL AND state IN ('suspected', 'confirmed')
 GROUP BY host
 ORDER BY 1, 2;

-- name: events
-- The next events of some topics, in order, after a row with the present head of the log in place
-- of a version.  Range scan of the primary key.  The topics are a constant, because only then
-- PostgreSQL hashes them, and most events may be others.
SELECT 0::bigint AS position, NULL::timestamptz AS recorded_at, NULL::text AS topic,
       NULL::text AS originator_id, position AS originator_version, NULL::text AS host,
       NULL::text AS operation_id, NULL::bytea AS body
  FROM log_head
UNION ALL
(
    SELECT position, recorded_at, topic, originator_id::text, originator_version, host,
           operation_id::text, body
      FROM events
     WHERE position > %(after)s AND position <= %(until)s AND topic = ANY({topics})
     ORDER BY position
);

-- name: load
-- The rows of some keys.
SELECT * FROM {table} WHERE {key} = ANY(%(keys)s::{type}[]);

-- name: streams
-- The events of some streams up to a position, in order.  The key of streams.
SELECT position, recorded_at, topic, originator_id::text, originator_version, host,
       operation_id::text, body
  FROM events
 WHERE originator_id = ANY(%(keys)s::uuid[]) AND position <= %(position)s
 ORDER BY position;

-- name: advance
-- Advances projections and their rows ({changes}: a part `remove`, `add` or `replace` for each
-- table), and notifies.  Only those that are still at the position that was folded from, and only
-- forward.  One that another process is writing now is skipped, without a wait; then the
-- notification does not say what changed ($5).  An advisory lock (also taken by `lock_live`)
-- detects that; unlike a row lock it writes nothing.  A process that comes just after it finds the
-- row moved.
WITH mine AS (
    UPDATE tracking AS t SET position = $4, held = NULL
      FROM unnest($1::text[], $2::int[]) AS expected (projection, rebuilds)
     WHERE t.projection = expected.projection AND t.rebuilds = expected.rebuilds
       AND t.position = $3 AND $3 < $4
       AND pg_try_advisory_xact_lock(hashtextextended(t.projection, t.tableoid::bigint))
    RETURNING t.projection
),
{changes}
told AS (
    SELECT pg_notify(
               'ledger_projected', CASE WHEN count(*) = cardinality($1::text[]) THEN $5 ELSE '' END)
      FROM mine HAVING count(*) > 0
)
SELECT mine.projection FROM mine LEFT JOIN told ON true;

-- name: remove
-- A part of `advance`: deletes rows by primary key, if they are not beyond the position that was
-- folded from ({within}).  A key with a NULL matches nothing.
gone_{nth} AS (
    DELETE FROM {table} AS t
     USING (SELECT {values}) AS r
     WHERE {same} AND {within} AND EXISTS (SELECT FROM mine WHERE projection = {name})
),;

-- name: add
-- A part of `advance`: new rows, as one array for each column.  unnest in the SELECT list reads the
-- arrays in step, which is cheaper than in FROM.  The primary key refuses an existing row.
new_{nth} AS (
    INSERT INTO {table} ({columns})
    SELECT {values}
     WHERE EXISTS (SELECT FROM mine WHERE projection = {name})
),;

-- name: replace
-- A part of `advance`: rows of which some exist.  These are updated (HOT, if no indexed column has
-- changed), and an equal long value is not stored again ({changes}).  If a row is beyond the
-- position that was folded from, its position becomes NULL, which every table refuses.
new_{nth} AS (
    INSERT INTO {table} AS t ({columns})
    SELECT {values}
     WHERE EXISTS (SELECT FROM mine WHERE projection = {name})
        ON CONFLICT ({keys}) DO UPDATE SET {changes}
),;

-- name: hold
-- Stores what holds a projection back, if it is still at that position; one that another process is
-- writing now is skipped, without a wait.
WITH mine AS (
    SELECT projection FROM tracking
     WHERE projection = %(name)s AND position = %(position)s AND rebuilds = %(rebuilds)s
       AND held IS DISTINCT FROM %(why)s
       FOR UPDATE SKIP LOCKED
)
UPDATE tracking SET held = %(why)s WHERE projection = (SELECT projection FROM mine);

-- name: columns
-- The columns of a table, in order, with their types, and whether they are in its primary key.
SELECT attname, format_type(atttypid, atttypmod),
       attnum = ANY(coalesce((SELECT conkey FROM pg_constraint
                               WHERE conrelid = attrelid AND contype = 'p'), '{}')) AS is_key
  FROM pg_attribute
 WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped
 ORDER BY attnum;

-- name: listen_appended
-- Be woken by appends.
LISTEN ledger_appended;

-- name: listen_projected
-- Be woken by projections that have advanced.
LISTEN ledger_projected;
