-- Long work shows how far it is, and goes on where it was; rebuilt tables have their own place.

CREATE TABLE long_work (
    name text PRIMARY KEY,
    done bigint NOT NULL DEFAULT 0,
    total bigint NOT NULL DEFAULT 0,
    kept jsonb,
    began_at timestamptz,
    began_done bigint,
    noted_at timestamptz,
    holder_pid int,
    holder_since timestamptz
);

-- A row of a projection that a process keeps in memory is right only for this table.
ALTER TABLE tracking ADD COLUMN rebuilds int NOT NULL DEFAULT 0;

-- Where projections are made anew, beside those that are read.
CREATE SCHEMA rebuild;
CREATE TABLE rebuild.tracking (
    projection text PRIMARY KEY,
    position bigint NOT NULL,
    rebuilds int NOT NULL DEFAULT 0
);
