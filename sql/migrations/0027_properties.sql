-- What whoever asked for a server wants kept of it: nothing of those that there are, for it was refused.

ALTER TABLE instances
    ADD COLUMN metadata jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN tags jsonb NOT NULL DEFAULT '[]',
    ADD COLUMN description text;
