-- Reads of the API and the dispatcher.  A filter that is NULL does not filter; PostgreSQL plans
-- with the values, so each form uses its own index.

-- name: instance
-- One server, and the last contact of its host's agent.  Primary keys.
SELECT i.*, c.seen_at AS host_seen_at
  FROM instances AS i LEFT JOIN host_contact AS c USING (host)
 WHERE i.server_id = %(server_id)s;

-- name: ours
-- Whether servers are the ledger's own, also deleted ones, as the log has it; `late`: the tables do
-- not show that yet.  Primary keys, events_by_server, events_originator_id_originator_version_key.
SELECT w.id AS server_id,
       coalesce(o.adopted, i.server_id IS NOT NULL AND i.origin IS NULL) AS ours,
       o.adopted IS NOT NULL OR (i.server_id IS NULL AND EXISTS (
           SELECT FROM events WHERE originator_id = w.id)) AS late
  FROM unnest(%(ids)s::uuid[]) AS w (id) LEFT JOIN instances AS i ON i.server_id = w.id
  LEFT JOIN LATERAL (
           SELECT topic = 'Instance.Adopted' AS adopted FROM events
            WHERE server_id = w.id AND topic IN ('Instance.Adopted', 'Instance.HandedBack')
              AND position > (SELECT position FROM tracking WHERE projection = 'instances')
            ORDER BY position DESC LIMIT 1) AS o ON true;

-- name: timeout
-- The statement timeout of this transaction, in milliseconds.
SELECT set_config('statement_timeout', %(ms)s, true);

-- name: named
-- Objects with an id between two, or with this name; with a project only those of its servers.  At
-- most ten of each kind.  Primary keys, instances_by_name, attachments_by_volume,
-- mappings_by_volume, findings_by_volume.
WITH own AS (
    (SELECT 'server' AS kind, server_id::text AS id, name FROM instances
      WHERE server_id BETWEEN %(low)s AND %(high)s
        AND (%(project_id)s::text IS NULL OR project_id = %(project_id)s) LIMIT 10)
    UNION
    (SELECT 'server', server_id::text, name FROM instances
      WHERE name = %(text)s AND NOT deleted
        AND (%(project_id)s::text IS NULL OR project_id = %(project_id)s) LIMIT 10)
    UNION ALL
    (SELECT DISTINCT 'volume', v.volume_id::text, NULL
       FROM (SELECT volume_id, server_id FROM attachments
              WHERE volume_id BETWEEN %(low)s AND %(high)s
              UNION ALL
             SELECT volume_id, server_id FROM mappings
              WHERE volume_id BETWEEN %(low)s AND %(high)s
              UNION ALL
             SELECT volume_id, server_id FROM findings
              WHERE volume_id BETWEEN %(low)s AND %(high)s) AS v
       LEFT JOIN instances AS i USING (server_id)
      WHERE %(project_id)s::text IS NULL OR i.project_id = %(project_id)s LIMIT 10)
    UNION ALL
    (SELECT 'attachment', a.attachment_id::text, NULL
       FROM attachments AS a LEFT JOIN instances AS i USING (server_id)
      WHERE a.attachment_id BETWEEN %(low)s AND %(high)s
        AND (%(project_id)s::text IS NULL OR i.project_id = %(project_id)s) LIMIT 10)
    UNION ALL
    (SELECT 'operation', o.operation_id::text, o.flow
       FROM operations AS o LEFT JOIN instances AS i USING (server_id)
      WHERE o.operation_id BETWEEN %(low)s AND %(high)s
        AND (%(project_id)s::text IS NULL OR i.project_id = %(project_id)s) LIMIT 10)
    UNION ALL
    (SELECT 'finding', f.finding_id::text, f.drift_class
       FROM findings AS f LEFT JOIN instances AS i USING (server_id)
      WHERE f.finding_id BETWEEN %(low)s AND %(high)s
        AND (%(project_id)s::text IS NULL OR i.project_id = %(project_id)s) LIMIT 10)
    UNION ALL
    (SELECT 'remnant', remnant_id::text, kind FROM remnants
      WHERE remnant_id BETWEEN %(low)s AND %(high)s
        AND %(project_id)s::text IS NULL LIMIT 10)
    UNION ALL
    (SELECT 'look', look_id::text, kind FROM looks
      WHERE look_id BETWEEN %(low)s AND %(high)s
        AND %(project_id)s::text IS NULL LIMIT 10)
    UNION
    (SELECT 'look', look_id::text, coalesce((SELECT min(k) FROM jsonb_object_keys(scope) AS k), 'all')
       FROM looks_asked
      WHERE look_id BETWEEN %(low)s AND %(high)s
        AND %(project_id)s::text IS NULL LIMIT 10)
    UNION ALL
    SELECT 'host', host, NULL FROM hosts
     WHERE host = %(text)s AND %(project_id)s::text IS NULL
)
SELECT kind, id, name FROM own ORDER BY kind, id;

-- name: requested
-- What requests with an id, or a global id, between two led to; and refused requests.  With a
-- project only what concerns its servers, and only the caller's own refusals.  Of the first
-- thousand events.  events_by_request, operations_by_global_request, refusals_by_request,
-- refusals_by_global_request; primary keys.
WITH led AS MATERIALIZED (
    SELECT operation_id, originator_id, server_id, topic, host FROM events
     WHERE cause IN ('api', 'operator', 'automatic')
       AND request_id COLLATE "C" BETWEEN %(low)s AND %(high)s
     ORDER BY request_id COLLATE "C", position LIMIT 1000
),
own AS (
    (SELECT 'operation' AS kind, o.operation_id::text AS id, o.flow AS name
       FROM (SELECT operation_id FROM led
              UNION
             SELECT operation_id FROM operations
              WHERE global_request_id COLLATE "C" BETWEEN %(low)s AND %(high)s) AS l
       JOIN operations AS o USING (operation_id)
       LEFT JOIN instances AS i USING (server_id)
      WHERE %(project_id)s::text IS NULL OR i.project_id = %(project_id)s LIMIT 10)
    UNION ALL
    (SELECT DISTINCT 'server', i.server_id::text, i.name
       FROM led JOIN instances AS i USING (server_id)
      WHERE led.operation_id IS NULL
        AND (%(project_id)s::text IS NULL OR i.project_id = %(project_id)s) LIMIT 10)
    UNION ALL
    (SELECT DISTINCT 'host', host, NULL
       FROM led WHERE operation_id IS NULL AND server_id IS NULL AND topic LIKE 'Host.%%'
                  AND %(project_id)s::text IS NULL LIMIT 10)
    UNION ALL
    (SELECT DISTINCT 'finding', f.finding_id::text, f.drift_class
       FROM led JOIN findings AS f ON f.finding_id = led.originator_id
      WHERE %(project_id)s::text IS NULL LIMIT 10)
    UNION ALL
    (SELECT DISTINCT 'look', k.look_id::text, k.kind
       FROM led JOIN looks AS k ON k.look_id = led.originator_id
      WHERE %(project_id)s::text IS NULL LIMIT 10)
    UNION ALL
    (SELECT 'request', r.request_id, r.code
       FROM (SELECT * FROM refusals
              WHERE request_id COLLATE "C" BETWEEN %(low)s AND %(high)s
              UNION
             SELECT * FROM refusals
              WHERE global_request_id COLLATE "C" BETWEEN %(low)s AND %(high)s) AS r
      WHERE %(project_id)s::text IS NULL
         OR (r.actor, coalesce(r.user_id, ''), coalesce(r.project_id, ''))
            = (%(actor)s, coalesce(%(user_id)s, ''), %(project_id)s) LIMIT 10)
)
SELECT kind, id, name FROM own ORDER BY kind, id;

