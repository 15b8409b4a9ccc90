-- Spans of volumes that a migration of Cinder's has given another id: under the former one they
-- ended there, and another began.  Before this the id of all of them was rewritten.  Which id an
-- attachment's volume had first is in its first event, which is never detached; where the event
-- that gave it another is detached, its spans stay as they are.

CREATE TEMPORARY TABLE repaired ON COMMIT DROP AS
WITH renamed AS (
    SELECT originator_id AS attachment_id, volume_id, position, recorded_at
      FROM events
     WHERE topic = 'Attachment.VolumeRenamed'
       AND position <= (SELECT position FROM tracking WHERE projection = 'attachments')
),
names AS (
    SELECT attachment_id, volume_id, position AS from_position, recorded_at AS from_at,
           lead(position) OVER later AS to_position, lead(recorded_at) OVER later AS to_at
      FROM (SELECT * FROM renamed
            UNION ALL
            SELECT originator_id, volume_id, position, recorded_at FROM events
             WHERE originator_version = 1
               AND originator_id IN (SELECT attachment_id FROM renamed)) AS given
    WINDOW later AS (PARTITION BY attachment_id ORDER BY position)
)
SELECT s.attachment_id, s.host,
       greatest(s.from_position, n.from_position) AS from_position,
       least(s.to_position, n.to_position) AS to_position,
       greatest(s.from_at, n.from_at) AS from_at,
       least(s.to_at, n.to_at) AS to_at,
       n.volume_id, s.server_id
  FROM spans AS s
  JOIN names AS n USING (attachment_id)
 WHERE n.from_position < coalesce(s.to_position, 9223372036854775807)
   AND s.from_position < coalesce(n.to_position, 9223372036854775807);

DELETE FROM spans WHERE attachment_id IN (SELECT attachment_id FROM repaired);
INSERT INTO spans SELECT * FROM repaired;
UPDATE attachments AS a
   SET spans = (SELECT jsonb_agg(to_jsonb(r) - 'attachment_id' - 'server_id'
                                 ORDER BY r.from_position)
                  FROM repaired AS r WHERE r.attachment_id = a.attachment_id)
 WHERE attachment_id IN (SELECT attachment_id FROM repaired);

-- What was refused a short while ago.
CREATE TABLE refusals (
    request_id text PRIMARY KEY,
    global_request_id text,
    refused_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    method text NOT NULL,
    route text NOT NULL,                 -- its name in the API
    status int NOT NULL,
    code text NOT NULL,
    message text NOT NULL,               -- as the caller was told
    actor text NOT NULL,
    user_id text,
    project_id text
);
