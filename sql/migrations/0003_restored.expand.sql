-- A ledger that was restored from an older backup (aggregates.host.Host.Restored).

ALTER TABLE hosts ADD COLUMN unvouched boolean;  -- since then, nobody has vouched for it
CREATE INDEX hosts_in_doubt ON hosts (host) WHERE unvouched AND NOT fenced;
