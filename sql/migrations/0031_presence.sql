-- The hosts that show a server's guest and are not its own: before this there are no events of that.

ALTER TABLE instances ADD COLUMN elsewhere jsonb NOT NULL DEFAULT '{}';
CREATE INDEX instances_elsewhere ON instances (server_id) WHERE elsewhere <> '{}';
