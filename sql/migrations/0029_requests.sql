-- What a request led to is found by its id, and by the id of the request that it was part of.

-- Of events only those that people's requests and the ledger's own repairs led to, not what agents
-- report and dispatchers do under the same id: of an attach five of thirty.
CREATE INDEX events_by_request ON events (request_id COLLATE "C", position)
    WHERE cause IN ('api', 'operator', 'automatic');

ALTER TABLE operations ADD COLUMN global_request_id text;
-- By a pattern and not as JSON: some text that JSON allows no function reads.
UPDATE operations AS o
   SET global_request_id = substring(convert_from(e.body, 'UTF8')
                                     FROM '"global_request_id":\s*"(req-[0-9A-Fa-f-]{36})"')
  FROM events AS e
 WHERE e.originator_id = o.operation_id AND e.originator_version = 1
   AND position('"global_request_id"'::bytea IN e.body) > 0;
CREATE INDEX operations_by_global_request ON operations (global_request_id COLLATE "C")
    WHERE global_request_id IS NOT NULL;

-- Of the past day alone, and bounded: the key of the ids is of any collation.
CREATE INDEX refusals_by_request ON refusals (request_id COLLATE "C");
CREATE INDEX refusals_by_global_request ON refusals (global_request_id COLLATE "C")
    WHERE global_request_id IS NOT NULL;
