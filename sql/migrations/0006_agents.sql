-- Agents' polls are woken by what happens to their host, too.

CREATE INDEX hosts_by_position ON hosts (position);
