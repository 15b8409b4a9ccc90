-- What hosts showed of themselves when they were asked last.  Outside the log, and to be lost
-- without harm: it is asked for again, and what is believed of it is kept as events (findings).

CREATE TABLE surveys (
    host text PRIMARY KEY,
    wanted uuid,
    wanted_at timestamptz,
    wanted_position bigint,
    token uuid,
    boot_id text,
    epoch int,
    digest text,
    document jsonb,
    taken_at timestamptz,
    asked_position bigint,
    arrived_position bigint
);
