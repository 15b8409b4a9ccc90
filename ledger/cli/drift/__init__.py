"""`drift`: findings, looks, repairs."""
