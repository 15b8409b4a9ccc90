-- The only write path of `events`.
--
-- Takes a batch of appends as parallel arrays, one element per event.  The events of
-- one append share `append_no` and `append_id`; they may belong to several streams
-- (aggregates), but a stream occurs in one append of the batch only: the writer keeps
-- the rest for its next batch.  Returns one row per append: the position of its first
-- event (the others follow without a gap), or NULL if it was refused.
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
--   before the first one given, and the versions that follow have no gap: too low is a
--   stale writer, too high would leave a hole.  An empty stream may begin at 0 or at 1,
--   as the eventsourcing library has it.
-- * A refused append stores nothing and disturbs no other append of the batch.
-- * An append that is stored already is recognised by `append_id` on its first event and
--   answered with its old position: sending a batch again after a lost answer is right.
-- * The number of lookups is linear in the batch, and there is no join between rows of
--   the batch: the planner knows nothing about the length of an array, and could choose
--   to compare all with all.
CREATE FUNCTION append_events(
    append_nos int[], append_ids uuid[], originator_ids uuid[], originator_versions bigint[],
    topics text[], bodies bytea[],
    attachment_ids uuid[], volume_ids uuid[], server_ids uuid[], hosts text[],
    operation_ids uuid[], request_ids text[], causes text[],
    actors text[], user_ids text[], project_ids text[], roles text[]
)
RETURNS TABLE (append_no int, first_position bigint)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    head bigint;
    now_at timestamptz;
BEGIN
    SELECT h.position, greatest(clock_timestamp(), h.recorded_at)
      INTO STRICT head, now_at
      FROM log_head AS h
       FOR UPDATE;

    IF (SELECT count(DISTINCT (s.stream, s.no)) <> count(DISTINCT s.stream)
          FROM unnest(originator_ids, append_nos) AS s (stream, no)) THEN
        RAISE EXCEPTION 'a stream occurs in two appends of one batch';
    END IF;

    RETURN QUERY
    WITH given AS (
        SELECT b.*,
               b.originator_version - row_number() OVER stream AS before,
               row_number() OVER stream AS nth_of_stream,
               row_number() OVER append AS nth_of_append
          FROM unnest(
                   append_nos, append_ids, originator_ids, originator_versions, topics, bodies,
                   attachment_ids, volume_ids, server_ids, hosts,
                   operation_ids, request_ids, causes, actors, user_ids, project_ids, roles
               ) WITH ORDINALITY AS b (
                   append_no, append_id, originator_id, originator_version, topic, body,
                   attachment_id, volume_id, server_id, host,
                   operation_id, request_id, cause, actor, user_id, project_id, roles, nth
               )
        WINDOW stream AS (PARTITION BY b.append_no, b.originator_id ORDER BY b.nth),
               append AS (PARTITION BY b.append_no ORDER BY b.nth)
    ),
    found AS (
        SELECT g.*,
               first_value(g.before) OVER (
                   PARTITION BY g.append_no, g.originator_id ORDER BY g.nth
               ) AS first_before,
               CASE WHEN g.nth_of_stream = 1 THEN (
                   SELECT max(e.originator_version)
                     FROM events AS e
                    WHERE e.originator_id = g.originator_id
               ) END AS version
          FROM given AS g
    ),
    judged AS (
        SELECT f.*,
               bool_and(CASE
                   WHEN f.nth_of_stream > 1 THEN f.before = f.first_before
                   WHEN f.version IS NULL THEN f.before IN (-1, 0)
                   ELSE f.before = f.version
               END) OVER (PARTITION BY f.append_no) AS accepted
          FROM found AS f
    ),
    placed AS (
        SELECT j.*,
               head + count(*) FILTER (WHERE j.accepted)
                      OVER (ORDER BY j.append_no, j.nth) AS position
          FROM judged AS j
    ),
    stored AS (
        INSERT INTO events (
            position, originator_id, originator_version, topic, body, recorded_at,
            attachment_id, volume_id, server_id, host,
            operation_id, request_id, cause, actor, user_id, project_id, roles, append_id
        )
        SELECT p.position, p.originator_id, p.originator_version, p.topic, p.body, now_at,
               p.attachment_id, p.volume_id, p.server_id, p.host,
               p.operation_id, p.request_id, p.cause, p.actor, p.user_id, p.project_id,
               string_to_array(p.roles, E'\n'), p.append_id
          FROM placed AS p
         WHERE p.accepted
         ORDER BY p.position
        RETURNING 1
    ),
    moved AS (
        UPDATE log_head
           SET position = head + (SELECT count(*) FROM stored), recorded_at = now_at
    )
    SELECT p.append_no,
           CASE WHEN p.accepted THEN p.position ELSE (
               SELECT e.position
                 FROM events AS e
                WHERE e.originator_id = p.originator_id
                  AND e.originator_version = p.originator_version
                  AND e.append_id = p.append_id
           ) END
      FROM placed AS p
     WHERE p.nth_of_append = 1;

    PERFORM pg_notify('ledger_appended', '');
END
$$;
