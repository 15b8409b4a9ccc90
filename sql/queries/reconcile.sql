-- What a look reads of the ledger, and stores while it is in progress (ledger/reconcile).  Objects
-- with an origin are Nova's: they are not compared, because they are only as new as their last
-- observation.

-- name: projected
-- The lowest position of these projections.
SELECT coalesce(min(position), 0) AS position FROM tracking WHERE projection = ANY(%(names)s);

-- name: began
-- The position at which a look began, by its stream's key.
SELECT position FROM events WHERE originator_id = %(look_id)s AND originator_version = 1;

-- name: open
-- Counts of findings that are not over, by class.  findings_open.
SELECT drift_class, count(*) AS number FROM findings
 WHERE over_position IS NULL GROUP BY drift_class;

-- name: totals
-- Roughly how many objects a full look compares.
SELECT (SELECT count(*) FROM attachments WHERE state <> 'deleted') AS attachments,
       (SELECT count(*) FROM mappings WHERE volume_id IS NOT NULL) AS mappings,
       (SELECT count(*) FROM hosts) AS hosts;

-- name: attachments
-- Open attachments in the order of ids, after one; with the state of their server, whether a mapping
-- (also as `kept`) names them, and its device name.  attachments_open.
\ir parts/open_attachments.sql
   AND (%(after)s::uuid IS NULL OR a.attachment_id > %(after)s)
 ORDER BY a.attachment_id
 LIMIT %(limit)s;

-- name: attachments_of
-- As `attachments`, of one volume.  attachments_by_volume.
\ir parts/open_attachments.sql
   AND a.volume_id = %(volume_id)s
 ORDER BY a.attachment_id;

-- name: attachments_by_id
-- As `attachments`, by their ids; only open ones.  Primary key.
\ir parts/open_attachments.sql
   AND a.attachment_id = ANY(%(ids)s::uuid[]);

-- name: servers
-- The state of servers, and their volumes by Cinder's old calls, whose attachment ids are the
-- ledger's own.  Primary key, attachments_by_server.
SELECT i.server_id, CASE WHEN i.deleted THEN 'deleted' ELSE 'live' END AS server,
       ARRAY(SELECT a.volume_id::text FROM attachments AS a
              WHERE a.server_id = i.server_id AND a.legacy AND a.state <> 'deleted') AS legacy
  FROM instances AS i WHERE i.server_id = ANY(%(ids)s::uuid[]) AND i.origin IS NULL;

-- name: volumes
-- Volumes of servers in the order of ids, after one, with their facts (volume_facts).
-- mappings_by_volume, attachments_by_volume.
SELECT v.volume_id, m.mappings, m.server_id, m.projects, a.open, a.had, a.held
  FROM (SELECT DISTINCT volume_id FROM mappings
         WHERE volume_id IS NOT NULL AND origin IS NULL
           AND (%(after)s::uuid IS NULL OR volume_id > %(after)s)
         ORDER BY volume_id
         LIMIT %(limit)s) AS v
\ir parts/volume_facts.sql
 ORDER BY v.volume_id;

-- name: volume_facts
-- For volumes: the numbers of mappings and open attachments, a server, the projects, whether any
-- server ever had it, and of each open attachment its id, host and device name (`held`).
-- mappings_by_volume, attachments_by_volume.
SELECT v.volume_id, m.mappings, m.server_id, m.projects, a.open, a.had, a.held
  FROM unnest(%(ids)s::uuid[]) AS v (volume_id)
\ir parts/volume_facts.sql
 ORDER BY v.volume_id;

-- name: making
-- Whether an unfinished operation creates volumes with this mark.  operations_open.
SELECT EXISTS (
    SELECT FROM operations
     WHERE state <> 'finished'
       AND lanes @> jsonb_build_array(jsonb_build_object('bdm_id', %(mark)s::text))) AS making;

-- name: made_for
-- The operation that planned a volume with this mark, and its server.  Reads all operations, but
-- only for a volume that no server ever had.
SELECT operation_id, server_id FROM operations
 WHERE lanes @> jsonb_build_array(jsonb_build_object('bdm_id', %(mark)s::text))
 ORDER BY started_position
 LIMIT 1;

-- name: scoped_volumes
-- The volumes of a partial look (a host, a server, or a volume), and those of open findings about
-- it, after one.
SELECT volume_id FROM (
\ir parts/volumes_of_part.sql
       ) AS v
 WHERE volume_id IS NOT NULL AND (%(after)s::uuid IS NULL OR volume_id > %(after)s)
 ORDER BY volume_id
 LIMIT %(limit)s;

