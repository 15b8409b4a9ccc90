"""/v1: the ledger's own API, for what Nova's lacks: operations, history, drift, hosts."""
