-- Progress and owners of long work.  Ownership is a row and not a lock: a lock held so long would
-- prevent the vacuum of the head of the log.

-- name: session
-- When the server notices that a client has vanished (its host lost power), after which another may
-- take over.  Its default is two hours.  No effect on a Unix socket.
SELECT set_config('tcp_keepalives_idle', %(keepalives_idle)s::text, false),
       set_config('tcp_keepalives_interval', %(keepalives_interval)s::text, false),
       set_config('tcp_keepalives_count', %(keepalives_count)s::text, false),
       set_config('tcp_user_timeout', %(tcp_user_timeout)s::text, false);

-- name: claim
-- Creates the row of some work if there is none, and locks it.
INSERT INTO long_work (name) VALUES (%(name)s)
    ON CONFLICT (name) DO UPDATE SET name = EXCLUDED.name;

-- name: take
-- Takes the ownership of the locked row, unless its owner is still connected.  The start of another
-- role's session is visible only with pg_read_all_stats; otherwise the session's application_name
-- shows whether it is the owner, and not another one with the same pid.
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
-- Stores the progress.
UPDATE long_work
   SET done = %(done)s, total = %(total)s, kept = %(kept)s::jsonb, noted_at = clock_timestamp()
 WHERE name = %(name)s AND holder_pid = pg_backend_pid();

-- name: release
-- Gives up the ownership, so that another process can continue at once.
UPDATE long_work SET holder_pid = NULL WHERE name = %(name)s AND holder_pid = pg_backend_pid();

-- name: finish
-- Deletes the row of completed work.
DELETE FROM long_work WHERE name = %(name)s AND holder_pid = pg_backend_pid();

-- name: list
-- All long work in progress or stopped.
SELECT name, done, total, done - began_done AS done_here,
       extract(epoch FROM noted_at - began_at)::float8 AS seconds,
       EXISTS (SELECT FROM pg_stat_activity AS holder
                WHERE holder.pid = holder_pid
                  AND holder.application_name = left('attachment-ledger ' || name, 63)
                  AND coalesce(holder.backend_start, holder_since) = holder_since) AS running
  FROM long_work
 ORDER BY name;
