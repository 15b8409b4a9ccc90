"""The state machine of the simulated Cinder: pure and synchronous."""
