-- What was found to differ, and when it was looked for: before this there are no events of that.
-- And when operations were parked: as far as the log has it, which is all of those that go on.

CREATE TABLE findings (
    finding_id uuid PRIMARY KEY,
    drift_class text NOT NULL,           -- handlers.drift.classes
    severity text NOT NULL,
    state text NOT NULL,                 -- aggregates.finding.FindingState
    subject text NOT NULL,               -- what differs, and its key (handlers.drift.rows.Key)
    key text NOT NULL,
    server_id uuid,
    volume_id uuid,
    attachment_id uuid,
    host text,
    differs jsonb NOT NULL,              -- what each party says
    first_position bigint NOT NULL,      -- when it was found for the first time
    found_at timestamptz NOT NULL,       -- when it came last
    found_position bigint NOT NULL,
    times int NOT NULL,                  -- how often it came
    seen_at timestamptz NOT NULL,        -- since when it differs as it does
    seen_position bigint NOT NULL,
    confirmed_at timestamptz,
    over_at timestamptz,
    over_position bigint,
    over_how text,                       -- gone, repaired
    boot_id text,                        -- of the host that was seen
    epoch int,
    ignored_until timestamptz,           -- NULL: for good, if it is ignored
    ignored_reason text,
    repairing uuid,                      -- the operation that is to mend it
    repaired_by uuid,
    look_id uuid NOT NULL,               -- the last that had something to say of it
    updated_at timestamptz NOT NULL,
    position bigint NOT NULL
);
CREATE INDEX findings_by_age ON findings (found_position);
CREATE INDEX findings_open ON findings (found_position) WHERE over_position IS NULL;
CREATE INDEX findings_by_end ON findings (over_position);
CREATE INDEX findings_by_host ON findings (host, found_position);
CREATE INDEX findings_by_server ON findings (server_id, found_position);
CREATE INDEX findings_by_volume ON findings (volume_id, found_position);

CREATE TABLE looks (
    look_id uuid PRIMARY KEY,
    kind text NOT NULL,                  -- all, host, server, volume
    scope jsonb NOT NULL,                -- {kind: which}; {}: all
    why text NOT NULL,
    state text NOT NULL,                 -- aggregates.look.LookState
    outcome text,                        -- completed, stopped, void
    compared jsonb,                      -- rows, by subject
    found jsonb,                         -- findings that it opened, by class
    unknown jsonb,                       -- of which hosts nothing is known, and why
    braked jsonb,                        -- findings that were too many to be believed, by class
    trouble text,
    began_at timestamptz NOT NULL,
    began_position bigint NOT NULL,
    ended_at timestamptz,
    updated_at timestamptz NOT NULL,
    position bigint NOT NULL
);
CREATE INDEX looks_by_age ON looks (began_position);
CREATE INDEX looks_by_kind ON looks (kind, ended_at) WHERE outcome = 'completed';
CREATE INDEX looks_by_outcome ON looks (outcome);

INSERT INTO tracking (projection, position)
SELECT name, position FROM log_head CROSS JOIN unnest('{findings,looks}'::text[]) AS name;

CREATE TABLE parked (
    operation_id uuid NOT NULL,
    from_position bigint NOT NULL,
    to_position bigint,                  -- NULL: it is parked; so are to_at and the rest
    from_at timestamptz NOT NULL,
    to_at timestamptz,
    times int NOT NULL,                  -- which time it was
    flow text NOT NULL,
    server_id uuid NOT NULL,
    volume_id uuid,                      -- of the steps that are left, if it is one
    host text,                           -- where the server was when it began
    left_steps jsonb NOT NULL,
    PRIMARY KEY (operation_id, from_position)
);
CREATE INDEX parked_by_position ON parked (from_position);
CREATE INDEX parked_now ON parked (from_position) WHERE to_position IS NULL;

INSERT INTO parked
SELECT o.operation_id, p.position, n.position, p.recorded_at, n.recorded_at,
       row_number() OVER (PARTITION BY o.operation_id ORDER BY p.position),
       o.flow, o.server_id,
       CASE WHEN v.several THEN NULL ELSE v.volume_id END, o.host, l.left_steps
  FROM events AS p
  JOIN operations AS o ON o.operation_id = p.originator_id AND o.position >= p.position
  LEFT JOIN events AS n ON n.originator_id = p.originator_id AND n.position <= o.position
                       AND n.originator_version = p.originator_version + 1
 CROSS JOIN LATERAL (
       SELECT replace(convert_from(p.body, 'UTF8'), '\u0000', '\ufffd')::jsonb -> 'left'
                  AS left_steps) AS l
 CROSS JOIN LATERAL (
       SELECT min(each->>'volume_id')::uuid AS volume_id,
              count(DISTINCT coalesce(each->>'volume_id', '')) > 1 AS several
         FROM jsonb_array_elements(l.left_steps) AS each) AS v
 WHERE p.topic = 'Operation.Parked';

CREATE VIEW drift AS
    SELECT finding_id, drift_class, severity, state, subject, key,
           server_id, volume_id, attachment_id, host, differs,
           found_at, found_position, times, seen_at, seen_position, confirmed_at,
           over_at, over_position, over_how, boot_id, epoch,
           ignored_until, ignored_reason, repairing, repaired_by, look_id, updated_at, position
      FROM findings
    UNION ALL
    SELECT remnant_id, 'remnant', 'warning',
           CASE state WHEN 'open' THEN 'confirmed' ELSE 'over' END, 'remnant', remnant_id::text,
           server_id, volume_id, attachment_id, host,
           jsonb_build_object('ledger', jsonb_build_object(
               'kind', kind, 'act', act, 'reason', reason, 'step', step,
               'from_operation', from_operation)),
           left_at, left_position, 1, left_at, left_position, left_at,
           acknowledged_at, CASE state WHEN 'acknowledged' THEN position END,
           CASE state WHEN 'acknowledged' THEN 'settled' END, NULL, NULL,
           NULL, NULL, NULL, NULL, NULL, updated_at, position
      FROM remnants
    UNION ALL
    SELECT operation_id, 'operation_parked', 'warning',
           CASE WHEN to_position IS NULL THEN 'confirmed' ELSE 'over' END,
           'operation', operation_id::text, server_id, volume_id, NULL, host,
           jsonb_build_object('ledger', jsonb_build_object('flow', flow, 'left', left_steps)),
           from_at, from_position, times, from_at, from_position, from_at,
           to_at, to_position, CASE WHEN to_position IS NOT NULL THEN 'settled' END, NULL, NULL,
           NULL, NULL, NULL, NULL, NULL, coalesce(to_at, from_at),
           coalesce(to_position, from_position)
      FROM parked;

CREATE VIEW audit.findings AS
    SELECT finding_id, drift_class, severity, state, subject, key,
           server_id, volume_id, attachment_id, host, differs,
           found_at, times, confirmed_at, over_at, over_how, ignored_until, ignored_reason,
           repaired_by
      FROM drift;
