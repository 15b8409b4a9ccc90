WITH own AS MATERIALIZED (
    SELECT position, recorded_at, topic, originator_id, originator_version AS version,
           attachment_id, volume_id, server_id, host, operation_id, request_id, cause,
           actor, user_id, project_id, roles, body
      FROM events
     WHERE volume_id = %(id)s AND position > %(after)s AND position < %(before)s
     ORDER BY position {way}
     LIMIT %(limit)s
),
