"""The trial: an embedded PostgreSQL, and the demonstration with its small cloud."""
