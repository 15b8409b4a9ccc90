-- What the API and the dispatcher ask the projections and the log.  A filter that is NULL
-- does not filter; the server plans with the values, so each form uses its own index.

-- name: instance
-- One server.  Primary key.
SELECT * FROM instances WHERE server_id = %(server_id)s;

-- name: instances
-- Servers, newest first as Nova lists them, after a marker if one is given.  With a project
-- instances_by_project; name is a substring.
SELECT i.*
  FROM instances AS i
 WHERE (%(project_id)s::text IS NULL OR i.project_id = %(project_id)s)
   AND (%(name)s::text IS NULL OR strpos(i.name, %(name)s) > 0)
   AND NOT i.deleted
   AND (%(marker)s::uuid IS NULL OR (i.created_at, i.server_id) < (
           SELECT m.created_at, m.server_id FROM instances AS m WHERE m.server_id = %(marker)s))
 ORDER BY i.created_at DESC, i.server_id DESC
 LIMIT %(limit)s;

-- name: mappings
-- A server's mappings that have a volume, in the order they were made.  mappings_by_server.
SELECT * FROM mappings
 WHERE server_id = %(server_id)s AND volume_id IS NOT NULL AND (%(legacy)s OR NOT legacy)
 ORDER BY created_position
 LIMIT %(limit)s OFFSET %(offset)s;

-- name: mapping
-- The mapping of a volume to a server; there is at most one.  mappings_by_server.
SELECT * FROM mappings WHERE server_id = %(server_id)s AND volume_id = %(volume_id)s;

-- name: connected
-- A pair's attachments by which a host may have the volume.  attachments_by_server.
SELECT * FROM attachments
 WHERE server_id = %(server_id)s AND volume_id = %(volume_id)s
   AND state IN ('connecting', 'connected', 'attached')
 ORDER BY created_position DESC;

-- name: attachment
-- One attachment.  Primary key.
SELECT * FROM attachments WHERE attachment_id = %(attachment_id)s;

-- name: attachments
-- Attachments in the order they were made, after a created_position.  The index of
-- whichever filter is given.
SELECT * FROM attachments
 WHERE (%(volume_id)s::uuid IS NULL OR volume_id = %(volume_id)s)
   AND (%(server_id)s::uuid IS NULL OR server_id = %(server_id)s)
   AND (%(host)s::text IS NULL OR host = %(host)s)
   AND (NOT %(open_only)s OR state <> 'deleted')
   AND created_position > %(after)s
 ORDER BY created_position
 LIMIT %(limit)s;

-- name: attachments_at
-- Which attachments a host held, or who held a volume, at a moment.  spans_by_*.
SELECT * FROM spans
 WHERE (%(host)s::text IS NULL OR host = %(host)s)
   AND (%(volume_id)s::uuid IS NULL OR volume_id = %(volume_id)s)
   AND from_at <= %(at)s AND (to_at IS NULL OR to_at > %(at)s)
 ORDER BY from_position
 LIMIT %(limit)s;

-- name: operation
-- One operation.  Primary key.
SELECT * FROM operations WHERE operation_id = %(operation_id)s;

-- name: operations
-- Operations, newest first, before a started_position.  The index of the filter given.
SELECT * FROM operations
 WHERE (%(state)s::text IS NULL OR state = %(state)s)
   AND (%(flow)s::text IS NULL OR flow = %(flow)s)
   AND (%(server_id)s::uuid IS NULL OR server_id = %(server_id)s)
   AND (%(volume_id)s::uuid IS NULL OR volume_ids @> ARRAY[%(volume_id)s::uuid])
   AND (%(host)s::text IS NULL OR host = %(host)s)
   AND (%(after)s::bigint IS NULL OR started_position < %(after)s)
 ORDER BY started_position DESC
 LIMIT %(limit)s;

-- name: operations_of_server
-- A server's operations, newest first, before a started_position; those of one request, or
-- that moved last between two moments.  operations_by_server.
SELECT * FROM operations
 WHERE server_id = %(server_id)s
   AND (%(request_id)s::text IS NULL OR request_id = %(request_id)s)
   AND (%(since)s::timestamptz IS NULL OR updated_at >= %(since)s)
   AND (%(until)s::timestamptz IS NULL OR updated_at <= %(until)s)
   AND (%(after)s::bigint IS NULL OR started_position < %(after)s)
 ORDER BY started_position DESC
 LIMIT %(limit)s;

