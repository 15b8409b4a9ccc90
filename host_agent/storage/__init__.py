"""Volumes on this host: os-brick, connection information, records of connections, keys."""
