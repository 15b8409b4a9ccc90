"""/v2.1/servers: show, list, create and change servers in Nova's form."""
