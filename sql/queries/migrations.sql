-- What the migration runner needs.

-- name: lock
-- Lets one process migrate at a time; the lock ends with the session.
SELECT pg_advisory_lock(%(key)s);

-- name: create_table
-- The table of applied migrations.
CREATE TABLE IF NOT EXISTS schema_migrations (
    name text PRIMARY KEY,
    checksum text NOT NULL,  -- SHA-256 of the text that was run
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- name: patience
-- The longest that a migration waits for a lock, and so the longest that others wait behind it;
-- longer than deadlock_timeout (1 s), after which autovacuum gives way.
SELECT set_config('lock_timeout', '2s', true);

-- name: exists
-- Whether that table exists.
SELECT to_regclass('schema_migrations') IS NOT NULL;

-- name: applied
-- The applied migrations, in order.
SELECT name, checksum FROM schema_migrations ORDER BY name;

-- name: record
-- Stores a migration as applied, in the transaction that ran it.
INSERT INTO schema_migrations (name, checksum) VALUES (%(name)s, %(checksum)s);

-- name: server_version
-- The server's version as a number, 150004 for 15.4.
SELECT current_setting('server_version_num')::int;
