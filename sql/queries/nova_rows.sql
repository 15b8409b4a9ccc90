-- Templates of statements that an operator executes in Nova's database (ledger/nova_beside/script);
-- the ledger never does.  Valid in MySQL, PostgreSQL and SQLite.

-- name: change
-- Updates one row, if it is still as Nova's API has shown it.
UPDATE {table} SET {new}
 WHERE {old};

-- name: add
-- Inserts a row, if its server still exists and there is no such row.
INSERT INTO {table} ({columns})
SELECT {values} FROM instances
 WHERE {old}
   AND NOT EXISTS (SELECT 1 FROM {table} WHERE {unless});
