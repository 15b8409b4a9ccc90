"""Forwarding the events of the log to other systems, in their formats (decision 0115)."""
