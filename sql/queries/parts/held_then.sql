s.from_at <= coalesce(%(known)s::timestamptz, %(at)s::timestamptz)
   AND (s.to_at IS NULL OR s.to_at > %(since)s)
   -- An observed begin or end may have happened earlier than it was recorded.
   AND (%(known)s::timestamptz IS NULL
        OR (CASE WHEN s.from_seen IS NULL THEN s.from_at
                 ELSE coalesce((s.from_seen->>'after')::timestamptz, '-infinity') END <= %(at)s
            AND (s.to_at IS NULL OR s.to_at > %(known)s OR s.to_seen IS NULL
                 OR (s.to_seen->>'before')::timestamptz > %(since)s)))
