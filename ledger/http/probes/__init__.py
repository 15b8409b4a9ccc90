"""What a deployment asks: alive, ready, in numbers; and whether the neighbours are there."""
