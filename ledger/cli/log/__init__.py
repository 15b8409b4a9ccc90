"""Commands about the log: events, histories, audits, archives."""
