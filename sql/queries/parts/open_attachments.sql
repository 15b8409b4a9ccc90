SELECT a.attachment_id, a.volume_id, a.server_id, a.host, a.state, a.access_mode, a.legacy,
       CASE WHEN i.deleted THEN 'deleted' WHEN NOT i.deleted THEN 'live' END AS server,
       m.device_name AS device, m.server_id IS NOT NULL AS mapped
  FROM attachments AS a LEFT JOIN instances AS i USING (server_id)
  LEFT JOIN LATERAL (
       SELECT device_name, server_id FROM mappings
        WHERE server_id = a.server_id AND a.attachment_id IN (attachment_id, kept)
        LIMIT 1) AS m ON true
 WHERE a.state <> 'deleted' AND a.origin IS NULL
