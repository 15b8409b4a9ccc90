       CASE WHEN d.volume_id IS NULL
            THEN EXISTS (SELECT FROM instances AS r
                          WHERE r.server_id = d.server_id AND r.resize_source IS NOT NULL)
            ELSE EXISTS (SELECT FROM mappings AS m
                          WHERE m.server_id = d.server_id AND m.kept IS NOT NULL
                            AND (d.attachment_id IN (m.attachment_id, m.kept)
                                 OR m.volume_id = d.volume_id)) END AS resized
