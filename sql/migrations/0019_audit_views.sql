-- What is left of the old flow is found at once; promised views for auditors.

CREATE INDEX mappings_by_old_flow ON mappings (server_id) WHERE legacy;
CREATE INDEX attachments_by_old_flow ON attachments (created_position) WHERE legacy;
