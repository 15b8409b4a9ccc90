-- People, whose names and ids are not in the log (projections.reads.persons).

-- name: find
-- What a person is known as, and the place that the request came from; NULL: not yet.  Two rows by
-- their key.
SELECT (SELECT known_as FROM persons
         WHERE user_id = %(user_id)s AND name = %(name)s AND address = '' AND agent = '') AS person,
       (SELECT known_as FROM persons
         WHERE user_id = %(user_id)s AND name = '' AND address = %(address)s
           AND agent = %(agent)s) AS place;

-- name: add
-- The rows of these, each with a salt of its own; what another process has added meanwhile stays.
INSERT INTO persons (known_as, salt, user_id, name, address, agent)
SELECT known_as(v.salt, %(user_id)s, v.name, v.address, v.agent),
       v.salt, %(user_id)s, v.name, v.address, v.agent
  FROM (VALUES (%(name)s, '', '', uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())),
               ('', %(address)s, %(agent)s,
                uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())))
       AS v (name, address, agent, salt)
    ON CONFLICT DO NOTHING;

-- name: who
-- Whom these stand for; erased ones are not there.  Primary key.
SELECT known_as, user_id, name, address, agent FROM persons WHERE known_as = ANY (%(known_as)s);

-- name: of
-- All that a person is known as, by the user's id or by one of these.  One index or the other.
SELECT p.known_as, p.user_id, p.name
  FROM persons AS p
 WHERE p.user_id = coalesce((SELECT k.user_id FROM persons AS k WHERE k.known_as = %(person)s),
                            %(person)s)
 ORDER BY p.known_as;

-- name: told_of
-- In how many events a person stands as one of `known_as`, and in how many plainly, by one of
-- `texts`.  Reads the whole log.
SELECT count(*) FILTER (WHERE e.actor = ANY (%(known_as)s)) AS known,
       count(*) FILTER (WHERE e.actor = ANY (%(texts)s) OR e.user_id = ANY (%(texts)s)
                           OR EXISTS (SELECT FROM unnest(%(texts)s::text[]) AS t (text)
                                       WHERE position(convert_to(t.text, 'UTF8') IN e.body) > 0))
           AS plain
  FROM events AS e;

-- name: erase
-- Forgets whom these stand for.  Primary key.
DELETE FROM persons WHERE known_as = ANY (%(known_as)s);

-- name: erase_refusals
-- What was refused to a person a short while ago.  Reads the table, which is small.
DELETE FROM refusals WHERE user_id = %(user_id)s;

-- name: wrong
-- Of the persons what cannot be: `forged`, another row than was made; `left`, one that was erased by
-- an event; `lost`, one that no event has erased.  Reads the whole log.
WITH erased AS MATERIALIZED (
    SELECT json_array_elements_text(convert_from(body, 'UTF8')::json -> 'known_as') AS known_as
      FROM events WHERE topic = %(erased)s)
SELECT 'forged' AS what, p.known_as FROM persons AS p
 WHERE p.known_as <> known_as(p.salt, p.user_id, p.name, p.address, p.agent)
UNION ALL
SELECT 'left', known_as FROM erased JOIN persons USING (known_as)
UNION ALL
SELECT 'lost', l.actor
  FROM (SELECT DISTINCT actor FROM events WHERE starts_with(actor, 'p:')) AS l
 WHERE NOT EXISTS (SELECT FROM persons AS p WHERE p.known_as = l.actor)
   AND NOT EXISTS (SELECT FROM erased AS e WHERE e.known_as = l.actor)
 ORDER BY 1, 2;