-- name: hosts
-- Hosts that are not forgotten, in the order of names, after one.  For a partial look those of its servers and attachments,
-- those that open findings about it rest on, and those whose last survey shows a guest of the
-- server, for which all surveys are read.
SELECT host FROM hosts
 WHERE deleted IS NOT TRUE AND (%(after)s::text IS NULL OR host > %(after)s)
   AND (%(whole)s OR host = %(host)s OR host IN (
        SELECT unnest(ARRAY[host, resize_source]) FROM instances
         WHERE server_id = %(server)s::uuid
            OR server_id IN (SELECT server_id FROM mappings WHERE volume_id = %(volume)s::uuid)
        UNION
        SELECT a.host FROM attachments AS a
         WHERE state <> 'deleted'
           AND (server_id = %(server)s::uuid OR volume_id = %(volume)s::uuid)
        UNION
        SELECT f.host FROM findings AS f
         WHERE f.over_position IS NULL
           AND (f.server_id = %(server)s::uuid OR f.volume_id = %(volume)s::uuid)
        UNION
        SELECT jsonb_path_query(f.differs, '$.host[*][0]')#>>'{}' FROM findings AS f
         WHERE f.over_position IS NULL AND f.subject = 'server'
           AND f.server_id = %(server)s::uuid
        UNION
        SELECT s.host FROM surveys AS s
         WHERE %(server)s::text IS NOT NULL
           AND s.document->'guests' @> jsonb_build_array(
                   jsonb_build_object('server_id', %(server)s::text))))
 ORDER BY host
 LIMIT %(limit)s;

-- name: servers_of_host
-- The servers whose guest belongs on a host, and those that it shows and whose guest belongs
-- nowhere; if no other host is looked at, also shown ones that belong elsewhere (`here` is false).
-- instances_by_host, primary key.
SELECT server_id, host, resize_source, power_state, faults, deleted, true AS here FROM instances
 WHERE NOT deleted AND (host = %(host)s OR resize_source = %(host)s) AND origin IS NULL
UNION ALL
SELECT server_id, NULL, NULL, power_state, faults, deleted, true FROM instances
 WHERE server_id = ANY(%(shown)s::uuid[]) AND origin IS NULL
   AND (deleted OR host IS NULL AND resize_source IS NULL)
UNION ALL
SELECT server_id, host, resize_source, power_state, faults, deleted, false FROM instances
 WHERE server_id = ANY(%(shown)s::uuid[]) AND %(alone)s AND origin IS NULL
   AND NOT deleted AND host <> %(host)s AND resize_source IS DISTINCT FROM %(host)s;

-- name: told_by
-- The servers with an open finding that rests on a host's report.
SELECT server_id::text FROM findings
 WHERE over_position IS NULL AND subject = 'server'
   AND differs->'host' @> jsonb_build_array(jsonb_build_array(%(host)s::text));

-- name: mappings_of
-- The servers' live mappings with a volume.  mappings_by_server.
SELECT server_id, volume_id, attachment_id, kept, device_name, access_mode, state,
       coalesce(serial, volume_id) AS serial
  FROM mappings
 WHERE server_id = ANY(%(ids)s::uuid[]) AND volume_id IS NOT NULL;

-- name: attachments_of_host
-- Our open attachments of a host, and those that its records name, open or not, anybody's.
-- attachments_open_by_host, primary key.
SELECT attachment_id, volume_id, server_id, host, state, access_mode, legacy FROM attachments
 WHERE (host = %(host)s AND state <> 'deleted' AND origin IS NULL)
    OR attachment_id = ANY(%(recorded)s::uuid[]);

-- name: seeing
-- Those of some hosts whose surveys tell all of their guests.  Primary key.
SELECT host FROM surveys
 WHERE host = ANY(%(hosts)s) AND token IS NOT NULL AND NOT document->'blind' ? 'guests';

-- name: powers
-- The power state of guests by the surveys of hosts other than their servers'; if only one host is
-- looked at, also of their servers' hosts, for the guests that it shows.  Reads all these surveys.
SELECT g->>'server_id' AS server_id, s.host, g->>'power_state' AS power
  FROM surveys AS s
 CROSS JOIN LATERAL jsonb_array_elements(s.document->'guests') AS g
  JOIN instances AS i ON i.server_id::text = g->>'server_id'
 WHERE s.token IS NOT NULL AND s.host = ANY(%(hosts)s)
   AND (i.host IS DISTINCT FROM s.host OR i.deleted
        OR EXISTS (SELECT FROM surveys AS o
                    WHERE o.host = %(host)s AND o.document->'guests' @> jsonb_build_array(
                              jsonb_build_object('server_id', g->>'server_id'))));

