"""Results: from the outcome of a step to domain events."""
