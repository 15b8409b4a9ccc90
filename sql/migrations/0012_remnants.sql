-- What operators' acts may have left behind; before this there are no events of it.

CREATE TABLE remnants (
    remnant_id uuid PRIMARY KEY,
    kind text NOT NULL,
    state text NOT NULL,                 -- open, acknowledged
    act text NOT NULL,                   -- skip, give_up
    reason text NOT NULL,
    from_operation uuid NOT NULL,
    step text NOT NULL,
    server_id uuid NOT NULL,
    volume_id uuid,
    attachment_id uuid,
    host text,                           -- NULL: it is in Cinder
    left_at timestamptz NOT NULL,
    left_position bigint NOT NULL,
    acknowledged_at timestamptz,
    acknowledged_reason text,
    updated_at timestamptz NOT NULL,
    position bigint NOT NULL
);
CREATE UNIQUE INDEX remnants_by_age ON remnants (left_position DESC, remnant_id);
CREATE INDEX remnants_by_position ON remnants (position);

INSERT INTO tracking (projection, position) SELECT 'remnants', position FROM log_head;
