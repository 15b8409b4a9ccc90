-- Flows of whole servers: where they are going, what they hold in a move, and S2's roots.

ALTER TABLE instances
    ADD COLUMN definition text,
    ADD COLUMN claims jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN resize_source text,
    ADD COLUMN deleted boolean NOT NULL DEFAULT false;

ALTER TABLE mappings
    ALTER COLUMN volume_id DROP NOT NULL,
    ALTER COLUMN attachment_id DROP NOT NULL,
    ADD COLUMN kept uuid,
    ADD COLUMN serial uuid,
    ADD COLUMN legacy boolean NOT NULL DEFAULT false;
UPDATE mappings SET serial = volume_id;

ALTER TABLE attachments ADD COLUMN legacy boolean NOT NULL DEFAULT false;

ALTER TABLE operations ADD COLUMN destination text;

ALTER TABLE hosts
    ADD COLUMN suspect boolean NOT NULL DEFAULT false,
    ADD COLUMN leftovers jsonb;
UPDATE hosts SET suspect = fenced;

-- How far a long step has come.  No fact: it may be lost without harm.
CREATE TABLE progress (
    operation_id uuid NOT NULL,
    run int NOT NULL,
    done_bytes bigint NOT NULL,
    total_bytes bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (operation_id, run)
);
