-- What the API asks beside reads.sql: about many rows at once.

-- name: guests_of_host
-- The servers a host is known to have, those it has lost left out.  instances_by_host.
SELECT server_id FROM instances WHERE host = %(host)s AND power_state <> 'nostate';

-- name: open_on_host
-- The operations that may have a command for this host under way.  mailbox_by_host.
SELECT DISTINCT operation_id FROM mailbox WHERE host = %(host)s;

-- name: counts
-- Operations by what becomes of them, for metrics.  operations_open, operations_due.
SELECT (SELECT count(*) FROM operations WHERE state = 'running') AS running,
       (SELECT count(*) FROM operations WHERE state = 'parked') AS parked,
       (SELECT count(*) FROM operations
         WHERE due_at IS NOT NULL AND due_at <= clock_timestamp()) AS due,
       (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(updated_at)), 0)::float8
          FROM operations WHERE state = 'parked') AS oldest_parked_s;