-- name: moves
-- For objects in the given order: whether an unfinished operation has claimed them, and the
-- position of their last event (0: none), without the topics `own`.  An event of one volume of a
-- server does not count for the server's others.  An object of a host alone (`hosts`) may belong to
-- any command that the host has.  operations_by_volume, mailbox_by_host, events_by_volume,
-- _attachment, _server, _host.
SELECT EXISTS (SELECT FROM operations AS o
                WHERE o.state <> 'finished' AND o.volume_ids @> ARRAY[w.volume_id])
       OR EXISTS (SELECT FROM instances AS i CROSS JOIN LATERAL jsonb_each(i.claims) AS c
                   WHERE i.server_id = w.server_id AND (c.value->>'exclusive')::boolean)
       OR EXISTS (SELECT FROM mailbox AS b WHERE b.host = w.host)
       AS claimed,
       coalesce((SELECT max(position) FROM (
           (SELECT position FROM events
             WHERE volume_id = w.volume_id AND topic <> ALL(%(own)s)
             ORDER BY position DESC LIMIT 1)
           UNION ALL
           (SELECT position FROM events
             WHERE attachment_id = w.attachment_id AND topic <> ALL(%(own)s)
             ORDER BY position DESC LIMIT 1)
           UNION ALL
           (SELECT position FROM events
             WHERE w.volume_id IS NULL AND server_id = w.server_id AND topic <> ALL(%(own)s)
             ORDER BY position DESC LIMIT 1)
           UNION ALL
           (SELECT position FROM events
             WHERE host = w.host AND topic <> ALL(%(own)s)
             ORDER BY position DESC LIMIT 1)) AS e), 0) AS moved_at
  FROM unnest(%(servers)s::uuid[], %(volumes)s::uuid[], %(attachments)s::uuid[], %(hosts)s::text[])
       WITH ORDINALITY AS w (server_id, volume_id, attachment_id, host, nth)
 ORDER BY w.nth;

-- name: canaries
-- Some attachments that Cinder must have: of servers of other projects than one, and of any.
(SELECT a.attachment_id, a.volume_id, true AS others
   FROM attachments AS a JOIN instances AS i USING (server_id)
  WHERE a.state <> 'deleted' AND NOT a.legacy AND a.origin IS NULL
    AND i.project_id <> %(own)s::text
  LIMIT %(limit)s)
UNION ALL
(SELECT attachment_id, volume_id, false
   FROM attachments
  WHERE state <> 'deleted' AND NOT legacy AND origin IS NULL
  LIMIT %(limit)s);

-- name: put_cases
-- Stores the cases of a look until its end.  Idempotent.
INSERT INTO look_cases (look_id, finding_id, drift_class, seen)
SELECT %(look_id)s, c.finding_id, c.drift_class, c.seen
  FROM jsonb_to_recordset(%(cases)s::jsonb) AS c (finding_id uuid, drift_class text, seen jsonb)
    ON CONFLICT DO NOTHING
RETURNING drift_class;

-- name: opening
-- The number of findings of each class that a look would open.
SELECT c.drift_class, count(*) AS number
  FROM look_cases AS c LEFT JOIN findings AS f USING (finding_id)
 WHERE c.look_id = %(look_id)s AND coalesce(f.state, 'over') = 'over'
 GROUP BY c.drift_class;

-- name: examples
-- A few of the findings of some classes that a look would open.
SELECT drift_class, seen
  FROM (SELECT c.drift_class, c.seen,
               row_number() OVER (PARTITION BY c.drift_class ORDER BY c.finding_id) AS nth
          FROM look_cases AS c LEFT JOIN findings AS f USING (finding_id)
         WHERE c.look_id = %(look_id)s AND c.drift_class = ANY(%(classes)s)
           AND coalesce(f.state, 'over') = 'over') AS opening
 WHERE nth <= %(most)s
 ORDER BY drift_class, nth;

-- name: cases
-- The cases of a look, in the order of the findings' ids, after one; `apart_s`: seconds since an
-- earlier look first found the present values (NULL: none has).
SELECT c.finding_id, c.drift_class, c.seen, coalesce(f.state, 'over') = 'over' AS opens,
       CASE WHEN f.look_id <> c.look_id
            THEN extract(epoch FROM clock_timestamp() - f.seen_at)::float8 END AS apart_s
  FROM look_cases AS c LEFT JOIN findings AS f USING (finding_id)
 WHERE c.look_id = %(look_id)s AND (%(after)s::uuid IS NULL OR c.finding_id > %(after)s)
 ORDER BY c.finding_id
 LIMIT %(limit)s;

-- name: drop_cases
-- Deletes the cases of a look that has ended.
DELETE FROM look_cases WHERE look_id = %(look_id)s;