-- name: mappings
-- A server's mappings with a volume, in the order of creation.  mappings_by_server.
SELECT * FROM mappings
 WHERE server_id = %(server_id)s AND volume_id IS NOT NULL AND (%(legacy)s OR NOT legacy)
 ORDER BY created_position
 LIMIT %(limit)s OFFSET %(offset)s;

-- name: mapping
-- The mapping of a volume to a server; there is at most one.  mappings_by_server.
SELECT * FROM mappings WHERE server_id = %(server_id)s AND volume_id = %(volume_id)s;

-- name: pair
-- A server's project, its mapping of a volume, and the pair's attachments by which a host may have
-- the volume, as of one moment; the server's host, its last contact, and whether it shows a disk of
-- the volume that no mapping explains.  Primary keys, mappings_by_server, attachments_by_server.
SELECT m.*, i.project_id, i.deleted, i.host, c.seen_at AS host_seen_at,
       i.volumes ? %(volume_id)s::uuid::text AND NOT EXISTS (
           SELECT FROM mappings AS e
            WHERE e.server_id = i.server_id
              AND coalesce(e.serial, e.volume_id) = %(volume_id)s::uuid) AS shown,
       coalesce((SELECT json_agg(json_build_object(
                            'attachment_id', a.attachment_id, 'host', a.host,
                            'operation_id', a.operation_id) ORDER BY a.created_position DESC)
                   FROM attachments AS a
                  WHERE a.server_id = i.server_id AND a.volume_id = %(volume_id)s
                    AND a.state IN ('connecting', 'connected', 'attached')), '[]') AS connected
  FROM instances AS i
  LEFT JOIN host_contact AS c USING (host)
  LEFT JOIN mappings AS m ON m.server_id = i.server_id AND m.volume_id = %(volume_id)s
 WHERE i.server_id = %(server_id)s;

-- name: attachment
-- One attachment, and its server's name.  Primary keys.
SELECT a.*, i.name AS server_name
  FROM attachments AS a LEFT JOIN instances AS i USING (server_id)
 WHERE a.attachment_id = %(attachment_id)s;

-- name: attachments
-- Attachments in the order of creation or backwards ({way}), beyond a created_position, with their
-- servers' names, and the number of open findings and parked operations of their volumes.  The
-- index of the filter: attachments_by_volume, attachments_by_server, attachments_by_host,
-- attachments_by_old_flow.  findings_by_volume, parked_now.
SELECT a.*, (SELECT name FROM instances AS i WHERE i.server_id = a.server_id) AS server_name,
       (SELECT count(*) FROM findings AS f
         WHERE f.volume_id = a.volume_id AND f.over_position IS NULL)
       + (SELECT count(*) FROM parked AS p
           WHERE p.volume_id = a.volume_id AND p.to_position IS NULL) AS open_drift
  FROM attachments AS a
 WHERE (%(volume_id)s::uuid IS NULL OR volume_id = %(volume_id)s)
   AND (%(server_id)s::uuid IS NULL OR server_id = %(server_id)s)
   AND (%(host)s::text IS NULL OR host = %(host)s)
   AND (NOT %(open_only)s OR state <> 'deleted')
   AND (%(legacy)s::boolean IS NULL OR legacy = %(legacy)s)
   AND created_position {beyond} %(after)s
 ORDER BY created_position {way}
 LIMIT %(limit)s;

-- name: held_at
-- The spans of a volume at a moment (`since` and `at` are equal), or between two; as known at `at`,
-- or at `known`, not before `at`.  spans_by_volume.
SELECT s.*, a.legacy FROM spans AS s JOIN attachments AS a USING (attachment_id)
 WHERE s.volume_id = %(volume_id)s AND (%(host)s::text IS NULL OR s.host = %(host)s)
   AND (%(server_id)s::uuid IS NULL OR s.server_id = %(server_id)s)
   AND
\ir parts/held_then.sql
   AND (%(legacy)s::boolean IS NULL OR a.legacy = %(legacy)s)
 ORDER BY %(way)s * s.from_position
 LIMIT %(limit)s;

-- name: on_old_flow_at
-- The spans of attachments of Cinder's old calls at a moment, or between two.
-- attachments_by_old_flow.
SELECT s.*, a.legacy FROM attachments AS a JOIN spans AS s USING (attachment_id)
 WHERE a.legacy AND
\ir parts/held_then.sql
   AND (%(server_id)s::uuid IS NULL OR s.server_id = %(server_id)s)
 ORDER BY %(way)s * s.from_position
 LIMIT %(limit)s;

-- name: open_at
-- The spans of a host at a moment, or between two.  For each class of length in spans_by_host, only
-- those that began within that length before the first moment.  So about as many rows are read as
-- are found, however long the host's history is.
SELECT s.*, a.legacy
  FROM (SELECT length, CASE WHEN length < 8 THEN
               %(since)s::timestamptz - interval '1 hour' * 4 ^ length ELSE '-infinity' END
               AS since
          FROM generate_series(0, 9) AS length) AS l
 CROSS JOIN LATERAL (
       SELECT * FROM spans AS s
        WHERE host = %(host)s
          AND coalesce(width_bucket(extract(epoch FROM to_at - from_at),
                  '{3600,14400,57600,230400,921600,3686400,14745600,58982400}'), 9) = l.length
          AND (%(server_id)s::uuid IS NULL OR server_id = %(server_id)s)
          AND from_at > l.since AND
\ir parts/held_then.sql
       OFFSET 0) AS s
  JOIN attachments AS a USING (attachment_id)
 WHERE %(legacy)s::boolean IS NULL OR a.legacy = %(legacy)s
 ORDER BY %(way)s * s.from_position
 LIMIT %(limit)s;

-- name: operation
-- One operation, its server's project, and the progress of its long steps.  Primary keys.
SELECT o.*, i.project_id AS owner_id, i.name AS server_name,
       ARRAY(SELECT json_build_object('run', p.run, 'done_bytes', p.done_bytes,
                        'total_bytes', p.total_bytes, 'updated_at', p.updated_at)
               FROM progress AS p
              WHERE p.operation_id = o.operation_id ORDER BY p.run) AS progress
  FROM operations AS o LEFT JOIN instances AS i USING (server_id)
 WHERE o.operation_id = %(operation_id)s;

-- name: operations
-- Operations, newest first, before a started_position, with their servers' names; of a host also
-- those that move a server to it.  The index of the filter: operations_by_server,
-- operations_by_volume, operations_by_host with operations_by_destination.
SELECT o.*, (SELECT name FROM instances AS i WHERE i.server_id = o.server_id) AS server_name
  FROM operations AS o
 WHERE (%(state)s::text IS NULL OR state = %(state)s)
   AND (%(flow)s::text IS NULL OR flow = %(flow)s)
   AND (%(server_id)s::uuid IS NULL OR server_id = %(server_id)s)
   AND (%(volume_id)s::uuid IS NULL OR volume_ids @> ARRAY[%(volume_id)s::uuid])
   AND (%(host)s::text IS NULL OR host = %(host)s OR destination = %(host)s)
   AND (%(after)s::bigint IS NULL OR started_position < %(after)s)
 ORDER BY started_position DESC
 LIMIT %(limit)s;

