"""Authentication and authorisation: who makes a request, and what they may do."""