-- name: unseen
-- Findings that are not over and that a look has not seen, of these subjects, in the order of ids,
-- after one; for a partial look only those about it; and those of hosts that are no more
-- (`host_gone`), which no survey will tell of.  Without those about Nova's objects, which the
-- observer ends.
SELECT f.finding_id, f.drift_class, f.subject, f.key, f.host, f.server_id, f.volume_id,
       f.attachment_id, f.host IS NOT NULL AND (h.host IS NULL OR h.deleted IS TRUE) AS host_gone
  FROM findings AS f LEFT JOIN hosts AS h USING (host)
 WHERE f.state <> 'over' AND NOT f.differs ? 'nova'
   AND (f.subject = ANY(%(subjects)s)
        OR f.host IS NOT NULL AND (h.host IS NULL OR h.deleted IS TRUE))
   AND (%(after)s::uuid IS NULL OR f.finding_id > %(after)s)
   AND (%(whole)s OR f.host = %(host)s OR f.server_id = %(server)s::uuid
        OR f.volume_id IN (
\ir parts/volumes_of_part.sql
        ))
   AND NOT EXISTS (SELECT FROM look_cases AS c
                    WHERE c.look_id = %(look_id)s AND c.finding_id = f.finding_id)
 ORDER BY f.finding_id
 LIMIT %(limit)s;

-- name: unseen_on
-- Findings that are not over, that a look has not seen, and that are about a host or its servers.
SELECT f.finding_id, f.drift_class, f.subject, f.key, f.host, f.server_id, f.volume_id,
       f.attachment_id, i.host AS server_host
  FROM findings AS f LEFT JOIN instances AS i ON i.server_id = f.server_id AND NOT i.deleted
 WHERE f.state <> 'over' AND NOT f.differs ? 'nova'
   AND (f.host = %(host)s OR f.server_id = ANY(%(servers)s::uuid[]))
   AND NOT EXISTS (SELECT FROM look_cases AS c
                    WHERE c.look_id = %(look_id)s AND c.finding_id = f.finding_id);

-- name: ignored
-- Ignored findings, in the order of ids, after one.
SELECT finding_id FROM findings
 WHERE state = 'ignored' AND (%(after)s::uuid IS NULL OR finding_id > %(after)s)
 ORDER BY finding_id
 LIMIT %(limit)s;

-- name: now
-- The time.
SELECT extract(epoch FROM clock_timestamp())::float8 AS now;

-- name: ask
-- Requests a look, unless an equal request (scope, believe) has not begun yet; returns its id.
WITH met AS (
\ir parts/met.sql
        ON CONFLICT DO NOTHING)
INSERT INTO looks_asked (look_id, scope, why, context, believe, reason)
VALUES (%(look_id)s, %(scope)s::jsonb, %(why)s, %(context)s::jsonb, %(believe)s::jsonb, %(reason)s)
    ON CONFLICT (scope, believe) DO UPDATE SET scope = EXCLUDED.scope
RETURNING look_id;

-- name: asked
-- The oldest requested look, full or partial.
SELECT look_id, scope, why, context, believe, reason FROM looks_asked
 WHERE (scope = '{}') = %(whole)s ORDER BY asked_at, look_id LIMIT 1;

-- name: begun
-- Deletes the request of a look that has begun.
DELETE FROM looks_asked WHERE look_id = %(look_id)s;

-- name: overdue
-- Whether the last full look, or without one the log, began longer ago than that; or later than now:
-- the clock was set back since.
SELECT coalesce(
           (SELECT began_at FROM looks WHERE kind = 'all' ORDER BY began_position DESC LIMIT 1),
           (SELECT recorded_at FROM events WHERE position = 1))
       NOT BETWEEN clock_timestamp() - make_interval(secs => %(interval_s)s) AND clock_timestamp()
       IS TRUE AS overdue;

-- name: stopped
-- The kinds of look (full, partial) of which an operator has stopped the present one.
SELECT w.name
  FROM long_work AS w JOIN looks AS l ON l.look_id = (w.kept->>'look_id')::uuid
 WHERE l.state = 'stopped';

-- name: waiting
-- The kinds of look (full, partial) of which one can begin or continue, and that no process works
-- on.
SELECT k.name
  FROM (VALUES (%(whole)s::text, true), (%(part)s, false)) AS k (name, whole)
  LEFT JOIN long_work AS w USING (name)
 WHERE (w.kept IS NOT NULL
           AND NOT EXISTS (SELECT FROM looks AS l WHERE l.look_id = (w.kept->>'look_id')::uuid
                                                    AND l.state = 'stopped')
        OR EXISTS (SELECT FROM looks_asked AS a WHERE (a.scope = '{}') = k.whole))
   AND NOT EXISTS (SELECT FROM pg_stat_activity AS holder
                    WHERE holder.pid = w.holder_pid AND holder.backend_start = w.holder_since);
