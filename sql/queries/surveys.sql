-- Requests for hosts' surveys, and their answers (projections/reads/surveys.py).

-- name: want
-- Requests surveys of some hosts, or of all (NULL), that can be asked now, and wakes their agents'
-- polls; returns the tokens.  A request younger than `again_s` stays, so that frequent requests do
-- not replace one that others wait for.  A notification has room for 25 of the longest names
-- (projections.running.news).  The insert is in the order of hosts, so that processes cannot
-- deadlock.
WITH asked AS MATERIALIZED (
    INSERT INTO surveys AS s (host, wanted, wanted_at, wanted_position)
    SELECT h.host, gen_random_uuid(), clock_timestamp(), l.position
      FROM hosts AS h
      JOIN host_contact AS c USING (host)
     CROSS JOIN log_head AS l
     WHERE (%(hosts)s::text[] IS NULL OR h.host = ANY(%(hosts)s))
       AND NOT h.fenced AND NOT h.suspect AND h.capabilities @> '{"survey": true}'
       AND abs(extract(epoch FROM clock_timestamp() - c.seen_at)) < %(silent_after_s)s
     ORDER BY h.host
        ON CONFLICT (host) DO UPDATE
           SET (wanted, wanted_at, wanted_position) = (
               SELECT coalesce(q.wanted, EXCLUDED.wanted),
                      coalesce(q.wanted_at, EXCLUDED.wanted_at),
                      coalesce(q.wanted_position, EXCLUDED.wanted_position)
                 FROM (SELECT) AS one
                 LEFT JOIN LATERAL (
                      SELECT s.wanted, s.wanted_at, s.wanted_position
                       WHERE s.wanted_at <= clock_timestamp()
                         AND s.wanted_at > clock_timestamp() - make_interval(secs => %(again_s)s)
                      ) AS q ON true)
    RETURNING s.host, s.wanted
),
told AS MATERIALIZED (
    SELECT pg_notify('ledger_projected', json_build_array('[]'::json, 0, 0,
               json_agg(json_build_array('host', host, NULL, false, false, false)))::text) AS sent
      FROM (SELECT host, (row_number() OVER (ORDER BY host) - 1) / 25 AS nth FROM asked) AS n
     GROUP BY nth
)
SELECT a.host, a.wanted AS token
  FROM asked AS a CROSS JOIN (SELECT count(sent::text) FROM told) AS n
 ORDER BY a.host;

-- name: note
-- Stores the answer to a pending request, of the host's present epoch; no row if there is none, or
-- if it says that nothing has changed (document NULL) and the stored digest differs.  Primary keys.
UPDATE surveys AS s
   SET token = s.wanted, taken_at = clock_timestamp(),
       asked_position = s.wanted_position, arrived_position = l.position,
       boot_id = coalesce(%(boot_id)s, s.boot_id), epoch = h.epoch, digest = %(digest)s,
       document = coalesce(%(document)s::jsonb, s.document),
       wanted = NULL, wanted_at = NULL, wanted_position = NULL
  FROM hosts AS h CROSS JOIN log_head AS l
 WHERE s.host = %(host)s AND s.wanted = %(token)s
   AND h.host = s.host AND h.epoch = %(epoch)s AND NOT h.fenced AND NOT h.suspect
   AND (%(document)s::jsonb IS NOT NULL OR s.digest = %(digest)s AND s.epoch = h.epoch)
RETURNING s.host;

