-- A host that was deleted (aggregates.host.Host.Deleted) is not shown; its fence stands.

ALTER TABLE hosts ADD COLUMN deleted boolean NOT NULL DEFAULT false;
