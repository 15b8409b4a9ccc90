-- What is left of the old flow is found at once, and what auditors read is a promise.

CREATE INDEX mappings_by_old_flow ON mappings (server_id) WHERE legacy;
CREATE INDEX attachments_by_old_flow ON attachments (created_position) WHERE legacy;

CREATE SCHEMA audit;

CREATE VIEW audit.attachments AS
    SELECT attachment_id, volume_id, server_id, host, state,
           CASE WHEN legacy THEN 'old' ELSE 'new' END AS flow,
           access_mode, operation_id, created_at, ended_at
      FROM attachments;

CREATE VIEW audit.spans AS
    SELECT s.attachment_id, s.volume_id, s.server_id, s.host,
           CASE WHEN a.legacy THEN 'old' ELSE 'new' END AS flow,
           s.from_position, s.to_position, s.from_at, s.to_at
      FROM spans AS s JOIN attachments AS a USING (attachment_id);

CREATE VIEW audit.operations AS
    SELECT operation_id, flow, server_id, volume_ids, host, destination, state, outcome,
           error->>'code' AS error_code, error->>'message' AS error_message,
           actor, user_id, project_id, request_id, started_at, finished_at
      FROM operations;

CREATE VIEW audit.steps AS
    SELECT o.operation_id, s.lane, s.volume_id, s.step, s.verb, s.place, s.undo, s.status,
           s.attempts, s.error->>'code' AS error_code, s.error->>'message' AS error_message
      FROM operations AS o
     CROSS JOIN LATERAL jsonb_to_recordset(o.steps) AS s (
           lane int, volume_id uuid, step text, verb text, place text, undo boolean,
           status text, attempts int, error jsonb);

CREATE VIEW audit.archived_months AS
    SELECT month, first_position, last_position, file, sha256, detached_at
      FROM detached_months;
