"""The simulated Cinder of `sim`, the demo and the tests."""
