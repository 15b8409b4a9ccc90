-- For the demo's own database only.

-- name: wait_for_findings
-- Makes all findings older, so that a second look can confirm them at once.
UPDATE findings SET seen_at = seen_at - make_interval(secs => %(seconds)s) WHERE state <> 'over';
