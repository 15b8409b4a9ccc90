"""What may be asked for, and which operation it becomes."""
