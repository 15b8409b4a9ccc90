-- Moves are few among all operations, and Nova's clients (Masakari, a dashboard) ask for them often.

CREATE INDEX operations_moving ON operations (started_position)
    WHERE flow IN ('evacuate', 'live_migrate', 'resize');  -- ledger.nova.migrations.TYPES

-- Deleted servers stay, and a name is of one that is there.
CREATE INDEX instances_by_name ON instances (name) WHERE NOT deleted;