-- name: moves
-- Operations of some flows, newest first, before a started_position; with how far the last
-- long step has come, and the operation that settled a resize, if it did or is at it.
-- operations_by_start, or operations_by_server.
SELECT o.*, p.done_bytes, p.total_bytes, s.flow AS settled_flow, s.outcome AS settled_outcome
  FROM operations AS o
  LEFT JOIN LATERAL (
       SELECT done_bytes, total_bytes FROM progress
        WHERE operation_id = o.operation_id ORDER BY run DESC LIMIT 1) AS p ON true
  LEFT JOIN LATERAL (
       SELECT flow, outcome FROM operations
        WHERE server_id = o.server_id AND o.flow = 'resize'
          AND flow IN ('confirm_resize', 'revert_resize')
          AND started_position > o.started_position
          AND coalesce(outcome, 'completed') = 'completed'
        ORDER BY started_position LIMIT 1) AS s ON true
 WHERE o.flow = ANY(%(flows)s)
   AND (%(server_id)s::uuid IS NULL OR o.server_id = %(server_id)s)
   AND (%(after)s::bigint IS NULL OR o.started_position < %(after)s)
 ORDER BY o.started_position DESC
 LIMIT %(limit)s;

-- name: progress
-- How far an operation's long steps have come.  Primary key.
SELECT run, done_bytes, total_bytes, updated_at FROM progress
 WHERE operation_id = %(operation_id)s ORDER BY run;

-- name: note_progress
-- Notes how far a run has come, if it is this host's.  Primary keys.
INSERT INTO progress (operation_id, run, done_bytes, total_bytes)
SELECT m.operation_id, m.run, %(done_bytes)s, %(total_bytes)s
  FROM mailbox AS m
 WHERE m.operation_id = %(operation_id)s AND m.run = %(run)s AND m.host = %(host)s
    ON CONFLICT (operation_id, run) DO UPDATE
       SET done_bytes = EXCLUDED.done_bytes, total_bytes = EXCLUDED.total_bytes,
           updated_at = clock_timestamp()
RETURNING run;

-- name: servers_with_volumes
-- Servers that are on a host, or on any, and have volumes, after a server id.
-- instances_by_host and mappings_by_server.
SELECT i.server_id FROM instances AS i
 WHERE i.host IS NOT NULL AND NOT i.deleted
   AND (%(host)s::text IS NULL OR i.host = %(host)s)
   AND (%(after)s::uuid IS NULL OR i.server_id > %(after)s)
   AND EXISTS (SELECT 1 FROM mappings AS m
                WHERE m.server_id = i.server_id AND m.volume_id IS NOT NULL)
 ORDER BY i.server_id
 LIMIT %(limit)s;

-- name: commands
-- A host's commands in the order they were given, after a cursor.  mailbox_by_host.
-- Those called off by one act have one position, and no page ends between them.
SELECT position, command FROM mailbox
 WHERE host = %(host)s AND position > %(after)s
 ORDER BY position
 FETCH FIRST %(limit)s ROWS WITH TIES;

-- name: hosts
-- Hosts with their last contact, what is open there and how many guests they have; all of
-- them or one.  The counts use attachments_open_by_host, mailbox_by_host, instances_by_host.
SELECT h.*, c.seen_at,
       (SELECT count(*) FROM attachments AS a
         WHERE a.host = h.host AND a.state <> 'deleted') AS open_attachments,
       (SELECT count(*) FROM mailbox AS m WHERE m.host = h.host) AS open_commands,
       (SELECT count(*) FROM instances AS i
         WHERE i.host = h.host AND NOT i.deleted) AS guests
  FROM hosts AS h LEFT JOIN host_contact AS c USING (host)
 WHERE %(host)s::text IS NULL OR h.host = %(host)s
 ORDER BY h.host;

-- name: position_at
-- The last position recorded at or before a moment, 0 if there is none.  Halves the log
-- until it is found: positions have no gaps, and times never go back.
WITH RECURSIVE search (low, high) AS (
    SELECT 0::bigint, position FROM log_head
    UNION ALL
    SELECT CASE WHEN e.recorded_at <= %(at)s THEN s.middle ELSE s.low END,
           CASE WHEN e.recorded_at <= %(at)s THEN s.high ELSE s.middle - 1 END
      FROM (SELECT low, high, (low + high + 1) / 2 AS middle FROM search WHERE low < high) AS s
      JOIN events AS e ON e.position = s.middle
)
SELECT low AS position FROM search WHERE low = high;

-- name: history
-- Events about one thing, between two positions, oldest first.  events_by_{column}.
SELECT position, recorded_at, topic, originator_id, originator_version AS version,
       attachment_id, volume_id, server_id, host, operation_id, request_id, cause,
       actor, user_id, project_id, roles, body
  FROM events
 WHERE {column} = %(id)s AND position > %(after)s AND position < %(before)s
 ORDER BY position
 LIMIT %(limit)s;

-- name: history_backwards
-- The same, newest first.
SELECT position, recorded_at, topic, originator_id, originator_version AS version,
       attachment_id, volume_id, server_id, host, operation_id, request_id, cause,
       actor, user_id, project_id, roles, body
  FROM events
 WHERE {column} = %(id)s AND position > %(after)s AND position < %(before)s
 ORDER BY position DESC
 LIMIT %(limit)s;

