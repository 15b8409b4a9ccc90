-- What `db restored` has to mark (ledger/upkeep/restored.py).

-- name: found
-- Where the log ends, all hosts that are ours, and what is under way.  operations_open.
SELECT l.position,
       ARRAY(SELECT host FROM hosts ORDER BY host) AS hosts,
       ARRAY(SELECT operation_id::text FROM operations
              WHERE state = 'running' ORDER BY started_position) AS operations
  FROM log_head AS l;
