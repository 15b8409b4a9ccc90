"""`drift`: what differs, looks, repairs."""