-- name: send
-- Stores what a host that is not the ledger's has sent of itself, which nobody has asked for (no
-- token); `taken_at` is when it was made.  No row if the host is the ledger's; if its document is
-- needed (NULL: it has not changed, by its digest); or if another boot of that name, so perhaps
-- another machine, has sent one that is younger than `silent_after_s`.  Primary keys.
INSERT INTO surveys AS s (host, boot_id, digest, document, taken_at)
SELECT %(host)s, %(boot_id)s, %(digest)s, %(document)s::jsonb, %(made_at)s
 WHERE NOT EXISTS (SELECT FROM hosts AS h WHERE h.host = %(host)s AND h.deleted IS NOT TRUE)
   AND (%(document)s::jsonb IS NOT NULL OR EXISTS (SELECT FROM surveys WHERE host = %(host)s))
    ON CONFLICT (host) DO UPDATE
   SET boot_id = coalesce(EXCLUDED.boot_id, s.boot_id), digest = EXCLUDED.digest,
       document = CASE WHEN s.digest = EXCLUDED.digest AND s.token IS NULL THEN s.document
                       ELSE EXCLUDED.document END,
       taken_at = EXCLUDED.taken_at, token = NULL, epoch = NULL, asked_position = NULL,
       arrived_position = NULL, wanted = NULL, wanted_at = NULL, wanted_position = NULL
 WHERE CASE WHEN EXCLUDED.document IS NULL THEN s.digest = EXCLUDED.digest AND s.token IS NULL
            ELSE s.token IS NOT NULL OR s.taken_at IS NULL  -- it was only asked
                 OR s.boot_id IS NOT DISTINCT FROM EXCLUDED.boot_id
                 OR abs(extract(epoch FROM clock_timestamp() - s.taken_at)) >= %(silent_after_s)s
            END
RETURNING host;

-- name: sent_since
-- What hosts that are not the ledger's have made of themselves after a moment.  Reads all surveys,
-- and of those the documents.
SELECT s.host, s.document::text FROM surveys AS s
 WHERE s.token IS NULL AND s.document IS NOT NULL
   AND s.taken_at > %(since)s AND s.taken_at <= clock_timestamp()
   AND NOT EXISTS (SELECT FROM hosts AS h WHERE h.host = s.host AND h.deleted IS NOT TRUE)
 ORDER BY s.host;

-- name: sent_shows
-- Hosts that are not the ledger's and whose survey, made in the last `young_s`, shows a volume in a
-- server's guest.  Reads all those surveys.
SELECT s.host FROM surveys AS s
 WHERE s.token IS NULL
   AND abs(extract(epoch FROM clock_timestamp() - s.taken_at)) < %(young_s)s
   AND NOT EXISTS (SELECT FROM hosts AS h WHERE h.host = s.host AND h.deleted IS NOT TRUE)
   AND (s.document->'guests' @> jsonb_build_array(jsonb_build_object(
            'server_id', %(server_id)s::text,
            'disks', jsonb_build_array(jsonb_build_object('serial', %(volume_id)s::text))))
        OR s.document->'guests' @> jsonb_build_array(jsonb_build_object(
            'server_id', %(server_id)s::text,
            'unlabelled', jsonb_build_array(jsonb_build_object('volume_id', %(volume_id)s::text)))))
 ORDER BY s.host;

-- name: standings
-- The state of the surveys of some or all hosts, without the documents.  Primary keys.
SELECT h.host, h.epoch AS host_epoch, h.fenced, h.suspect,
       h.capabilities @> '{"survey": true}' AS able,
       abs(extract(epoch FROM clock_timestamp() - c.seen_at))::float8 AS silent_s,
       s.wanted, extract(epoch FROM clock_timestamp() - s.wanted_at)::float8 AS wanted_s,
       s.token, s.boot_id, s.epoch, s.digest, s.taken_at,
       extract(epoch FROM clock_timestamp() - s.taken_at)::float8 AS age_s,
       s.asked_position, s.arrived_position
  FROM hosts AS h
  LEFT JOIN host_contact AS c USING (host)
  LEFT JOIN surveys AS s USING (host)
 WHERE %(hosts)s::text[] IS NULL OR h.host = ANY(%(hosts)s)
 ORDER BY h.host;

-- name: document
-- A host's survey, if it is still the answer with this token.  Primary key.
SELECT document FROM surveys WHERE host = %(host)s AND token = %(token)s;
