"""/v1/drift: what differs, looks, repairs, and what acts left behind."""
