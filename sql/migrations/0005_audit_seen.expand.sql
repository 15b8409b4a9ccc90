-- Auditors ask what is known now of a moment, too: when a span began and ended, where that was seen.

CREATE OR REPLACE VIEW audit.spans AS
    SELECT s.attachment_id, s.volume_id, s.server_id, s.host,
           CASE WHEN a.legacy THEN 'old' ELSE 'new' END AS flow,
           s.from_position, s.to_position, s.from_at, s.to_at, s.from_seen, s.to_seen
      FROM spans AS s JOIN attachments AS a USING (attachment_id);
