-- Templates of statements that an operator executes in Nova's database (ledger/nova_beside/script);
-- the ledger never does.  Valid in MySQL, PostgreSQL and SQLite; those that read, in MariaDB and MySQL,
-- their SELECTs also in SQLite (with its own UTC_TIMESTAMP).

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

-- name: read
-- The revision of the schema and the moment, then the soft-deleted mappings of volumes, and those
-- that were archived, and an end; one JSON object in each row, without connections, which have
-- secrets.  Texts are UTF-8, whatever the client's locale is.
SET NAMES utf8mb4;
START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY;
SELECT JSON_OBJECT('revision', version_num, 'read_at', UTC_TIMESTAMP()) FROM alembic_version;
{live}
{archived}
SELECT JSON_OBJECT('end', 'of the rows');
COMMIT;

-- name: deleted
-- The soft-deleted mappings in one table.  It reads the whole table.
SELECT JSON_OBJECT(
       'mapping_id', uuid, 'server_id', instance_uuid, 'volume_id', volume_id,
       'attachment_id', attachment_id, 'device_name', device_name, 'tag', tag,
       'boot_index', boot_index, 'bus', disk_bus,
       'delete_on_termination', COALESCE(delete_on_termination, 0),  -- Nova reads NULL as false
       'created_at', created_at, 'deleted_at', deleted_at)
  FROM {table}
 WHERE deleted <> 0 AND volume_id IS NOT NULL
 ORDER BY id;
