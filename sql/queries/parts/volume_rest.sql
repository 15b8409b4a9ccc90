SELECT * FROM own
UNION ALL
SELECT e.*
  FROM of_operations AS o
 CROSS JOIN LATERAL (
       SELECT position, recorded_at, topic, originator_id, originator_version AS version,
              attachment_id, volume_id, server_id, host, operation_id, request_id, cause,
              actor, user_id, project_id, roles, body
         FROM events
        WHERE operation_id = o.operation_id AND position > %(after)s AND position < %(before)s
          AND (volume_id IS NULL
               OR topic = ANY(%(of_the_whole)s) AND volume_id <> %(id)s)
        ORDER BY position {way}
        LIMIT %(limit)s) AS e
 WHERE EXISTS (SELECT FROM events AS k
                WHERE k.operation_id = o.operation_id AND k.volume_id = %(id)s
                  AND k.position <= %(until)s)
 ORDER BY position {way}
 LIMIT %(limit)s;
