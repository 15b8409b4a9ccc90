-- How a server has a volume: 'ro' or 'rw'.  Of what was attached before, nobody kept it: NULL,
-- until a host connects it again.

ALTER TABLE mappings ADD COLUMN access_mode text;
ALTER TABLE attachments ADD COLUMN access_mode text;