-- name: operations_of_server
-- A server's operations, newest first, before a started_position; of one request, or with their
-- last event between two moments.  operations_by_server.
SELECT * FROM operations
 WHERE server_id = %(server_id)s
   AND (%(request_id)s::text IS NULL OR request_id = %(request_id)s)
   AND (%(since)s::timestamptz IS NULL OR updated_at >= %(since)s)
   AND (%(until)s::timestamptz IS NULL OR updated_at <= %(until)s)
   AND (%(after)s::bigint IS NULL OR started_position < %(after)s)
 ORDER BY started_position DESC
 LIMIT %(limit)s;

-- name: moves
-- Operations of some flows, newest first, before a started_position, of a project's servers; with
-- the progress of the last long step, and the operation that confirms or reverts a resize, if there
-- is one.  operations_moving, or operations_by_server.
SELECT o.*, p.done_bytes, p.total_bytes, s.flow AS settled_flow, s.outcome AS settled_outcome
  FROM operations AS o
  LEFT JOIN instances AS i ON i.server_id = o.server_id
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
   AND (%(project_id)s::text IS NULL OR i.project_id = %(project_id)s)
   AND (%(after)s::bigint IS NULL OR o.started_position < %(after)s)
 ORDER BY o.started_position DESC
 LIMIT %(limit)s;

-- name: note_progress
-- Stores the progress of a run, if it is this host's.  Primary keys.
INSERT INTO progress (operation_id, run, done_bytes, total_bytes)
SELECT m.operation_id, m.run, %(done_bytes)s, %(total_bytes)s
  FROM mailbox AS m
 WHERE m.operation_id = %(operation_id)s AND m.run = %(run)s AND m.host = %(host)s
    ON CONFLICT (operation_id, run) DO UPDATE
       SET done_bytes = EXCLUDED.done_bytes, total_bytes = EXCLUDED.total_bytes,
           updated_at = clock_timestamp()
RETURNING run;

-- name: servers_with_volumes
-- Servers with volumes on a host, or on any, after a server id.
-- instances_by_host and mappings_by_server.
SELECT i.server_id FROM instances AS i
 WHERE i.host IS NOT NULL AND NOT i.deleted
   AND (%(host)s::text IS NULL OR i.host = %(host)s)
   AND (%(after)s::uuid IS NULL OR i.server_id > %(after)s)
   AND EXISTS (SELECT 1 FROM mappings AS m
                WHERE m.server_id = i.server_id AND m.volume_id IS NOT NULL)
 ORDER BY i.server_id
 LIMIT %(limit)s;

-- name: servers_on_old_flow
-- Servers with volumes by Cinder's old calls, on a host or anywhere, also offloaded ones and those
-- whose resize source has some, after a server id.  mappings_by_old_flow, attachments_by_old_flow.
SELECT i.server_id FROM instances AS i
 WHERE NOT i.deleted
   AND (%(after)s::uuid IS NULL OR i.server_id > %(after)s)
   AND (%(host)s::text IS NULL OR i.host = %(host)s)
   AND i.server_id IN (SELECT m.server_id FROM mappings AS m
                        WHERE m.legacy AND m.volume_id IS NOT NULL
                       UNION ALL
                       SELECT a.server_id FROM attachments AS a
                         JOIN mappings AS m ON m.server_id = a.server_id AND m.kept = a.attachment_id
                        WHERE a.legacy AND a.state <> 'deleted')
 ORDER BY i.server_id
 LIMIT %(limit)s;

-- name: mailboxes
-- The mailboxes of some hosts after a cursor of each, in the given order; whether the host may have
-- commands (epoch NULL: no agent has registered), which agent acts for it, and a requested survey.
-- A host that nobody has vouched for gets no commands.  Primary keys, mailbox_by_host.  Commands
-- that one act cancels have the same position, and no page ends between them.  The arrays are in
-- subqueries, because otherwise the planner sees their lengths, which are shorter than those of the
-- generic plan, and plans again each time, at ten times the cost.
SELECT CASE WHEN h.service_version IS NOT NULL THEN h.epoch END AS epoch, h.fenced AS shut,
       h.suspect AND NOT h.fenced AS awaited, c.agent,
       s.wanted AS survey, s.digest AS survey_digest,
       ARRAY(SELECT m.command FROM mailbox AS m
              WHERE m.host = w.host AND m.position > w.after AND h.unvouched IS NOT TRUE
              ORDER BY m.position
              FETCH FIRST %(limit)s ROWS WITH TIES) AS commands
  FROM unnest((SELECT %(hosts)s::text[]), (SELECT %(afters)s::bigint[]))
       WITH ORDINALITY AS w (host, after, nth)
  LEFT JOIN hosts AS h USING (host)
  LEFT JOIN host_contact AS c USING (host)
  LEFT JOIN surveys AS s USING (host)
 ORDER BY w.nth;

-- name: hosts
-- All hosts that are not forgotten, or one, with the last contact, and counts of open attachments, commands and guests.
-- The counts use attachments_open_by_host, mailbox_by_host, instances_by_host.
SELECT h.*, c.seen_at, c.clock_ahead_s,
       (SELECT count(*) FROM attachments AS a
         WHERE a.host = h.host AND a.state <> 'deleted') AS open_attachments,
       (SELECT json_build_object('new', count(*) FILTER (WHERE NOT a.legacy),
                                 'old', count(*) FILTER (WHERE a.legacy))
          FROM attachments AS a WHERE a.host = h.host AND a.state <> 'deleted') AS flows,
       (SELECT count(*) FROM mailbox AS m WHERE m.host = h.host) AS open_commands,
       (SELECT count(*) FROM instances AS i
         WHERE i.host = h.host AND NOT i.deleted) AS guests
  FROM hosts AS h LEFT JOIN host_contact AS c USING (host)
 WHERE h.deleted IS NOT TRUE AND (%(host)s::text IS NULL OR h.host = %(host)s)
 ORDER BY h.host;

-- name: in_use_by
-- What is on a host, or under way to it, and who else may have something there; of each kind the
-- first.  For one host, when somebody forgets it: `instances` is read through, and
-- attachments_open_by_host, operations_open, remnants, findings_open.
SELECT what, min(id) AS id, count(*) AS count FROM (
    SELECT 'server' AS what, server_id::text AS id FROM instances
     WHERE NOT deleted AND %(host)s IN (host, resize_source)
    UNION ALL
    SELECT 'attachment', attachment_id::text FROM attachments
     WHERE host = %(host)s AND state <> 'deleted'
    UNION ALL
    SELECT 'operation', operation_id::text FROM operations
     WHERE state <> 'finished'
       AND (host = %(host)s OR destination = %(host)s
            OR steps @> jsonb_build_array(jsonb_build_object('place', %(host)s::text)))
    UNION ALL
    SELECT 'remnant', remnant_id::text FROM remnants WHERE state = 'open' AND host = %(host)s
    UNION ALL
    SELECT 'finding', finding_id::text FROM findings
     WHERE over_position IS NULL AND state <> 'ignored'
       AND (%(host)s IN (host, differs->'cinder'->>'host')
            OR differs->'host' @> jsonb_build_array(jsonb_build_array(%(host)s::text)))) AS used
 GROUP BY what ORDER BY what;

