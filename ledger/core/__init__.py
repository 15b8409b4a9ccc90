"""What the service does: requests, the ledger's own steps, whom it wakes."""
