-- What the ledger has of observed servers, which are Nova's (ledger/nova_beside).

-- name: servers
-- Observed servers in the order of ids, after one, and deleted ones that still have an attachment
-- in Cinder; with mappings and open attachments; all, or only these.  instances_observed,
-- mappings_by_server, attachments_by_server.
SELECT i.server_id::text, i.name, i.host, i.vm_state, i.power_state, i.project_id, i.user_id,
       i.deleted,
       (SELECT coalesce(jsonb_agg(jsonb_build_array(bdm_id, volume_id)), '[]')
          FROM mappings AS m WHERE m.server_id = i.server_id) AS mappings,
       a.attachments
  FROM instances AS i
 CROSS JOIN LATERAL (
       SELECT coalesce(jsonb_agg(jsonb_build_array(attachment_id, volume_id, state, host)), '[]')
              AS attachments
         FROM attachments WHERE server_id = i.server_id AND state <> 'deleted') AS a
 WHERE i.origin IS NOT NULL AND (NOT i.deleted OR a.attachments <> '[]')
   AND (%(after)s::uuid IS NULL OR i.server_id > %(after)s)
   AND (%(only)s::uuid[] IS NULL OR i.server_id = ANY(%(only)s))
 ORDER BY i.server_id
 LIMIT %(limit)s;

-- name: ours
-- The ledger's own of these servers, without those that only a host has shown
-- (Instance.only_shown: no operation has ever had it).  Primary key,
-- operations_by_server.
SELECT server_id::text FROM instances AS i
 WHERE server_id = ANY(%(ids)s::uuid[]) AND origin IS NULL
   AND (shown_by IS NULL OR EXISTS (SELECT FROM operations AS o WHERE o.server_id = i.server_id));

-- name: ended
-- Which of these attachments, which were Nova's, have ended in the log.  Primary key.
SELECT attachment_id::text FROM attachments
 WHERE attachment_id = ANY(%(ids)s::uuid[]) AND state = 'deleted' AND origin IS NOT NULL;

-- name: differing
-- Findings that are not over; `theirs`: about objects of Nova.  findings_open.
SELECT finding_id::text, drift_class, state, differs, server_id::text, volume_id::text, host,
       differs ? 'nova' AS theirs
  FROM findings WHERE over_position IS NULL;

-- name: now
-- Where the log ends, and when.
SELECT position, clock_timestamp() FROM log_head;

-- name: own_hosts
-- The ledger's hosts, without forgotten ones.
SELECT host FROM hosts WHERE deleted IS NOT TRUE;

-- name: ours_of_host
-- The ledger's own servers that have something on a host or moving to it: the server, also by a
-- resize that can be reverted; an attachment; an unfinished operation; a guest that the agent
-- shows.  Reads all of `instances`, for an operator's request; attachments_open_by_host,
-- operations_open.
SELECT server_id::text FROM instances
 WHERE origin IS NULL
   AND (elsewhere ? %(host)s OR NOT deleted AND %(host)s IN (host, resize_source))
UNION
SELECT server_id::text FROM attachments
 WHERE host = %(host)s AND state <> 'deleted' AND origin IS NULL
UNION
SELECT server_id::text FROM operations
 WHERE state <> 'finished'
   AND (host = %(host)s OR destination = %(host)s
        OR steps @> jsonb_build_array(jsonb_build_object('place', %(host)s::text)));
