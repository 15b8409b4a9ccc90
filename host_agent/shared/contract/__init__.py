"""The messages between ledger and agents, and the ports that a verb uses."""
