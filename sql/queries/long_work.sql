-- How far long work is, and who does it.  The right to do it is not a lock that is held for
-- as long as it lasts: that would keep the versions of the head of the log from being pruned.

-- name: session
-- How soon the server takes for gone whoever has vanished without a word (a host that lost power):
-- only then others may go on.  Its own default is two hours.  No effect on a Unix socket.
SELECT set_config('tcp_keepalives_idle', %(keepalives_idle)s::text, false),
       set_config('tcp_keepalives_interval', %(keepalives_interval)s::text, false),
       set_config('tcp_keepalives_count', %(keepalives_count)s::text, false),
       set_config('tcp_user_timeout', %(tcp_user_timeout)s::text, false);

-- name: claim
-- Makes the row of some work if there is none, and locks it.
INSERT INTO long_work (name) VALUES (%(name)s)
    ON CONFLICT (name) DO UPDATE SET name = EXCLUDED.name;

-- name: take
-- Takes the right to do the work of the locked row, unless whoever has it is still connected.
-- Since when another role's sessions are there is hidden from most (pg_read_all_stats); then the
-- name of the session says whether it is of this work, and not one that has the same pid now.
UPDATE long_work
   SET began_at = clock_timestamp(), noted_at = clock_timestamp(), began_done = done,
       holder_pid = me.pid, holder_since = me.backend_start
  FROM pg_stat_activity AS me
 WHERE name = %(name)s AND me.pid = pg_backend_pid()
   AND NOT EXISTS (SELECT FROM pg_stat_activity AS holder
                    WHERE holder.pid = holder_pid
                      AND holder.application_name = me.application_name
                      AND coalesce(holder.backend_start, holder_since) = holder_since)
RETURNING done, total, kept;

-- name: note
-- How far it is now.
UPDATE long_work
   SET done = %(done)s, total = %(total)s, kept = %(kept)s::jsonb, noted_at = clock_timestamp()
 WHERE name = %(name)s AND holder_pid = pg_backend_pid();

-- name: release
-- Others may go on with it, at once.
UPDATE long_work SET holder_pid = NULL WHERE name = %(name)s AND holder_pid = pg_backend_pid();

-- name: finish
-- There is nothing left to do.
DELETE FROM long_work WHERE name = %(name)s AND holder_pid = pg_backend_pid();

-- name: list
-- All long work that is under way or was stopped.
SELECT name, done, total, done - began_done AS done_here,
       extract(epoch FROM noted_at - began_at)::float8 AS seconds,
       EXISTS (SELECT FROM pg_stat_activity AS holder
                WHERE holder.pid = holder_pid
                  AND holder.application_name = left('attachment-ledger ' || name, 63)
                  AND coalesce(holder.backend_start, holder_since) = holder_since) AS running
  FROM long_work
 ORDER BY name;
