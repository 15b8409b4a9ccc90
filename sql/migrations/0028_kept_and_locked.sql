-- What else is kept of a server and shown, and who has locked it.

ALTER TABLE instances
    ADD COLUMN access_ip_v4 text NOT NULL DEFAULT '',
    ADD COLUMN access_ip_v6 text NOT NULL DEFAULT '',
    ADD COLUMN disk_config text NOT NULL DEFAULT 'MANUAL',
    ADD COLUMN hostname text,
    ADD COLUMN locked_by text,
    ADD COLUMN locked_reason text;
