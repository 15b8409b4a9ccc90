"""Health checks: alive, ready, metrics, and whether the neighbours answer."""
