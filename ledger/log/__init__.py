"""The event log in PostgreSQL: append, read, cache, and the unit of work over it."""
