"""/v1/events and what is found by it: histories, the feed, ids, refused requests."""
