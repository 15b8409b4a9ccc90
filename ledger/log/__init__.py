"""The event log in PostgreSQL: append, read, remember, and the unit of work over it."""
