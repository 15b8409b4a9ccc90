-- Database roles and their privileges (projections/running/rights.py).

-- name: role
-- Whether privileges cannot limit the role, because it is a superuser or owns the log; NULL: there
-- is no such role.
SELECT r.rolsuper OR pg_has_role(r.oid, c.relowner, 'USAGE')
  FROM pg_class AS c LEFT JOIN pg_roles AS r ON r.rolname = %(role)s
 WHERE c.oid = 'events'::regclass;

-- name: create
-- DDL: the role, without a password.
SELECT format('CREATE ROLE %%I LOGIN', %(role)s::text);

-- name: lacking
-- DDL: grants the privileges that it needs and lacks.
SELECT format('GRANT CONNECT ON DATABASE %%I TO %%I', current_database(), %(role)s::text)
 WHERE NOT has_database_privilege(%(role)s, current_database(), 'CONNECT')
UNION ALL
SELECT format('GRANT USAGE ON SCHEMA %%I TO %%I', schema, %(role)s::text)
  FROM unnest(%(schemas)s::text[]) AS schema
 WHERE NOT has_schema_privilege(%(role)s, schema, 'USAGE')
UNION ALL
(SELECT format('GRANT %%s ON %%s TO %%I', string_agg(privilege, ', ' ORDER BY nth), name,
               %(role)s::text)
   FROM unnest(%(names)s::text[], %(privileges)s::text[])
        WITH ORDINALITY AS needed (name, privilege, nth)
  WHERE NOT has_table_privilege(%(role)s, name::regclass, privilege)
  GROUP BY name
  ORDER BY name);

-- name: beyond
-- DDL: revokes the privileges that it has and does not need, on relations of the log's owner.
SELECT format('REVOKE %%s ON %%s FROM %%I', string_agg(privilege, ', ' ORDER BY privilege),
              c.oid::regclass, %(role)s::text)
  FROM pg_class AS c
  JOIN pg_class AS log ON log.oid = 'events'::regclass AND log.relowner = c.relowner
 CROSS JOIN unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) AS privilege
 WHERE c.relkind IN ('r', 'v')
   AND c.relnamespace IN (log.relnamespace, 'audit'::regnamespace, 'rebuild'::regnamespace)
   AND has_table_privilege(%(role)s, c.oid, privilege)
   AND NOT EXISTS (SELECT FROM unnest(%(names)s::text[], %(privileges)s::text[]) AS needed (n, p)
                    WHERE n::regclass = c.oid AND p = privilege)
 GROUP BY c.oid
 ORDER BY c.oid::regclass::text;
