"""The messages between ledger and agents, and the ports that a verb uses."""

#: The form of a host's name, entire: in a path nothing of it may mean anything else.
HOST_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,254}"
