"""Steps of the ledger itself that have a subject of their own (the others: ledger.core.effects)."""
