"""The line to the ledger: registration, commands, reports."""
