"""The API for host agents: register, fetch commands, report.  It checks what agents send."""
