-- Rebuilding projections in the schema `rebuild`, which is first in the search path of the
-- connection, so that the projector's statements use the new tables.  {live} is the schema of the
-- live tables.  Some queries return DDL, one statement per row.

-- name: live
-- The schema of the live tables.
SELECT current_schema();

-- name: search
-- From here on, unqualified names are those of the new tables.
SELECT set_config('search_path', 'rebuild, ' || current_setting('search_path'), false);

-- name: different
-- Tables whose columns differ between the schemas, or that are missing in one.
WITH described AS (
    SELECT c.relname, c.relnamespace,
           array_agg(format('%%s %%s %%s %%s', a.attname, format_type(a.atttypid, a.atttypmod),
                            a.attnotnull, pg_get_expr(d.adbin, d.adrelid))
                     ORDER BY a.attnum) AS columns
      FROM pg_class AS c
      JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
     WHERE c.relname = ANY(%(tables)s)
     GROUP BY c.oid
)
SELECT t.name
  FROM unnest(%(tables)s::text[]) AS t (name)
  LEFT JOIN described AS old
         ON old.relname = t.name AND old.relnamespace = %(live)s::regnamespace
  LEFT JOIN described AS new
         ON new.relname = t.name AND new.relnamespace = 'rebuild'::regnamespace
 WHERE new.columns IS DISTINCT FROM old.columns OR new.columns IS NULL;

-- name: empty
-- DDL: drops the tables of an earlier rebuild.
SELECT format('DROP TABLE rebuild.%%I', c.relname)
  FROM pg_class AS c
 WHERE c.relnamespace = 'rebuild'::regnamespace AND c.relkind = 'r' AND c.relname <> 'tracking';

-- name: forget
-- Deletes the positions of the rebuild.
DELETE FROM rebuild.tracking;

-- name: tables
-- DDL: tables like the live ones, with their primary keys, but without other indexes.
SELECT format('CREATE TABLE rebuild.%%I (LIKE %%s INCLUDING ALL EXCLUDING INDEXES)%%s',
              c.relname, c.oid::regclass,
              ' WITH (' || array_to_string(c.reloptions, ', ') || ')')
  FROM pg_class AS c
 WHERE c.relnamespace = %(live)s::regnamespace AND c.relname = ANY(%(tables)s)
UNION ALL
SELECT format('ALTER TABLE rebuild.%%I ADD CONSTRAINT %%I %%s',
              c.relname, k.conname, pg_get_constraintdef(k.oid))
  FROM pg_constraint AS k JOIN pg_class AS c ON c.oid = k.conrelid
 WHERE c.relnamespace = %(live)s::regnamespace AND c.relname = ANY(%(tables)s)
   AND k.contype IN ('p', 'u');

-- name: indexes
-- DDL: the other indexes that do not exist yet; made last, they cost less.
SELECT replace(pg_get_indexdef(i.indexrelid),
               format(' ON %%I.%%I ', %(live)s::text, c.relname),
               format(' ON rebuild.%%I ', c.relname))
  FROM pg_index AS i
  JOIN pg_class AS c ON c.oid = i.indrelid
  JOIN pg_class AS named ON named.oid = i.indexrelid
 WHERE c.relnamespace = %(live)s::regnamespace AND c.relname = ANY(%(tables)s)
   AND NOT EXISTS (SELECT FROM pg_class AS there
                    WHERE there.relnamespace = 'rebuild'::regnamespace
                      AND there.relname = named.relname)
 ORDER BY named.relname;

-- name: statistics
-- DDL: statistics of the new tables for the planner; without columns of type jsonb, whose content no
-- index is on and whose samples are most of the work.
SELECT format('ANALYZE rebuild.%%I (%%s)', c.relname, string_agg(format('%%I', a.attname), ', '))
  FROM pg_class AS c
  JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE c.relnamespace = 'rebuild'::regnamespace AND c.relname = ANY(%(tables)s)
   AND a.atttypid <> 'jsonb'::regtype
 GROUP BY c.oid;

-- name: patience
-- The longest that the swap waits for a lock, and so the longest that it blocks readers; shorter
-- than deadlock_timeout, so that a reader is never the victim of a deadlock.
SELECT set_config('lock_timeout', '300ms', true);

