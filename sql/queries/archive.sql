-- Archives of months, and restoring them.

-- name: outside
-- A row outside the positions of the log, which must not exist.  Primary key.
(SELECT position FROM events WHERE position < 1 ORDER BY position LIMIT 1)
UNION ALL
(SELECT position FROM events WHERE position > (SELECT position FROM log_head)
  ORDER BY position LIMIT 1);

-- name: next_month
-- The month, as its first moment, of the first event after a position.  Primary key.
SELECT date_trunc('month', recorded_at AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
  FROM events WHERE position > %(after)s ORDER BY position LIMIT 1;

-- name: last_link
-- The last position, between two, that has a link of the chain.  Primary key.
SELECT position FROM events
 WHERE position > %(after)s AND position <= %(until)s AND chain IS NOT NULL
 ORDER BY position DESC LIMIT 1;

-- name: begin_to_detach
-- From now on readers know that the month's events may be only in its file.
INSERT INTO detached_months (month, first_position, last_position, file, sha256)
VALUES (%(month)s, %(first)s, %(last)s, %(file)s, %(sha256)s)
    ON CONFLICT (month) DO NOTHING;

-- name: unprojected
-- The projections that have not reached a position.
SELECT projection FROM tracking WHERE position < %(position)s ORDER BY projection;

-- name: rebuilding
-- Rebuilds of projections that run, or were stopped and can continue.
SELECT name FROM long_work WHERE starts_with(name, 'rebuild') ORDER BY name;

-- name: detach
-- Deletes the events between the first and the last one of streams that ended, no later than
-- `archived`; not operators' acts and waivers.  Primary key; the last event of each stream, by its
-- key.
DELETE FROM events AS e
 WHERE e.position > %(after)s AND e.position <= %(until)s
   AND e.originator_version > 1
   AND e.topic <> ALL(%(acts)s)
   AND NOT (e.topic = ANY(%(waivable)s) AND position('"waived":"'::bytea IN e.body) > 0)
   AND EXISTS (
       SELECT FROM (SELECT l.position, l.topic FROM events AS l
                     WHERE l.originator_id = e.originator_id
                     ORDER BY l.originator_version DESC LIMIT 1) AS ending
        WHERE ending.topic = ANY(%(endings)s) AND ending.position <= %(archived)s
          AND ending.position > e.position);

-- name: going_on
-- Which of these streams have not ended.  The last event of each, by its key.
SELECT id
  FROM unnest(%(streams)s::uuid[]) AS id
  LEFT JOIN LATERAL (
       SELECT topic FROM events WHERE originator_id = id
        ORDER BY originator_version DESC LIMIT 1) AS l ON true
 WHERE l.topic IS NULL OR l.topic <> ALL(%(endings)s);

-- name: restore
-- Puts back a detached event; an existing one stays as it is.
INSERT INTO events (
    position, originator_id, originator_version, topic, body, recorded_at,
    attachment_id, volume_id, server_id, host, operation_id, request_id, cause,
    actor, user_id, project_id, roles, append_id, chain)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (position) DO NOTHING;

-- name: restored
-- The month is complete in the table again.
DELETE FROM detached_months WHERE file = %(file)s;
