-- Which volumes the disks of a guest are, by their serials, as its host showed them last.

ALTER TABLE instances ADD COLUMN volumes jsonb NOT NULL DEFAULT '[]';
