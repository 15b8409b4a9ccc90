"""Which requests are accepted, and which operation each becomes."""
