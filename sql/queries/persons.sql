-- Personal data, which is not in the log (projections.reads.persons).

-- name: met
-- The hash of a person, then the hash of where the request came from.  With a `salt` if there is no
-- row yet; this row is stored with the first event (parts/met.sql).  persons_by_user.
SELECT coalesce(p.known_as, known_as(v.salt, v.user_id, v.name, v.address, v.agent)) AS known_as,
       CASE WHEN p.known_as IS NULL THEN v.salt::text END AS salt,
       v.user_id, v.name, v.address, v.agent
  FROM (SELECT *, uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) AS salt
          FROM (VALUES (%(user_id)s, %(name)s, '', ''), (%(user_id)s, '', %(address)s, %(agent)s))
               AS asked (user_id, name, address, agent)) AS v
  LEFT JOIN LATERAL (
       SELECT known_as FROM persons AS k
        WHERE (k.user_id, k.name, k.address, k.agent) = (v.user_id, v.name, v.address, v.agent)
        ORDER BY first_seen, known_as LIMIT 1) AS p ON true
 ORDER BY v.name = '';

-- name: who
-- The rows of these hashes; erased ones are missing.  Primary key.
SELECT known_as, user_id, name, address, agent FROM persons WHERE known_as = ANY (%(known_as)s);

-- name: of
-- All hashes of a person, by the user's id or by one of the hashes.  One index or the other.
SELECT p.known_as, p.user_id, p.name
  FROM persons AS p
 WHERE p.user_id = coalesce((SELECT k.user_id FROM persons AS k WHERE k.known_as = %(person)s),
                            %(person)s)
 ORDER BY p.known_as;

-- name: told_of
-- The number of events between two positions with one of the hashes `known_as`, and with one of
-- `texts` in plain text.  Primary key.
SELECT count(*) FILTER (WHERE e.actor = ANY (%(known_as)s)) AS known,
       count(*) FILTER (WHERE e.actor = ANY (%(texts)s) OR e.user_id = ANY (%(texts)s)
                           OR EXISTS (SELECT FROM unnest(%(texts)s::text[]) AS t (text)
                                       WHERE position(convert_to(t.text, 'UTF8') IN e.body) > 0))
           AS plain
  FROM events AS e WHERE e.position > %(after)s AND e.position <= %(until)s;

-- name: erase
-- Deletes the rows of these hashes.  Primary key.
DELETE FROM persons WHERE known_as = ANY (%(known_as)s);

-- name: erase_refusals
-- Deletes a person's refused requests.  Reads the table, which is small.
DELETE FROM refusals WHERE user_id = %(user_id)s;

-- name: hashes
-- Hashes of persons in the events between two positions: `erased` ones, and those that are `told`.
-- Primary key.
WITH page AS MATERIALIZED (
    SELECT topic, actor, body FROM events WHERE position > %(after)s AND position <= %(until)s),
told (known_as) AS (
    SELECT actor FROM page
     UNION ALL
    SELECT convert_from(body, 'UTF8')::json #>> w.path
      FROM page CROSS JOIN (VALUES ('{actor,name}'::text[]), ('{sender,address}')) AS w (path)
     WHERE position('"p:' IN body) > 0)
SELECT 'told' AS what, known_as FROM told WHERE starts_with(known_as, 'p:')
 UNION
SELECT 'erased', json_array_elements_text(convert_from(body, 'UTF8')::json -> 'known_as')
  FROM page WHERE topic = %(erased)s;

-- name: wrong
-- Inconsistent persons: `forged`, a row that does not match its hash; `left`, a row that an event
-- has erased; `lost`, a missing row of `told`, which no event has erased.  Reads the table.
SELECT 'forged' AS what, p.known_as FROM persons AS p
 WHERE p.known_as <> known_as(p.salt, p.user_id, p.name, p.address, p.agent)
UNION ALL
SELECT 'left', known_as FROM persons WHERE known_as = ANY (%(erased)s)
UNION ALL
SELECT 'lost', t.known_as FROM unnest(%(told)s::text[]) AS t (known_as)
 WHERE NOT EXISTS (SELECT FROM persons AS p WHERE p.known_as = t.known_as)
 ORDER BY 1, 2;
