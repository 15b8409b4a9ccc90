-- The canonical form of an event, over which the hash chain goes; see ledger/log/chain.py.
--
-- Its columns are those of the log when the chain began, in the order of the table, and are
-- for ever: with one more, no older link would be right.  Text has the encoding of the
-- client, as in every binary form, so whoever calls this needs client_encoding = UTF8.
-- The planner puts the expression in the place of the call.
CREATE FUNCTION event_bytes(e events) RETURNS bytea
LANGUAGE sql STABLE
RETURN record_send(ROW(
    e.position, e.originator_id, e.originator_version, e.topic, e.body, e.recorded_at,
    e.attachment_id, e.volume_id, e.server_id, e.host, e.operation_id,
    e.request_id, e.cause, e.actor, e.user_id, e.project_id, e.roles, e.append_id
));
