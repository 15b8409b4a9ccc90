"""What the service does: accept requests, run the ledger's own steps, wake waiting requests."""
