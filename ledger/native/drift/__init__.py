"""/v1/drift: findings, looks, repairs, and remnants."""
