-- The log: append and read.

-- name: append
-- Stores a batch of appends; see functions/append_events.sql.  One round trip, one commit.
SELECT append_no, first_position
  FROM append_events(
           %b::int[], %b::uuid[], %b::uuid[], %b::bigint[], %b::text[], %b::bytea[],
           %b::uuid[], %b::uuid[], %b::uuid[], %b::text[],
           %b::uuid[], %b::text[], %b::text[], %b::text[], %b::text[], %b::text[], %b::text[]
       );

-- name: writer_session
-- Settings of the writer's connection: no append waits longer for the lock of the log.
SELECT set_config('statement_timeout', %(timeout)s, false);

-- name: stream
-- One aggregate's events in order.  Range scan of events_originator_id_originator_version_key.
SELECT originator_id, originator_version, topic, body
  FROM events
 WHERE originator_id = %(id)s AND originator_version > %(gt)s AND originator_version <= %(lte)s
 ORDER BY originator_version
 LIMIT %(limit)s;

-- name: stream_backwards
-- One aggregate's events, last one first.  The same index, read backwards.
SELECT originator_id, originator_version, topic, body
  FROM events
 WHERE originator_id = %(id)s AND originator_version > %(gt)s AND originator_version <= %(lte)s
 ORDER BY originator_version DESC
 LIMIT %(limit)s;

-- name: streams
-- The events of several aggregates, each in order.  One range scan for each of them.
SELECT originator_id, originator_version, topic, body
  FROM events
 WHERE originator_id = ANY(%(ids)s)
 ORDER BY originator_id, originator_version;

-- name: notifications
-- The log from one position to another.  Range scan of the primary key.
SELECT originator_id, originator_version, topic, body, position
  FROM events
 WHERE position >= %(start)s AND position <= %(stop)s
 ORDER BY position
 LIMIT %(limit)s;

-- name: notifications_of_topics
-- The same for some topics only.  Reads the primary key until enough rows match.
SELECT originator_id, originator_version, topic, body, position
  FROM events
 WHERE position >= %(start)s AND position <= %(stop)s AND topic = ANY(%(topics)s)
 ORDER BY position
 LIMIT %(limit)s;

-- name: head
-- Position of the last event, 0 if there is none.  One row.
SELECT position FROM log_head;
