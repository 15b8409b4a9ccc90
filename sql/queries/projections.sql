-- What projections need to be kept up to date.  {table}, {key} and {type} are filled in from
-- the projection's declaration, never from data.

-- name: session
-- Settings of a projecting connection.  Rows and tracking are one transaction and can be
-- rebuilt, so a crash may take the last of both; waiting for the disk would buy nothing.
-- Every statement has its index, and one plan for good: not one that suited a table when it
-- was small, and none that takes longer to make than to run.
SELECT set_config('synchronous_commit', 'off', false), set_config('jit', 'off', false),
       set_config('enable_seqscan', 'off', false),
       set_config('plan_cache_mode', 'force_generic_plan', false);

-- name: register
-- Begins to track projections that are new here.
INSERT INTO tracking (projection, position)
SELECT name, 0 FROM unnest(%(names)s::text[]) AS name
    ON CONFLICT DO NOTHING;

-- name: positions
-- The head of the log, how far each projection is, and how often it was made anew, as of one
-- moment.
SELECT h.position, t.projection, t.position, t.rebuilds
  FROM log_head AS h JOIN tracking AS t ON t.projection = ANY(%(names)s);

-- name: lags
-- How far some projections are, how many events behind, the age in seconds of the first event
-- that each lacks (0 if it lacks none), and what holds it back (NULL if nothing does).
SELECT name, coalesce(t.position, 0) AS position,
       h.position - coalesce(t.position, 0) AS lag_events,
       coalesce(extract(epoch FROM clock_timestamp() - e.recorded_at), 0)::float8 AS lag_s,
       t.held
  FROM unnest(%(names)s::text[]) AS name CROSS JOIN log_head AS h
  LEFT JOIN tracking AS t ON t.projection = name
  LEFT JOIN events AS e ON e.position = coalesce(t.position, 0) + 1
 ORDER BY name;

-- name: unrest
-- What is under way or waits for a person, counted by kind and host (NULL: at none).  Of an
-- operation the host that has a run of it counts.  operations_open, the mailbox's primary key,
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
-- The next events of some topics, in order, after a row with the head of the log at that
-- moment in place of a version.  Range scan of the primary key.  The topics are a constant,
-- for only then PostgreSQL looks them up by hash: most events may be others.
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
-- The present rows of some keys.
SELECT * FROM {table} WHERE {key} = ANY(%(keys)s::{type}[]);

-- name: streams
-- The events of some streams up to a position, in order.  The key of streams.
SELECT position, recorded_at, topic, originator_id::text, originator_version, host,
       operation_id::text, body
  FROM events
 WHERE originator_id = ANY(%(keys)s::uuid[]) AND position <= %(position)s
 ORDER BY position;

-- name: advance
-- Records how far projections have come, with their rows ({changes} are those of each
-- table: `remove`, `add`, `replace`), and tells everybody: of those that are still where these
-- rows were folded from, and never back.  What another process is writing right now is left out,
-- not waited for; then nobody can say what has moved ($5).  That is known by the lock of a number
-- (the other use of it is `lock_live`), which writes nothing, as one of the row would; who comes just
-- after finds the row moved.
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
-- A part of `advance`: deletes the rows that have some primary keys, as far as they are not beyond
-- where that was folded from ({within}).  A row with less than a key is not there.
gone_{nth} AS (
    DELETE FROM {table} AS t
     USING (SELECT {values}) AS r
     WHERE {same} AND {within} AND EXISTS (SELECT FROM mine WHERE projection = {name})
),;

-- name: add
-- A part of `advance`: new rows, given as an array for each column.  The arrays are gone through in
-- step, without a table made of each as behind FROM.  One that is there already is refused by the
-- primary key.
new_{nth} AS (
    INSERT INTO {table} ({columns})
    SELECT {values}
     WHERE EXISTS (SELECT FROM mine WHERE projection = {name})
),;

-- name: replace
-- A part of `advance`: rows of which some are there already.  Those are updated where they stand:
-- no index has to learn of a row that only some other columns of it changed, and what is large and
-- the same is not stored again ({changes}).  For a row that is beyond where the new one was folded
-- from the position comes out as NULL, which no table takes.
new_{nth} AS (
    INSERT INTO {table} AS t ({columns})
    SELECT {values}
     WHERE EXISTS (SELECT FROM mine WHERE projection = {name})
        ON CONFLICT ({keys}) DO UPDATE SET {changes}
),;

-- name: hold
-- Notes what a projection cannot take, if it is still where that was found; what another
-- process is writing right now is left out, not waited for.
WITH mine AS (
    SELECT projection FROM tracking
     WHERE projection = %(name)s AND position = %(position)s AND rebuilds = %(rebuilds)s
       AND held IS DISTINCT FROM %(why)s
       FOR UPDATE SKIP LOCKED
)
UPDATE tracking SET held = %(why)s WHERE projection = (SELECT projection FROM mine);

-- name: columns
-- The columns of a table, in order, their types, and whether they are of its primary key.
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
