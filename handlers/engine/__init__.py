"""Plans and the next step: flows as data, the rows of verbs, retries, claims; pure."""
