"""The trial: an embedded PostgreSQL, and the demo with its small cloud."""
