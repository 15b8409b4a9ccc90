-- Each attach asks whether an old agent is about; there is next to none to find.

CREATE INDEX hosts_by_version ON hosts (service_version);
