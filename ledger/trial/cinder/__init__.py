"""Simulated surroundings: what `sim`, the demo and the tests run instead of a cloud."""
