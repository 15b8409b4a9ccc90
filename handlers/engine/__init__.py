"""Plans and what to do next: flows as data, verbs, retries, claims; pure."""
