"""What bounds a request: threads, requests of a token, questions that are asked together."""