-- name: hosts_observed
-- Hosts of observed servers that are not the ledger's, and when each made the survey that it sent
-- last.  instances_observed, attachments_open_by_host.
SELECT i.host, i.origin, count(*) AS guests,
       (SELECT s.taken_at FROM surveys AS s
         WHERE s.host = i.host AND s.token IS NULL) AS surveyed_at,
       (SELECT count(*) FROM attachments AS a
         WHERE a.host = i.host AND a.state <> 'deleted') AS open_attachments
  FROM instances AS i
 WHERE i.origin IS NOT NULL AND NOT i.deleted AND i.host IS NOT NULL
   AND NOT EXISTS (SELECT FROM hosts AS h WHERE h.host = i.host AND h.deleted IS NOT TRUE)
 GROUP BY i.host, i.origin ORDER BY i.host;

-- name: older_agents
-- Whether a host that is not fenced has an agent of an older version; also a silent one, which may
-- come back.  hosts_by_version has few rows below the present version.
SELECT EXISTS (
    SELECT 1 FROM hosts WHERE service_version < %(version)s AND NOT fenced) AS found;

-- name: contact
-- The last contact of a host's agent (NULL: never).  Primary keys.
SELECT c.seen_at FROM hosts AS h LEFT JOIN host_contact AS c USING (host)
 WHERE h.host = %(host)s AND h.deleted IS NOT TRUE;

-- name: position_at
-- The last position recorded at or before a moment, 0 if there is none.  A binary search, because
-- times never go back.  In place of a detached event it takes the next one; the last one is never
-- detached.
WITH RECURSIVE search (low, high) AS (
    SELECT 0::bigint, position FROM log_head
    UNION ALL
    SELECT CASE WHEN e.recorded_at <= %(at)s THEN e.position ELSE s.low END,
           CASE WHEN e.recorded_at <= %(at)s THEN s.high ELSE s.middle - 1 END
      FROM (SELECT low, high, (low + high + 1) / 2 AS middle FROM search WHERE low < high) AS s
     CROSS JOIN LATERAL (
           SELECT position, recorded_at FROM events
            WHERE position >= s.middle ORDER BY position LIMIT 1) AS e
)
SELECT low AS position FROM search WHERE low = high;

-- name: history
-- Events about one object, between two positions, in their order or backwards ({way}).
-- events_by_{column}: events_by_attachment, events_by_volume, events_by_server, events_by_host,
-- events_by_operation.
SELECT position, recorded_at, topic, originator_id, originator_version AS version,
       attachment_id, volume_id, server_id, host, operation_id, request_id, cause,
       actor, user_id, project_id, roles, body
  FROM events
 WHERE {column} = %(id)s AND position > %(after)s AND position < %(before)s
 ORDER BY position {way}
 LIMIT %(limit)s;

