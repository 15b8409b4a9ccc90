"""The connection to the ledger ("line"): registration, commands, reports."""
