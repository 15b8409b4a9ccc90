-- A host that was adopted is one of the ledger's before its agent comes, whose version nobody knows
-- until then.

ALTER TABLE hosts ALTER COLUMN service_version DROP NOT NULL;
