"""/v1/events and searches: histories, the feed, ids, refused requests."""
