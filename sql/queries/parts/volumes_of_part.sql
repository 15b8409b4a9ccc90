    SELECT volume_id FROM attachments
     WHERE state <> 'deleted' AND (host = %(host)s OR server_id = %(server)s::uuid)
    UNION
    SELECT m.volume_id FROM mappings AS m JOIN instances AS i USING (server_id)
     WHERE m.volume_id IS NOT NULL AND (i.host = %(host)s OR i.server_id = %(server)s::uuid)
    UNION
    SELECT volume_id FROM findings
     WHERE over_position IS NULL AND subject IN ('attachment', 'volume')
       AND (host = %(host)s OR server_id = %(server)s::uuid)
    UNION
    SELECT %(volume)s::uuid WHERE %(volume)s::uuid IS NOT NULL
