-- What is somebody else's, and was seen and not done (aggregates.base.Seen).

ALTER TABLE instances ADD COLUMN origin text;    -- whose it is; NULL: ours
ALTER TABLE mappings ADD COLUMN origin text;
ALTER TABLE attachments ADD COLUMN origin text;
ALTER TABLE spans ADD COLUMN from_seen jsonb,    -- when it began, if that was seen: {after, before}
                  ADD COLUMN to_seen jsonb;
CREATE INDEX instances_observed ON instances (server_id) WHERE origin IS NOT NULL;
