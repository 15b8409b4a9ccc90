-- The only write path of `events`.
--
-- Takes a batch of appends: the streams (aggregates) of each with the version that each must
-- be at, and the events, those of one append together and in their order.  A stream gets
-- events from one append of a batch only, which no other append of it needs, and they go on
-- from the version that is given for it, without a gap: the writer sees to both.  A stream
-- without events only has to be as it was read.
--
-- Returns the position before the first event, the appends that were refused, and for each
-- of these the position of its first event if it had been stored before, else NULL.  The
-- events of all others have the positions that follow, in the order in which they were given.
--
-- Why it is right:
-- * The first statement locks the one row of `log_head`.  Every writer takes this lock
--   and holds it until its commit, so positions are given, and become visible, in commit
--   order and without gaps: who tails by position misses nothing.  A row lock is the form
--   that is portable to other engines; it conflicts with neither VACUUM nor readers.
-- * plpgsql gives each later statement a new snapshot, so what is checked is what the
--   previous holder of the lock committed.  Folding lock and check into one statement
--   would check a state from before the lock.
-- * An append is accepted if and only if each of its streams is exactly at the version
--   given: one that is further has been changed by another writer, one that is not so far
--   would get a hole.  An empty stream is at 0 or at -1, whichever the writer says: it may
--   begin at 1 or at 0, as the eventsourcing library has it.
-- * A refused append stores nothing and disturbs no other append of the batch.
-- * An append that is stored already is recognised by `append_id` on its first event and
--   answered with its old position: sending a batch again after a lost answer is right.
-- * The hash chain (ledger/log/chain.py) gets one link for all events of the call.
--
-- Why it is fast:
-- * The number of lookups is linear in the batch, and no rows of the batch are joined with
--   each other.  So one plan is right for every length, and it is made once; left alone, the
--   planner makes another for each call, at thrice the cost of a small one.
-- * Events come as one array of rows.  From an array per column the server would first have
--   to put each row together.
CREATE TYPE appended_stream AS (append_no int, id uuid, version bigint);
CREATE TYPE appended_event AS (
    append_no int, append_id uuid, originator_id uuid, originator_version bigint,
    topic text, body bytea,
    attachment_id uuid, volume_id uuid, server_id uuid, host text,
    operation_id uuid, request_id text, cause text,
    actor text, user_id text, project_id text, roles text[]
);
-- The rows of the table for events that are stored after the position `head`.  A function of
-- its own because they are needed twice: to be hashed and to be stored.  The planner puts the
-- query in its place.
CREATE FUNCTION event_rows(
    new_events appended_event[], head bigint, recorded_at timestamptz, link bytea
)
RETURNS SETOF events
LANGUAGE sql STABLE
AS $$
    SELECT head + b.ordinality, b.originator_id, b.originator_version, b.topic, b.body,
           event_rows.recorded_at,
           b.attachment_id, b.volume_id, b.server_id, b.host,
           b.operation_id, b.request_id, b.cause, b.actor, b.user_id, b.project_id, b.roles,
           b.append_id,
           CASE WHEN b.ordinality = cardinality(new_events) THEN link END
      FROM unnest(new_events) WITH ORDINALITY AS b
$$;

CREATE FUNCTION append_events(
    streams appended_stream[], new_events appended_event[],
    OUT head bigint, OUT refused int[], OUT stored_at bigint[]
)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET client_encoding = 'UTF8'  -- event_bytes needs it
AS $$
DECLARE
    now_at timestamptz;
    link bytea;
BEGIN
    SELECT h.position, greatest(clock_timestamp(), h.recorded_at), h.chain
      INTO STRICT head, now_at, link
      FROM log_head AS h
       FOR UPDATE;

    SELECT array_agg(DISTINCT s.append_no)
      INTO refused
      FROM unnest(streams) AS s
     WHERE s.version <> coalesce(
               (SELECT max(e.originator_version) FROM events AS e WHERE e.originator_id = s.id),
               greatest(-1, least(s.version, 0))
           );

    IF refused IS NOT NULL THEN
        SELECT array_agg(f.append_no), array_agg((
                   SELECT e.position
                     FROM events AS e
                    WHERE e.originator_id = f.originator_id
                      AND e.originator_version = f.originator_version
                      AND e.append_id = f.append_id
               ))
          INTO refused, stored_at
          FROM (
              SELECT DISTINCT ON (b.append_no) b.*
                FROM unnest(new_events) WITH ORDINALITY AS b
               WHERE b.append_no = ANY (refused)
               ORDER BY b.append_no, b.ordinality
          ) AS f;
        new_events := array(
            SELECT b FROM unnest(new_events) AS b WHERE b.append_no <> ALL (refused)
        );
    END IF;

    IF cardinality(new_events) > 0 THEN
        SELECT sha256(link || string_agg(event_bytes(e), '' ORDER BY e.position))
          INTO link
          FROM event_rows(new_events, head, now_at, NULL) AS e;
        INSERT INTO events
        SELECT * FROM event_rows(new_events, head, now_at, link);
        UPDATE log_head
           SET position = head + cardinality(new_events), recorded_at = now_at, chain = link;
    END IF;

    PERFORM pg_notify('ledger_appended', '');
END
$$;
