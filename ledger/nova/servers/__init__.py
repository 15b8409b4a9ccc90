"""/v2.1/servers: servers as Nova shows them, creates, edits and acts on them."""
