"""What the service and the flows may import of the agent; nothing else of it."""