-- name: lock_live
-- Waits until no other process advances the live projections, and prevents it from here on.  First
-- the advisory locks of `advance`, then the rows, for processes of 0.2.0.
WITH numbers AS MATERIALIZED (
    SELECT projection, pg_advisory_xact_lock(hashtextextended(projection, tableoid::bigint))
      FROM {live}.tracking WHERE projection = ANY(%(names)s) ORDER BY projection
)
SELECT t.projection FROM numbers JOIN {live}.tracking AS t USING (projection)
 ORDER BY t.projection FOR UPDATE OF t;

-- name: as_read
-- For the rest of the transaction unqualified names are those of the live tables.
SELECT set_config('search_path', %(live)s, true);

-- name: as_rebuilt
-- For the rest of the transaction unqualified names are those of the new tables, if they exist.
SELECT set_config('search_path', 'rebuild, ' || %(live)s, true);

-- name: views
-- DDL: the views of the live tables, to be made again over the new ones.  A view keeps its owner
-- and privileges.  Views of other owners are left out.
SELECT DISTINCT format('CREATE OR REPLACE VIEW %%I.%%I%%s AS %%s', v.relnamespace::regnamespace::text,
                       v.relname, ' WITH (' || array_to_string(v.reloptions, ', ') || ')',
                       pg_get_viewdef(v.oid))
  FROM pg_class AS t
  JOIN pg_depend AS d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = t.oid
                     AND d.classid = 'pg_rewrite'::regclass
  JOIN pg_rewrite AS r ON r.oid = d.objid
  JOIN pg_class AS v ON v.oid = r.ev_class AND v.relkind = 'v'
 WHERE t.relnamespace = %(live)s::regnamespace AND t.relname = ANY(%(tables)s)
   AND pg_has_role(v.relowner, 'USAGE');

-- name: swap
-- DDL: replaces the live tables by the new ones, with the same owners and privileges.
WITH tables AS (
    SELECT old.relname AS name, old.oid, old.relowner, old.relacl,
           old.relowner <> new.relowner AS foreign_owner
      FROM pg_class AS old JOIN pg_class AS new USING (relname)
     WHERE old.relnamespace = %(live)s::regnamespace
       AND new.relnamespace = 'rebuild'::regnamespace AND new.relname = ANY(%(tables)s)
),
rights AS (
    SELECT t.name, t.relowner, '' AS columns, (aclexplode(t.relacl)).* FROM tables AS t
    UNION ALL
    SELECT t.name, t.relowner, format(' (%%I)', a.attname), (aclexplode(a.attacl)).*
      FROM tables AS t JOIN pg_attribute AS a ON a.attrelid = t.oid
)
SELECT statement
  FROM (SELECT 1, format('GRANT %%s%%s ON rebuild.%%I TO %%s%%s', r.privilege_type, r.columns, r.name,
                         CASE r.grantee WHEN 0 THEN 'PUBLIC' ELSE r.grantee::regrole::text END,
                         CASE WHEN r.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
          FROM rights AS r
         WHERE r.grantee <> r.relowner
        UNION ALL
        SELECT 2, format('ALTER TABLE rebuild.%%I OWNER TO %%s', t.name, t.relowner::regrole)
          FROM tables AS t
         WHERE t.foreign_owner
        UNION ALL
        SELECT 3, format('DROP TABLE %%I.%%I', %(live)s::text, t.name) FROM tables AS t
        UNION ALL
        SELECT 4, format('ALTER TABLE rebuild.%%I SET SCHEMA %%I', t.name, %(live)s::text)
          FROM tables AS t
       ) AS ddl (nth, statement)
 ORDER BY nth, statement;

-- name: swapped
-- Sets the projections to the positions of the rebuild, and notifies.
WITH gone AS (
    DELETE FROM rebuild.tracking WHERE projection = ANY(%(names)s) RETURNING projection, position
),
moved AS (
    INSERT INTO {live}.tracking AS t (projection, position)
    SELECT projection, position FROM gone
        ON CONFLICT (projection)
        DO UPDATE SET position = EXCLUDED.position, rebuilds = t.rebuilds + 1, held = NULL
)
SELECT pg_notify('ledger_projected', '');
