"""What results mean: from a step's outcome to domain events."""
