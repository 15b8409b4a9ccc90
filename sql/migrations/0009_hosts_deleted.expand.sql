-- A host that was deleted (aggregates.host.Host.Deleted) is not shown; its fence stands.

ALTER TABLE hosts ADD COLUMN deleted boolean;  -- NULL, as a version of before writes it: no
