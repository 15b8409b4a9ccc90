"""Long work on the log and its projections: verify, archive, detach, rebuild."""
