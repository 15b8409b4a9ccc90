"""The effects of the ledger's own steps, by subject (others: ledger.core.effects)."""
