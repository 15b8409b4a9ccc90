 CROSS JOIN LATERAL (
       SELECT count(*) AS mappings, min(server_id::text) AS server_id,
              coalesce(array_agg(DISTINCT i.project_id) FILTER (WHERE i.project_id IS NOT NULL),
                       '{}') AS projects
         FROM mappings LEFT JOIN instances AS i USING (server_id)
        WHERE volume_id = v.volume_id AND mappings.origin IS NULL) AS m
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE state <> 'deleted') AS open, count(*) > 0 AS had,
              coalesce(jsonb_agg(jsonb_build_array(attachment_id, host, (
                  SELECT device_name FROM mappings AS m
                   WHERE m.server_id = attachments.server_id
                     AND attachments.attachment_id IN (m.attachment_id, m.kept)
                   LIMIT 1))) FILTER (WHERE state <> 'deleted'), '[]') AS held
         FROM attachments WHERE volume_id = v.volume_id AND origin IS NULL) AS a
