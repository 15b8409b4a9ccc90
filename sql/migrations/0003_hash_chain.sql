-- A hash chain over the log, and an append function that needs less of the server.

SET LOCAL client_encoding = 'UTF8';  -- event_bytes needs it

ALTER TABLE events ADD COLUMN chain bytea;
ALTER TABLE log_head
    ADD COLUMN chain bytea NOT NULL DEFAULT decode(repeat('00', 32), 'hex');

\ir ../functions/event_bytes.sql

-- What is in the log already is chained as if it had been stored by a thousand at a time.
DO $$
DECLARE
    link bytea := decode(repeat('00', 32), 'hex');
    done bigint := 0;
    upto bigint;
BEGIN
    LOOP
        SELECT max(e.position), sha256(link || string_agg(event_bytes(e), '' ORDER BY e.position))
          INTO upto, link
          FROM events AS e
         WHERE e.position > done AND e.position <= done + 1000;
        EXIT WHEN upto IS NULL;
        UPDATE events SET chain = link WHERE position = upto;
        UPDATE log_head SET chain = link;
        done := upto;
    END LOOP;
END
$$;

DROP FUNCTION append_events(
    int[], uuid[], uuid[], bigint[], text[], bytea[], uuid[], uuid[], uuid[], text[],
    uuid[], text[], text[], text[], text[], text[], text[]
);
\ir ../functions/append_events_0003.sql
