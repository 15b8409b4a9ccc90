-- The log: append and read.

-- name: append
-- Stores a batch of appends; see functions/append_events.sql.  One round trip, one commit.
SELECT head, refused, stored_at FROM append_events(%(streams)b, %(events)b);

-- name: append_met
-- As `append`; with the appends that are not refused it stores new rows of persons.
WITH stored AS MATERIALIZED (
    SELECT head, refused, stored_at FROM append_events(%(streams)b, %(events)b)),
met AS (
\ir parts/met.sql
     WHERE p.append_no <> ALL ((SELECT coalesce(refused, '{}') FROM stored)::int[])
        ON CONFLICT DO NOTHING)
SELECT * FROM stored;

-- name: writer_session
-- Settings of the writer's connection: the longest wait of an append for the lock of the log.
SELECT set_config('statement_timeout', %(timeout)s, false);

-- name: reader_session
-- Settings of a connection that reads the log.  Every statement has its index, and one generic
-- plan, because planning costs more than execution.
SELECT set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('enable_seqscan', 'off', false);

-- name: stream
-- One aggregate's events in order.  Range scan of events_originator_id_originator_version_key.
SELECT originator_id, originator_version, topic, body
  FROM events
 WHERE originator_id = %(id)s AND originator_version > %(gt)s AND originator_version <= %(lte)s
 ORDER BY originator_version
 LIMIT %(limit)s;

-- name: stream_backwards
-- One aggregate's events, newest first.  The same index, read backwards.
SELECT originator_id, originator_version, topic, body
  FROM events
 WHERE originator_id = %(id)s AND originator_version > %(gt)s AND originator_version <= %(lte)s
 ORDER BY originator_version DESC
 LIMIT %(limit)s;

-- name: streams
-- The events of several aggregates, each in order, after a version of each.  One range scan for
-- each of them, whatever the planner assumes about the arrays' length.
SELECT e.*
  FROM unnest(%(ids)s::uuid[], %(after)s::bigint[]) AS w (id, after)
 CROSS JOIN LATERAL (
       SELECT originator_id, originator_version, topic, body
         FROM events
        WHERE originator_id = w.id AND originator_version > w.after
        ORDER BY originator_version) AS e
 ORDER BY e.originator_id, e.originator_version;

-- name: notifications
-- The log from one position to another.  Range scan of the primary key.
SELECT originator_id, originator_version, topic, body, position
  FROM events
 WHERE position >= %(start)s AND position <= %(stop)s
 ORDER BY position
 LIMIT %(limit)s;

-- name: notifications_of_topics
-- As `notifications`, for some topics.  Reads the primary key until enough rows match.
SELECT originator_id, originator_version, topic, body, position
  FROM events
 WHERE position >= %(start)s AND position <= %(stop)s AND topic = ANY(%(topics)s)
 ORDER BY position
 LIMIT %(limit)s;

-- name: by_stream
-- The log, one aggregate after another, after an event.  Range scan of
-- events_originator_id_originator_version_key.
SELECT position, recorded_at, topic, originator_id::text, originator_version, host,
       operation_id::text, body
  FROM events
 WHERE (originator_id, originator_version) > (%(id)s, %(version)s)
 ORDER BY events.originator_id, events.originator_version
 LIMIT %(limit)s;

-- name: head
-- Position of the last event, 0 if there is none.  One row.
SELECT position FROM log_head;

-- name: chained
-- The log in the form of the hash chain (ledger/log/chain.py).  Range scan of the primary key.
SELECT event_bytes(e), e.chain
  FROM events AS e
 WHERE e.position > %(after)s AND e.position <= %(upto)s
 ORDER BY e.position;
