-- Looks at drift: who asked for one, and what one that is under way has seen so far.  Both are
-- outside the log: what a look finds is events.

CREATE TABLE looks_asked (
    look_id uuid PRIMARY KEY,
    scope jsonb NOT NULL UNIQUE,
    why text NOT NULL,
    context jsonb NOT NULL,
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE look_cases (
    look_id uuid NOT NULL,
    finding_id uuid NOT NULL,
    drift_class text NOT NULL,
    seen jsonb NOT NULL,
    PRIMARY KEY (look_id, finding_id)
);

-- A look walks the open attachments by their ids, and need not pass by all that there were.
CREATE INDEX attachments_open ON attachments (attachment_id) WHERE state <> 'deleted';
