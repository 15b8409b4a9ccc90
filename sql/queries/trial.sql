-- What the demo does to its own database, and nobody does to another.

-- name: wait_for_findings
-- What looks have seen so far was seen a time ago: a second look counts only after a while.
UPDATE findings SET seen_at = seen_at - make_interval(secs => %(seconds)s) WHERE state <> 'over';