-- name: learnt
-- Events about one object between two positions that record an observation which was, or may have
-- been, true at a moment (`at`).  events_by_{column}.
SELECT position, recorded_at, topic, originator_id, originator_version AS version,
       attachment_id, volume_id, server_id, host, operation_id, request_id, cause,
       actor, user_id, project_id, roles, body
  FROM events
 WHERE {column} = %(id)s AND position > %(after)s AND position < %(before)s
   -- Most are not observations; they are excluded without parsing their JSON.
   AND CASE WHEN position('"seen"'::bytea IN body) = 0 THEN false
            ELSE coalesce((convert_from(body, 'UTF8')::json #>> '{{seen,after}}')::timestamptz,
                          '-infinity') <= %(at)s
                 AND convert_from(body, 'UTF8')::json #>> '{{seen,before}}' IS NOT NULL END
 ORDER BY position {way}
 LIMIT %(limit)s;

-- name: volume_history
-- The history of a volume, oldest first: the events that name it, and the events of its operations
-- that name no volume or concern the whole operation; only operations that are the volume's by the
-- log up to a position (`until`).  Each operation that begins after the cursor has an event here,
-- so no more are read than there are rows on the page.  The events of an operation's first and last
-- append are at most 10000 positions, the longest append, from its own first and last event.
-- events_by_volume, operations_by_volume, events_by_operation.
\ir parts/volume_own.sql
of_operations AS (
    SELECT operation_id FROM own WHERE operation_id IS NOT NULL
    UNION
    SELECT operation_id FROM operations
     WHERE volume_ids @> ARRAY[%(id)s::uuid] AND started_position <= %(after)s
       AND (position > %(after)s - 10000 OR state <> 'finished')
    UNION
    (SELECT operation_id FROM operations
      WHERE volume_ids @> ARRAY[%(id)s::uuid] AND started_position > %(after)s
      ORDER BY started_position
      LIMIT %(limit)s + 1)
)
\ir parts/volume_rest.sql

-- name: volume_history_backwards
-- As volume_history, newest first: each operation that ended before the cursor has its last event
-- here.
\ir parts/volume_own.sql
of_operations AS (
    SELECT operation_id FROM own WHERE operation_id IS NOT NULL
    UNION
    SELECT operation_id FROM operations
     WHERE volume_ids @> ARRAY[%(id)s::uuid] AND started_position - 10000 < %(before)s
       AND (position >= %(before)s OR state <> 'finished')
    UNION
    (SELECT operation_id FROM operations
      WHERE volume_ids @> ARRAY[%(id)s::uuid] AND state = 'finished' AND position < %(before)s
      ORDER BY position DESC
      LIMIT %(limit)s + 1)
)
\ir parts/volume_rest.sql

-- name: asked
-- Who requested operations, by their first events.  The log's second key.  OFFSET 0 makes
-- PostgreSQL parse each body, which has a plan in it, only once.
SELECT originator_id AS operation_id, actor AS name, user_id, project_id,
       b.body ->> 'global_request_id' AS global_request_id,
       b.body -> 'sender' ->> 'address' AS address, b.body -> 'sender' ->> 'agent' AS agent
  FROM events
 CROSS JOIN LATERAL (SELECT convert_from(events.body, 'UTF8')::json AS body OFFSET 0) AS b
 WHERE originator_id = ANY(%(ids)s::uuid[]) AND originator_version = 1;

-- name: is_over
-- Whether a moment is over, so that no event can be recorded at it: appends read the clock while
-- they hold this lock.  The outer part is evaluated after the lock was acquired.
WITH locked AS MATERIALIZED (SELECT position FROM log_head FOR SHARE)
SELECT clock_timestamp() > %(at)s AS is_over FROM locked;

-- name: follows
-- Whether this server is a standby of another.
SELECT pg_is_in_recovery() AS follows;

-- name: feed
-- All events between two positions, or those of a topic ({only}), in their order or backwards
-- ({way}).  Primary key.
SELECT position, recorded_at, topic, originator_id, originator_version AS version,
       attachment_id, volume_id, server_id, host, operation_id, request_id, cause,
       actor, user_id, project_id, roles, body
  FROM events
 WHERE position > %(after)s AND position < %(before)s {only}
 ORDER BY position {way}
 LIMIT %(limit)s;

-- name: detached
-- The detached months that end after a position.
SELECT first_position, last_position, file
  FROM detached_months WHERE last_position > %(after)s ORDER BY first_position;

-- name: checkpoint
-- The end of the log: position, link of the hash chain, time; and the log's identity: the append_id
-- of its first event, which is never detached.
SELECT h.position, h.chain, h.recorded_at, e.append_id AS log
  FROM log_head AS h LEFT JOIN events AS e ON e.position = 1;

-- name: first_link
-- The first link of the hash chain at or after a position.  The primary key: a call of
-- append_events has few events, and the last of them has a link.
SELECT position, chain FROM events
 WHERE position >= %(position)s AND chain IS NOT NULL
 ORDER BY position LIMIT 1;

-- name: head
-- Position and time of the last event.
SELECT position, recorded_at FROM log_head;

-- name: missing_rights
-- The privileges, of those given, that this role lacks.  Reads only the catalog.
SELECT privilege || ' on ' || name AS missing
  FROM unnest(%(names)s::text[], %(privileges)s::text[]) AS needed (name, privilege)
 WHERE has_table_privilege(to_regclass(name), privilege) IS NOT TRUE
 ORDER BY missing;

-- name: touch_hosts
-- Stores the last contacts of hosts' agents, in seconds before now, and the skew of their clocks
-- (NULL: not reported).  A stored contact in the future is from before the clock was set back.  The
-- insert is in the order of hosts, so that processes cannot deadlock.
INSERT INTO host_contact AS c (host, seen_at, clock_ahead_s)
SELECT host, clock_timestamp() - make_interval(secs => age_s), ahead_s
  FROM unnest(%(hosts)s::text[], %(ages_s)s::float8[], %(ahead_s)s::float8[])
       AS heard (host, age_s, ahead_s)
 ORDER BY host
    ON CONFLICT (host) DO UPDATE
       SET seen_at = CASE WHEN c.seen_at <= clock_timestamp()
                          THEN greatest(c.seen_at, EXCLUDED.seen_at) ELSE EXCLUDED.seen_at END,
           clock_ahead_s = coalesce(EXCLUDED.clock_ahead_s, c.clock_ahead_s);

-- name: claim_host
-- Lets an agent (NULL: without an id) act for a host, and stores the contact; no row if another one
-- does that was in contact lately.  Primary key.
INSERT INTO host_contact AS c (host, seen_at, agent)
VALUES (%(host)s, clock_timestamp(), %(agent)s)
    ON CONFLICT (host) DO UPDATE SET seen_at = clock_timestamp(), agent = EXCLUDED.agent
 WHERE c.agent IS NULL OR c.agent = EXCLUDED.agent
    OR abs(extract(epoch FROM clock_timestamp() - c.seen_at)) >= %(silent_after_s)s
RETURNING host;

-- name: free_host
-- Lets the next agent, whichever it is, act for a host.  Primary key.
UPDATE host_contact SET agent = NULL WHERE host = %(host)s;

-- name: connectors_in_use
-- For hosts with these initiators and NQNs: the other hosts, not fenced, that reported the same
-- before.  hosts_by_initiator, hosts_by_nqn.
SELECT w.host, o.host AS other, o.connector AS theirs
  FROM unnest(%(hosts)s::text[], %(initiators)s::text[], %(nqns)s::text[])
       AS w (host, initiator, nqn)
  JOIN hosts AS o ON (o.connector->>'initiator' = w.initiator OR o.connector->>'nqn' = w.nqn)
                 AND o.host <> w.host AND NOT o.fenced
  LEFT JOIN hosts AS h ON h.host = w.host
       AND h.connector->>'initiator' IS NOT DISTINCT FROM w.initiator
       AND h.connector->>'nqn' IS NOT DISTINCT FROM w.nqn
 WHERE h.connector_position IS NULL OR h.connector_position > o.connector_position
 ORDER BY w.host, o.host;

-- name: due
-- Takes leases on operations that are due and not leased, the longest due first; `taken_over` if
-- the last holder never released its lease, so it may have left something half done.
-- operations_due, in its order and no further than the leases to skip; the insert is in the order
-- of ids, so that takers cannot deadlock.  An operation that is due later than the longest retry,
-- or was due at once (due_at = updated_at) in the future, is from before the clock was set back; so
-- is a lease that ends too late, which does not count.  The second part reads all retries, which
-- are few.  Operations of the projects `but` are skipped.
WITH o AS MATERIALIZED (
    (SELECT operation_id, due_at, coalesce(project_id, '') AS project_id FROM operations
      WHERE due_at <= statement_timestamp() AND coalesce(project_id, '') <> ALL (%(but)s::text[])
      ORDER BY due_at
      LIMIT %(limit)s + (SELECT count(*) FROM leases))
    UNION ALL
    (SELECT operation_id, due_at, coalesce(project_id, '') FROM operations
      WHERE due_at > statement_timestamp()
        AND coalesce(project_id, '') <> ALL (%(but)s::text[])
        AND (due_at = updated_at
             OR due_at > statement_timestamp() + make_interval(secs => %(put_off_max_s)s))
      ORDER BY due_at
      LIMIT %(limit)s + (SELECT count(*) FROM leases))
),
d AS MATERIALIZED (
    SELECT o.operation_id, o.project_id, taken.holder IS NOT NULL AS taken_over
      FROM o
      LEFT JOIN leases AS taken USING (operation_id)
     WHERE taken.until IS NULL OR taken.until < clock_timestamp()
        OR taken.until > clock_timestamp() + 2 * make_interval(secs => %(lease_s)s)
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
            OR l.until > clock_timestamp() + 2 * make_interval(secs => %(lease_s)s)
    RETURNING l.operation_id
)
SELECT operation_id, d.project_id, d.taken_over FROM got JOIN d USING (operation_id);

-- name: renew
-- Renews leases, and returns those that the holder still has.
UPDATE leases SET until = clock_timestamp() + make_interval(secs => %(lease_s)s)
 WHERE holder = %(holder)s AND operation_id = ANY(%(ids)s::uuid[])
RETURNING operation_id;

-- name: release
-- Releases leases.  Primary key, and one generic plan (see mailboxes).
DELETE FROM leases
 WHERE holder = %(holder)s AND operation_id = ANY((SELECT %(ids)s::uuid[])::uuid[]);

-- name: expire_previous_leases
-- Expires the leases of earlier holders of the same place.
UPDATE leases SET until = '-infinity'
 WHERE starts_with(holder, %(place)s || '/') AND holder <> %(holder)s;

-- name: waiting_on_old_epoch
-- Operations with a run of an older epoch of its host: the process that fenced the host did not
-- reach them.  mailbox_by_host, for the hosts that were ever fenced.
SELECT DISTINCT m.operation_id, m.host
  FROM hosts AS h JOIN mailbox AS m USING (host)
 WHERE h.epoch > 0 AND (m.command->>'epoch')::int < h.epoch
 ORDER BY m.operation_id
 LIMIT %(limit)s;

-- name: changed
-- The hosts with new commands or changes, and the operations that changed (and whether they are
-- bound, ended or due), after the positions seen last; and the present positions of the log and of
-- the projections (missing: not tracked yet).  With the time, and how far the log is ahead of it,
-- in microseconds (ledger.log.clock).  mailbox_by_position, hosts_by_position,
-- operations_by_position.
SELECT 'head' AS what, NULL AS who, position, false AS bound, false AS ended, false AS due
  FROM log_head
UNION ALL
SELECT 'time_us', NULL, (extract(epoch FROM clock_timestamp()) * 1e6)::bigint, false, false, false
UNION ALL
SELECT 'log_ahead_us', NULL,
       greatest(extract(epoch FROM recorded_at - clock_timestamp()) * 1e6, 0)::bigint,
       false, false, false
  FROM log_head
UNION ALL
SELECT projection, NULL, position, false, false, false FROM tracking
 WHERE projection IN ('operations', 'hosts')
UNION ALL
SELECT 'host', host, NULL, false, false, false FROM mailbox WHERE position > %(operations)s
UNION ALL
SELECT 'host', host, NULL, false, false, false FROM hosts WHERE position > %(hosts)s
UNION ALL
SELECT 'operation', operation_id::text, NULL, bound OR state <> 'running', state <> 'running',
       due_at IS NOT NULL
  FROM operations WHERE position > %(operations)s;

-- name: time
-- The time, and how far the log is ahead of it, in seconds.  One row.
SELECT extract(epoch FROM clock_timestamp())::float8,
       greatest(extract(epoch FROM recorded_at - clock_timestamp()), 0)::float8
  FROM log_head;

-- name: listen
-- Be woken when projections have advanced.
LISTEN ledger_projected;

-- name: guests_of_hosts
-- The servers whose guests these hosts show: their own, without lost guests, and those of other
-- hosts.  instances_by_host, instances_elsewhere.
SELECT host, server_id FROM instances
 WHERE host = ANY(%(hosts)s) AND power_state <> 'nostate'
UNION
SELECT e.host, i.server_id
  FROM instances AS i CROSS JOIN LATERAL jsonb_object_keys(i.elsewhere) AS e (host)
 WHERE i.elsewhere <> '{}' AND e.host = ANY(%(hosts)s);

-- name: sightings
-- The findings that are not over, also ignored ones, and show a server's guest, or one of some
-- volumes, on a host; and, with a NULL finding, the hosts in doubt (see `in_doubt`).
-- findings_by_server, findings_by_volume, hosts_in_doubt.
SELECT finding_id, drift_class, volume_id, host, differs FROM findings
 WHERE over_position IS NULL AND server_id = %(server_id)s AND drift_class = ANY(%(guests)s)
UNION ALL
SELECT finding_id, drift_class, volume_id, host, differs FROM findings
 WHERE over_position IS NULL AND volume_id = ANY(%(volume_ids)s::uuid[])
   AND drift_class = ANY(%(volumes)s)
UNION ALL
(SELECT NULL, NULL, NULL, host, NULL FROM hosts WHERE unvouched AND NOT fenced ORDER BY host);

-- name: unaccounted
-- Hosts, not fenced, without a survey, requested since a server's last event, that shows that they
-- do not have its guest.  Primary keys.
SELECT h.host
  FROM hosts AS h
  LEFT JOIN surveys AS s USING (host)
  JOIN instances AS i ON i.server_id = %(server_id)s
 WHERE NOT h.fenced
   AND (h.suspect OR s.token IS NULL OR s.epoch IS DISTINCT FROM h.epoch
        OR s.asked_position < i.position OR s.document->'blind' ? 'guests'
        OR s.document @> jsonb_build_object('guests', jsonb_build_array(
               jsonb_build_object('server_id', i.server_id::text))))
 ORDER BY h.host;

-- name: unfenced
-- The names of all hosts that are not fenced.
SELECT host FROM hosts WHERE NOT fenced ORDER BY host;

-- name: fenced
-- The fenced hosts that are not forgotten, and the epoch that the fence began.
SELECT host, epoch FROM hosts WHERE fenced AND deleted IS NOT TRUE ORDER BY host;

-- name: in_doubt
-- The names of the hosts that nobody has vouched for since the ledger was restored from a backup.
-- hosts_in_doubt, which has few rows.
SELECT host FROM hosts WHERE unvouched AND NOT fenced ORDER BY host;

-- name: open_on_host
-- The unfinished operations with a step on this host, or that move a server to or from it, oldest
-- first.  operations_open.
SELECT operation_id, flow = 'evacuate' AND destination <> %(host)s AS evacuates FROM operations
 WHERE state <> 'finished'
   AND (host = %(host)s OR destination = %(host)s
        OR steps @> jsonb_build_array(jsonb_build_object('place', %(host)s::text)))
 ORDER BY started_position;

-- name: hosts_by_state
-- Counts of hosts by state, and the largest clock skew of those in contact, for metrics: one row.
-- Hosts that nobody has vouched for are also alive or silent.
SELECT count(*) FILTER (WHERE h.fenced) AS fenced,
       count(*) FILTER (WHERE h.unvouched AND NOT h.fenced) AS unvouched,
       count(*) FILTER (WHERE NOT h.fenced AND heard) AS alive,
       count(*) FILTER (WHERE NOT h.fenced AND NOT heard) AS silent,
       coalesce(max(abs(c.clock_ahead_s)) FILTER (WHERE heard), 0)::float8 AS clock_skew_max_s
  FROM hosts AS h
  LEFT JOIN host_contact AS c USING (host)
 CROSS JOIN LATERAL (SELECT coalesce(abs(extract(epoch FROM clock_timestamp() - c.seen_at))
                                     < %(silent_after_s)s, false)) AS l (heard)
 WHERE h.deleted IS NOT TRUE;

-- name: agents_by_version
-- Counts of hosts that are not fenced, by their agents' service version.  hosts_by_version.
SELECT service_version, count(*) AS count FROM hosts
 WHERE NOT fenced AND service_version IS NOT NULL GROUP BY service_version;

-- name: counts
-- Counts of operations by state, for metrics: one row.  operations_open, operations_due; leases has
-- only operations in progress.
SELECT (SELECT count(*) FROM operations WHERE state = 'running') AS running,
       (SELECT count(*) FROM operations WHERE state = 'parked') AS parked,
       (SELECT count(*) FROM operations
         WHERE due_at IS NOT NULL
           AND (due_at <= clock_timestamp() OR due_at = updated_at)) AS due,
       (SELECT greatest(extract(epoch FROM clock_timestamp() - min(due_at)), 0)::float8
          FROM operations WHERE due_at IS NOT NULL) AS oldest_due_s,
       (SELECT count(*) FROM leases WHERE until > clock_timestamp()) AS leased,
       (SELECT coalesce(greatest(extract(epoch FROM clock_timestamp() - min(updated_at)), 0),
                        0)::float8
          FROM operations WHERE state = 'parked') AS oldest_parked_s,
       (SELECT coalesce(greatest(extract(epoch FROM clock_timestamp() - min(started_at)), 0),
                        0)::float8
          FROM operations WHERE state = 'running') AS oldest_running_s,
       (SELECT coalesce(greatest(extract(epoch FROM max(due_at) - clock_timestamp()), 0),
                        0)::float8
          FROM operations WHERE due_at IS NOT NULL) AS latest_due_s;

-- name: oldest_due
-- The operation that is due first, also in the future.  operations_due.
SELECT operation_id, flow, due_at FROM operations
 WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1;

-- name: activity
-- Counts of what happened after a position, in intervals of `each` minutes before now, of the
-- newest `most` of each kind; and the number of changed operations (`moved`).
-- operations_by_position, parked_by_position, findings_by_age, findings_by_end, remnants_by_age,
-- looks_by_age.
WITH moved AS (
    SELECT started_at, finished_at, outcome FROM operations
     WHERE position > %(after)s ORDER BY position DESC LIMIT %(most)s
),
happened (what, at) AS (
    SELECT 'begun', started_at FROM moved
    UNION ALL
    SELECT outcome, finished_at FROM moved WHERE finished_at IS NOT NULL
    UNION ALL
    (SELECT 'parked', from_at FROM parked
      WHERE from_position > %(after)s ORDER BY from_position DESC LIMIT %(most)s)
    UNION ALL
    (SELECT 'drift_found', found_at FROM findings
      WHERE found_position > %(after)s ORDER BY found_position DESC LIMIT %(most)s)
    UNION ALL
    (SELECT 'drift_over', over_at FROM findings
      WHERE over_position > %(after)s ORDER BY over_position DESC LIMIT %(most)s)
    UNION ALL
    (SELECT 'left_behind', left_at FROM remnants
      WHERE left_position > %(after)s ORDER BY left_position DESC LIMIT %(most)s)
    UNION ALL
    (SELECT 'looks', began_at FROM looks
      WHERE began_position > %(after)s ORDER BY began_position DESC LIMIT %(most)s)
)
SELECT what, floor(extract(epoch FROM %(now)s - at) / 60 / %(each)s)::int AS ago, count(*) AS count
  FROM happened GROUP BY 1, 2
UNION ALL
SELECT 'moved', 0, count(*) FROM moved;

-- name: ages
-- The largest age in seconds of open items in each interval of `each` minutes before now:
-- operations that ran (without those parked now), that were parked, findings that are not ignored.
-- Of ended items the newest `most` after a position, of open ones the oldest `most`.  `ago` is -1
-- for now.  operations_by_position, operations_open, parked_now, findings_by_end, findings_open.
WITH moved AS (
    SELECT operation_id, started_at, finished_at FROM operations
     WHERE position > %(after)s ORDER BY position DESC LIMIT %(most)s
),
lasting (what, begun, over) AS (
    SELECT 'under_way', started_at, finished_at FROM moved WHERE finished_at IS NOT NULL
    UNION ALL
    (SELECT 'under_way', started_at, NULL FROM operations
      WHERE state = 'running' ORDER BY started_position LIMIT %(most)s)
    UNION ALL
    SELECT 'parked', p.from_at, p.to_at FROM moved JOIN parked AS p USING (operation_id)
     WHERE p.to_position IS NOT NULL
    UNION ALL
    (SELECT 'parked', from_at, NULL FROM parked
      WHERE to_position IS NULL ORDER BY from_position LIMIT %(most)s)
    UNION ALL
    (SELECT 'drift', found_at, over_at FROM findings
      WHERE over_position > %(after)s ORDER BY over_position DESC LIMIT %(most)s)
    UNION ALL
    (SELECT 'drift', found_at, NULL FROM findings
      WHERE over_position IS NULL AND state <> 'ignored'
      ORDER BY found_position LIMIT %(most)s)
)
SELECT what, ago, max(extract(epoch FROM least(coalesce(over, %(now)s), %(now)s - ago * i.length)
                                         - begun))::float8 AS age_s
  FROM lasting
 CROSS JOIN LATERAL (SELECT make_interval(mins => %(each)s)) AS i (length)
 CROSS JOIN LATERAL generate_series(
       greatest(floor(extract(epoch FROM %(now)s - coalesce(over, %(now)s)) / 60 / %(each)s), 0)::int,
       least(floor(extract(epoch FROM %(now)s - begun) / 60 / %(each)s),
             %(numbers)s - 1)::int) AS ago
 GROUP BY 1, 2
UNION ALL
SELECT what, -1, max(extract(epoch FROM %(now)s - begun))::float8
  FROM lasting WHERE over IS NULL GROUP BY 1;

-- name: remnants
-- Remnants, newest first, filtered; remnants_by_age.
SELECT * FROM remnants
 WHERE (%(state)s::text IS NULL OR state = %(state)s)
   AND (%(server_id)s::uuid IS NULL OR server_id = %(server_id)s)
   AND (%(host)s::text IS NULL OR host = %(host)s)
   AND (%(after)s::bigint IS NULL OR left_position < %(after)s)
 ORDER BY left_position DESC, remnant_id LIMIT %(limit)s;

-- name: remnant
-- One remnant, by its primary key.
SELECT * FROM remnants WHERE remnant_id = %(remnant_id)s;

-- name: note_refusals
-- Stores refused requests, each with its age in seconds.  Idempotent.
INSERT INTO refusals (request_id, global_request_id, refused_at, method, route, status, code,
                      message, actor, user_id, project_id, address, agent, left_out)
SELECT request_id, global_request_id, clock_timestamp() - make_interval(secs => age_s),
       method, route, status, code, message, actor, user_id, project_id, address, agent, left_out
  FROM jsonb_to_recordset(%(rows)s::jsonb)
       AS r (request_id text, global_request_id text, age_s float8, method text, route text,
             status int, code text, message text, actor text, user_id text, project_id text,
             address text, agent text, left_out int)
    ON CONFLICT DO NOTHING;

-- name: trim_refusals
-- Deletes refused requests that are too old, or too many of one asker or in all.  Reads the whole
-- table, which this bounds, once a minute.
DELETE FROM refusals AS r
 USING (SELECT request_id, refused_at,
               row_number() OVER (PARTITION BY coalesce(project_id, actor)
                                  ORDER BY refused_at DESC) AS of_asker,
               row_number() OVER (ORDER BY refused_at DESC) AS of_all
          FROM refusals) AS n
 WHERE n.request_id = r.request_id
   AND (n.of_asker > %(asker_max)s OR n.of_all > %(total_max)s
        OR n.refused_at < clock_timestamp() - make_interval(secs => %(kept_s)s));

-- name: refusal
-- One refused request, by its primary key.
SELECT * FROM refusals WHERE request_id = %(request_id)s;

-- name: refusals_after
-- Refused requests after one, in the order of time, without the newest, which may be incomplete.  All,
-- if that one is later than now: the clock was set back, and those since then are earlier.
-- Reads the whole table, which is bounded.
SELECT * FROM refusals
 WHERE (refused_at, request_id)
       > (CASE WHEN %(after)s::timestamptz <= clock_timestamp() THEN %(after)s::timestamptz
               ELSE '-infinity' END, %(after_id)s::text)
   AND refused_at < clock_timestamp() - make_interval(secs => %(late_s)s)
 ORDER BY refused_at, request_id LIMIT %(limit)s;

-- name: drift
-- Drift, newest first, before a found_position: of one state, 'open' (suspected or confirmed), or
-- 'all'.  The index of each table by its positions, or of the filter (findings_by_host); what is
-- open has its own.  `resized`: a resize of the subject is not confirmed or reverted;
-- mappings_by_server.
SELECT d.*,
\ir parts/resized.sql
  FROM drift AS d
 WHERE (%(state)s::text = 'all' OR state = %(state)s
        OR %(state)s = 'open' AND state IN ('suspected', 'confirmed'))
   AND (%(state)s IN ('all', 'over') OR over_position IS NULL)
   AND (%(drift_class)s::text IS NULL OR drift_class = %(drift_class)s)
   AND (%(severity)s::text IS NULL OR severity = %(severity)s)
   AND (%(server_id)s::uuid IS NULL OR server_id = %(server_id)s)
   AND (%(volume_id)s::uuid IS NULL OR volume_id = %(volume_id)s)
   AND (%(host)s::text IS NULL OR host = %(host)s)
   AND (%(after)s::bigint IS NULL OR found_position < %(after)s)
 ORDER BY found_position DESC
 LIMIT %(limit)s;

-- name: drift_one
-- One of them, the last one that began up to a position; and its server's project.  `resized`: as
-- above.  Primary keys, mappings_by_server.
SELECT d.*, i.project_id AS owner_id,
\ir parts/resized.sql
  FROM drift AS d LEFT JOIN instances AS i USING (server_id)
 WHERE d.finding_id = %(finding_id)s
   AND (%(position)s::bigint IS NULL OR d.first_position <= %(position)s)
 ORDER BY d.found_position DESC LIMIT 1;

-- name: drift_at
-- Drift at a position of the log, newest first.  For a finding (only these have a look) the last
-- event up to there that began or ended it has the position (`began`) and the subject.  Reads only
-- what ended later or not at all, with one event each: findings_by_end, and the key of streams.
SELECT d.*, coalesce(b.position, d.found_position) AS began
  FROM drift AS d
  LEFT JOIN LATERAL (
       SELECT e.position, e.topic, e.server_id, e.volume_id, e.host,
              convert_from(e.body, 'UTF8')::json->>'severity' AS severity
         FROM events AS e
        WHERE e.originator_id = d.finding_id AND e.position <= %(position)s
          AND e.topic = ANY(%(bounds)s)
        ORDER BY e.originator_version DESC LIMIT 1) AS b ON d.look_id IS NOT NULL
 WHERE d.first_position <= %(position)s
   AND (d.over_position IS NULL OR d.over_position > %(position)s)
   AND (d.look_id IS NULL OR b.topic = %(found)s)
   AND (%(drift_class)s::text IS NULL OR d.drift_class = %(drift_class)s)
   AND (%(severity)s::text IS NULL OR coalesce(b.severity, d.severity) = %(severity)s)
   AND (%(server_id)s::uuid IS NULL
        OR CASE WHEN d.look_id IS NULL THEN d.server_id ELSE b.server_id END = %(server_id)s)
   AND (%(volume_id)s::uuid IS NULL
        OR CASE WHEN d.look_id IS NULL THEN d.volume_id ELSE b.volume_id END = %(volume_id)s)
   AND (%(host)s::text IS NULL
        OR CASE WHEN d.look_id IS NULL THEN d.host ELSE b.host END = %(host)s)
   AND (%(after)s::bigint IS NULL OR coalesce(b.position, d.found_position) < %(after)s)
 ORDER BY began DESC
 LIMIT %(limit)s;

-- name: drift_counts
-- Counts of what is not over, by class and state, and the age in seconds of the oldest.
-- findings_open, parked_now; remnants are few.
SELECT drift_class, state, count(*) AS count,
       greatest(extract(epoch FROM clock_timestamp() - min(found_at)), 0)::float8 AS oldest_s
  FROM drift
 WHERE over_position IS NULL
 GROUP BY drift_class, state;

-- name: looks
-- Looks, newest first, before a began_position; for one in progress how far it is, and how many
-- objects it compares in a second (NULL: unknown).  looks_by_age, the log's key; long_work has few
-- rows.
SELECT l.*, w.done, w.total,
       (w.done - w.began_done)
           / nullif(extract(epoch FROM w.noted_at - w.began_at), 0)::float8 AS rate,
       (SELECT e.actor FROM events AS e
         WHERE e.originator_id = l.look_id AND e.originator_version = 1) AS asked_by
  FROM looks AS l
  LEFT JOIN long_work AS w ON w.kept->>'look_id' = l.look_id::text AND l.state <> 'ended'
 WHERE (%(state)s::text IS NULL OR l.state = %(state)s)
   AND (%(after)s::bigint IS NULL OR l.began_position < %(after)s)
 ORDER BY l.began_position DESC
 LIMIT %(limit)s;

-- name: looks_asked
-- Requested looks that have not begun, in the form of `look`, the oldest first.  Reads all of a
-- table with few rows, because a look begins seconds later; and the primary key of looks.
SELECT l.*, NULL::bigint AS done, NULL::bigint AS total, NULL::float8 AS rate,
       a.look_id::text AS asked_id, a.scope AS asked_scope, a.why AS asked_why,
       a.believe AS asked_believe, a.reason AS asked_reason, a.context #>> '{actor,name}' AS asked_by
  FROM looks_asked AS a
  LEFT JOIN looks AS l USING (look_id)
 WHERE l.look_id IS NULL
 ORDER BY a.asked_at, a.look_id
 LIMIT %(limit)s;

-- name: look
-- One look, in the form of `looks`; one that has not begun, or is not projected yet, with its
-- request (`asked_scope`, ...).  Primary keys; long_work has few rows.
SELECT l.*, w.done, w.total,
       (w.done - w.began_done)
           / nullif(extract(epoch FROM w.noted_at - w.began_at), 0)::float8 AS rate,
       coalesce(a.scope, w.kept->'scope') AS asked_scope, coalesce(a.why, w.kept->>'why') AS asked_why,
       coalesce(a.believe, w.kept->'believe', '[]') AS asked_believe,
       coalesce(a.reason, w.kept->>'reason') AS asked_reason,
       coalesce((SELECT e.actor FROM events AS e
                  WHERE e.originator_id = l.look_id AND e.originator_version = 1),
                coalesce(a.context, w.kept->'context') #>> '{actor,name}') AS asked_by
  FROM (SELECT %(look_id)s::uuid AS look_id) AS wanted
  LEFT JOIN looks AS l USING (look_id)
  LEFT JOIN looks_asked AS a USING (look_id)
  LEFT JOIN long_work AS w ON w.kept->>'look_id' = wanted.look_id::text
                          AND l.state IS DISTINCT FROM 'ended'
 WHERE coalesce(l.look_id, a.look_id) IS NOT NULL OR w.name IS NOT NULL;

-- name: last_looks
-- By kind (all, host, server, volume): seconds since the end of the last completed look; no row for
-- a kind without one.  looks_by_kind.
SELECT kind, greatest(extract(epoch FROM clock_timestamp() - l.ended_at), 0)::float8 AS age_s
  FROM unnest('{all,host,server,volume}'::text[]) AS kind
 CROSS JOIN LATERAL (
       SELECT ended_at FROM looks
        WHERE looks.kind = kind.kind AND outcome = 'completed'
        ORDER BY ended_at DESC LIMIT 1) AS l;

-- name: held_back
-- The counts that the last completed full look suppressed, by class.  looks_by_kind.
SELECT braked FROM looks
 WHERE kind = 'all' AND outcome = 'completed'
 ORDER BY ended_at DESC LIMIT 1;

-- name: looks_by_outcome
-- Counts of looks by outcome.  Its index alone, which grows by a few looks a day and host.
SELECT outcome, count(*) AS count FROM looks WHERE outcome IS NOT NULL GROUP BY outcome;

-- name: hosts_of_server
-- All hosts that ever had a volume of a server.  attachments_by_server, and the primary key of
-- spans.
SELECT DISTINCT s.host
  FROM attachments AS a JOIN spans AS s USING (attachment_id)
 WHERE a.server_id = %(server_id)s
 ORDER BY s.host;

-- name: repairs_so_far
-- Counts of the operations of an actor after a position, in all and on one host, and of that host's
-- attachments.  A repair without a host counts at its server's.  operations_by_start (an hour's),
-- attachments_open_by_host, primary key of instances.
SELECT count(*) AS begun,
       count(*) FILTER (WHERE coalesce(o.host, i.host) = %(host)s) AS begun_there,
       (SELECT count(*) FROM attachments AS a
         WHERE a.host = %(host)s AND a.state <> 'deleted') AS attachments_there
  FROM operations AS o LEFT JOIN instances AS i USING (server_id)
 WHERE o.started_position > %(after)s AND o.actor = %(actor)s;
