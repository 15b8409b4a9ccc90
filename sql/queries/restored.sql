-- What `db restored` marks (ledger/upkeep/restored.py).

-- name: found
-- The end of the log, all of the ledger's hosts, and the running operations.  operations_open.
SELECT l.position,
       ARRAY(SELECT host FROM hosts ORDER BY host) AS hosts,
       ARRAY(SELECT operation_id::text FROM operations
              WHERE state = 'running' ORDER BY started_position) AS operations
  FROM log_head AS l;
