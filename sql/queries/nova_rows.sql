-- What a person executes in Nova's own database (ledger/nova_beside/script): templates, which the
-- ledger itself never executes.  As MySQL, PostgreSQL and SQLite all read them.

-- name: change
-- One row, if it is still as Nova has told it.
UPDATE {table} SET {new}
 WHERE {old};

-- name: add
-- A row more, if its server is still there, and no such row.
INSERT INTO {table} ({columns})
SELECT {values} FROM instances
 WHERE {old}
   AND NOT EXISTS (SELECT 1 FROM {table} WHERE {unless});