-- name: feed
-- All events between two positions, oldest first.  Primary key.
SELECT position, recorded_at, topic, originator_id, originator_version AS version,
       attachment_id, volume_id, server_id, host, operation_id, request_id, cause,
       actor, user_id, project_id, roles, body
  FROM events
 WHERE position > %(after)s AND position < %(before)s
 ORDER BY position
 LIMIT %(limit)s;

-- name: feed_backwards
-- The same, newest first.
SELECT position, recorded_at, topic, originator_id, originator_version AS version,
       attachment_id, volume_id, server_id, host, operation_id, request_id, cause,
       actor, user_id, project_id, roles, body
  FROM events
 WHERE position > %(after)s AND position < %(before)s
 ORDER BY position DESC
 LIMIT %(limit)s;

-- name: head
-- Position and time of the last event.
SELECT position, recorded_at FROM log_head;

-- name: tracking
-- How far each projection is, how many events behind, and the age in seconds of the first
-- event it lacks (0 if it lacks none).
SELECT t.projection, t.position, h.position - t.position AS lag_events,
       coalesce(extract(epoch FROM clock_timestamp() - e.recorded_at), 0)::float8 AS lag_s
  FROM tracking AS t CROSS JOIN log_head AS h
  LEFT JOIN events AS e ON e.position = t.position + 1
 ORDER BY t.projection;

-- name: touch_host
-- Notes that a host's agent was in contact just now.
INSERT INTO host_contact (host, seen_at) VALUES (%(host)s, clock_timestamp())
    ON CONFLICT (host) DO UPDATE SET seen_at = EXCLUDED.seen_at;

-- name: due
-- Takes leases on operations that are due and that nobody else holds, the longest due
-- first; `taken_over` if the last holder never gave its lease back, so may have left
-- something half done.  operations_due; the insert goes in order of id, so takers cannot
-- deadlock.
WITH d AS MATERIALIZED (
    SELECT o.operation_id, taken.holder IS NOT NULL AS taken_over
      FROM operations AS o LEFT JOIN leases AS taken USING (operation_id)
     WHERE o.due_at <= %(now)s
       AND (taken.until IS NULL OR taken.until < clock_timestamp())
     ORDER BY o.due_at
     LIMIT %(limit)s
),
got AS (
    INSERT INTO leases AS l (operation_id, holder, until)
    SELECT d.operation_id, %(holder)s, clock_timestamp() + make_interval(secs => %(lease_s)s)
      FROM d
     ORDER BY d.operation_id
        ON CONFLICT (operation_id) DO UPDATE
           SET holder = EXCLUDED.holder, until = EXCLUDED.until
         WHERE l.until < clock_timestamp()
    RETURNING l.operation_id
)
SELECT operation_id, d.taken_over FROM got JOIN d USING (operation_id);

-- name: renew
-- Prolongs leases and says which the holder still has.
UPDATE leases SET until = clock_timestamp() + make_interval(secs => %(lease_s)s)
 WHERE holder = %(holder)s AND operation_id = ANY(%(ids)s::uuid[])
RETURNING operation_id;

-- name: release
-- Gives a lease back.
DELETE FROM leases WHERE holder = %(holder)s AND operation_id = %(operation_id)s;

-- name: release_all
-- Lets all leases of a holder run out now, for those that its last life left behind.
UPDATE leases SET until = '-infinity' WHERE holder = %(holder)s;

-- name: changed_hosts
-- Hosts that were given commands after a position.  mailbox_by_position.
SELECT DISTINCT host FROM mailbox WHERE position > %(after)s;

-- name: changed_operations
-- Operations that moved after a position.  operations_by_position.
SELECT operation_id FROM operations WHERE position > %(after)s;

-- name: marks
-- The head of the log, and how far operations and mailbox are (0: not tracked yet).
SELECT h.position,
       coalesce((SELECT t.position FROM tracking AS t WHERE t.projection = 'operations'), 0)
  FROM log_head AS h;

-- name: listen
-- Be woken when projections have advanced.
LISTEN ledger_projected;

-- name: guests_of_host
-- The servers a host is known to have, those it has lost left out.  instances_by_host.
SELECT server_id FROM instances WHERE host = %(host)s AND power_state <> 'nostate';

-- name: open_on_host
-- The operations that may have a command for this host under way.  mailbox_by_host.
SELECT DISTINCT operation_id FROM mailbox WHERE host = %(host)s;

-- name: bound_for_host
-- The operations that take a server to this host.  operations_open.
SELECT operation_id FROM operations WHERE state = 'running' AND destination = %(host)s;

-- name: counts
-- Operations by what becomes of them, for metrics.  operations_open, operations_due.
SELECT (SELECT count(*) FROM operations WHERE state = 'running') AS running,
       (SELECT count(*) FROM operations WHERE state = 'parked') AS parked,
       (SELECT count(*) FROM operations
         WHERE due_at IS NOT NULL AND due_at <= clock_timestamp()) AS due,
       (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(updated_at)), 0)::float8
          FROM operations WHERE state = 'parked') AS oldest_parked_s;
