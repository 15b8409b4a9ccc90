-- Audit views over several ledgers (cells) in the auditors' database, by postgres_fdw.  Each cell
-- has a foreign server with its name, a user mapping, and a schema of foreign tables, cell_NAME.

-- name: is_a_ledger
-- Whether this database is a ledger's own, whose views must not be replaced.
SELECT to_regclass('public.log_head') IS NOT NULL;

-- name: begin
-- DDL: what all cells need; only a superuser can create the extension.
SELECT 'CREATE EXTENSION postgres_fdw'
 WHERE NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'postgres_fdw')
UNION ALL
SELECT 'CREATE SCHEMA audit' WHERE to_regnamespace('audit') IS NULL;

-- name: make_room
-- DDL: renames the former cells, until no view uses them any more.
SELECT format('ALTER SERVER %%I RENAME TO %%I; ALTER SCHEMA %%I RENAME TO %%I',
              srvname, 'old ' || srvname, 'cell_' || srvname, 'old cell_' || srvname)
  FROM pg_foreign_server WHERE to_regnamespace(quote_ident('cell_' || srvname)) IS NOT NULL
 ORDER BY srvname;

-- name: make
-- DDL: a cell: its server, its user mapping, its schema, and the foreign tables for auditors.
WITH given (kind, options) AS (
    SELECT kind, string_agg(format('%%I %%L', key, value), ', ' ORDER BY key)
      FROM (VALUES ('server', %(server)s::jsonb), ('user', %(user)s::jsonb)) AS g (kind, options)
     CROSS JOIN jsonb_each_text(options) GROUP BY kind)
SELECT format('CREATE SERVER %%I FOREIGN DATA WRAPPER postgres_fdw OPTIONS (%%s)',
              %(cell)s::text, options) FROM given WHERE kind = 'server'
UNION ALL
SELECT format('CREATE USER MAPPING FOR CURRENT_USER SERVER %%I OPTIONS (%%s)',
              %(cell)s::text, options) FROM given WHERE kind = 'user'
UNION ALL
SELECT format('CREATE SCHEMA %%I', 'cell_' || %(cell)s::text)
UNION ALL
SELECT format('IMPORT FOREIGN SCHEMA %%I LIMIT TO (%%s) FROM SERVER %%I INTO %%I', schema,
              (SELECT string_agg(quote_ident(relation), ', ')
                 FROM unnest(%(schemas)s::text[], %(relations)s::text[]) AS r (of, relation)
                WHERE of = schema), %(cell)s::text, 'cell_' || %(cell)s::text)
  FROM unnest(ARRAY['public', 'audit']) AS schema;

-- name: ask
-- DDL: checks that the cell's relations exist and may be read; else it fails.
SELECT format('SELECT FROM %%I.%%I LIMIT 1', 'cell_' || %(cell)s::text, relation)
  FROM unnest(%(relations)s::text[]) AS relation;

-- name: views
-- DDL: for each relation one view over all cells, with the columns that every cell has.
WITH columns AS (
    SELECT c.relname, a.attname, min(a.attnum) AS nth
      FROM unnest(%(cells)s::text[]) AS cell
      JOIN pg_class AS c ON c.relnamespace = to_regnamespace(quote_ident('cell_' || cell))
      JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
     GROUP BY c.relname, a.attname HAVING count(*) = cardinality(%(cells)s::text[])),
chosen AS (
    SELECT relname, string_agg(quote_ident(attname), ', ' ORDER BY nth) AS names
      FROM columns GROUP BY relname)
SELECT format('CREATE OR REPLACE VIEW %%I.%%I AS %%s', schema, relation, string_agg(
           format('SELECT %%L::text AS cell, %%s FROM %%I.%%I', cell, names, 'cell_' || cell,
                  relation), ' UNION ALL ' ORDER BY nth))
  FROM unnest(%(schemas)s::text[], %(relations)s::text[]) AS r (schema, relation)
  JOIN chosen ON relname = relation
 CROSS JOIN unnest(%(cells)s::text[]) WITH ORDINALITY AS c (cell, nth)
 GROUP BY schema, relation, names ORDER BY schema, relation;

-- name: drop_old
-- DDL: drops the renamed cells.  Not CASCADE: other users' objects must not be dropped.
SELECT format('DROP FOREIGN TABLE %%s', string_agg(c.oid::regclass::text, ', '))
  FROM pg_foreign_server AS s
  JOIN pg_class AS c ON c.relnamespace = to_regnamespace(quote_ident('old cell_' || substr(srvname, 5)))
 WHERE srvname LIKE 'old %%' GROUP BY s.oid
UNION ALL
SELECT format('DROP SCHEMA %%I; DROP USER MAPPING FOR CURRENT_USER SERVER %%I; DROP SERVER %%I',
              'old cell_' || substr(srvname, 5), srvname, srvname)
  FROM pg_foreign_server WHERE srvname LIKE 'old %%';
