-- The whole schema, top to bottom.  PostgreSQL >= 15, no extensions, no triggers.
-- (`schema_migrations`, which says what a database has, is made before: queries/migrations.sql.)

-- ---------------------------------------------------------------------------------------
-- The log.  New rows come by append_events() alone, and no row is ever updated.  `event archive
-- --detach` deletes rows that are in a file, `event restore` puts them back as they were.

CREATE TABLE events (
    position bigint PRIMARY KEY,         -- gap-free, in commit order
    originator_id uuid NOT NULL,         -- the aggregate
    originator_version bigint NOT NULL,  -- place in the aggregate's own sequence
    topic text NOT NULL,                 -- 'Attachment.Completed'
    body bytea NOT NULL,                 -- JSON; see the view event_log
    recorded_at timestamptz NOT NULL,    -- this database's clock, never less than before
    -- whom it concerns
    attachment_id uuid,
    volume_id uuid,
    server_id uuid,
    host text,
    -- why it is there
    operation_id uuid,
    request_id text,
    cause text,
    -- who asked
    actor text,
    user_id text,
    project_id text,
    roles text[],
    append_id uuid NOT NULL,             -- events with the same one were stored together
    chain bytea,                         -- the hash chain's value, on the last event of a call
    UNIQUE (originator_id, originator_version)
);

CREATE INDEX events_by_attachment ON events (attachment_id, position)
    WHERE attachment_id IS NOT NULL;
CREATE INDEX events_by_volume ON events (volume_id, position) WHERE volume_id IS NOT NULL;
CREATE INDEX events_by_server ON events (server_id, position) WHERE server_id IS NOT NULL;
CREATE INDEX events_by_host ON events (host, position) WHERE host IS NOT NULL;
CREATE INDEX events_by_operation ON events (operation_id, position)
    WHERE operation_id IS NOT NULL;
-- What people's requests and the ledger's own repairs led to: not what agents report and dispatchers
-- do under the same id.
CREATE INDEX events_by_request ON events (request_id COLLATE "C", position)
    WHERE cause IN ('api', 'operator', 'automatic');
CREATE INDEX events_by_time ON events USING brin (recorded_at);

-- One row: where the log ends.  Its lock is the lock of the log.
CREATE TABLE log_head (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    position bigint NOT NULL,
    recorded_at timestamptz NOT NULL,
    chain bytea NOT NULL DEFAULT decode(repeat('00', 32), 'hex')
) WITH (fillfactor = 10);
INSERT INTO log_head (position, recorded_at) VALUES (0, 'epoch');

-- Months of which only what can still be needed is in `events`; the whole is in a file.
CREATE TABLE detached_months (
    month date PRIMARY KEY,              -- its first day, in UTC
    first_position bigint NOT NULL,
    last_position bigint NOT NULL,
    file text NOT NULL,                  -- its name, without the directory
    sha256 text NOT NULL,                -- of the file
    detached_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The log for people and for BI.  Its columns are a promise: they are added to, never
-- renamed or removed.  (json and not jsonb: jsonb refuses some text that JSON allows,
-- and one such event must not make the whole log unreadable.)
CREATE VIEW event_log AS
    SELECT position, recorded_at, topic, originator_id, originator_version,
           attachment_id, volume_id, server_id, host,
           operation_id, request_id, cause, actor, user_id, project_id, roles, append_id,
           convert_from(body, 'UTF8')::json AS body
      FROM events;

\ir ../functions/event_bytes.sql
\ir ../functions/append_events.sql

-- ---------------------------------------------------------------------------------------
-- Rows outside the log: they carry no facts, and may be lost without harm.

-- Who works on an operation just now.  Only avoids double work: right is what the log says.
CREATE TABLE leases (
    operation_id uuid PRIMARY KEY,
    holder text NOT NULL,
    until timestamptz NOT NULL
);

-- When a host's agent was last heard of.
CREATE TABLE host_contact (
    host text PRIMARY KEY,
    seen_at timestamptz NOT NULL,
    clock_ahead_s float8,                -- the host's clock, as its agent has measured it
    agent text                           -- which one speaks for the host (NULL: it does not say)
);

-- How far a long step has come.
CREATE TABLE progress (
    operation_id uuid NOT NULL,
    run int NOT NULL,
    done_bytes bigint NOT NULL,
    total_bytes bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (operation_id, run)
);

-- What was refused a short while ago, and changed nothing (ledger.native.log.refusals).
CREATE TABLE refusals (
    request_id text PRIMARY KEY,
    global_request_id text,
    refused_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    method text NOT NULL,
    route text NOT NULL,                 -- its name in the API
    status int NOT NULL,
    code text NOT NULL,
    message text NOT NULL,               -- as the caller was told
    actor text NOT NULL,
    user_id text,
    project_id text
);
CREATE INDEX refusals_by_request ON refusals (request_id COLLATE "C");
CREATE INDEX refusals_by_global_request ON refusals (global_request_id COLLATE "C")
    WHERE global_request_id IS NOT NULL;

-- What hosts showed of themselves when they were asked last (host_agent.shared.contract.survey).  It may be
-- lost: then it is asked for again, and what was believed of it is in the log, as findings.
CREATE TABLE surveys (
    host text PRIMARY KEY,
    wanted uuid,                         -- the question that is not answered yet, if there is one
    wanted_at timestamptz,
    wanted_position bigint,              -- where the log ended when it was asked
    token uuid,                          -- the question that was answered last, with this:
    boot_id text,
    epoch int,
    digest text,                         -- what its agent calls this document
    document jsonb,                      -- host_agent.shared.contract.survey.Survey
    taken_at timestamptz,                -- when it arrived, and where the log ended when
    asked_position bigint,               -- it was asked for and
    arrived_position bigint              -- when it arrived: the host was so in between
);

-- Looks at drift that were asked for and have not begun (ledger.reconcile.asking).
CREATE TABLE looks_asked (
    look_id uuid PRIMARY KEY,
    scope jsonb NOT NULL,                -- {"host": ..}, {"server": ..}, {"volume": ..}, {}
    why text NOT NULL,
    context jsonb NOT NULL,              -- who asked: aggregates.base.EventContext
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    believe jsonb NOT NULL DEFAULT '[]', -- classes of drift, however many are found, in order
    reason text,                         -- why these are believed
    CONSTRAINT looks_asked_once UNIQUE (scope, believe)
);

-- What a look that is under way has seen.  What is believed of it is in the log, as findings.
CREATE TABLE look_cases (
    look_id uuid NOT NULL,
    finding_id uuid NOT NULL,
    drift_class text NOT NULL,
    seen jsonb NOT NULL,                 -- as ledger.reconcile.cases writes it
    PRIMARY KEY (look_id, finding_id)
);

-- Work of minutes or hours that is under way, or was stopped.
CREATE TABLE long_work (
    name text PRIMARY KEY,               -- 'rebuild'
    done bigint NOT NULL DEFAULT 0,      -- events
    total bigint NOT NULL DEFAULT 0,
    kept jsonb,                          -- what the work itself needs to go on there
    began_at timestamptz,                -- this run of it, and what was done before
    began_done bigint,
    noted_at timestamptz,
    holder_pid int,                      -- the connection of who does it; while that is
    holder_since timestamptz             -- open, nobody else may
);

-- ---------------------------------------------------------------------------------------
-- Projections: each can be rebuilt from the log at any time.

-- How far each projection has come; the row's lock is the right to advance it.
CREATE TABLE tracking (
    projection text PRIMARY KEY,
    position bigint NOT NULL,            -- only grows, and no row of the table is beyond it
    rebuilds int NOT NULL DEFAULT 0,     -- how often it was made anew
    held text                            -- the event it cannot take, and why; NULL: none
);

-- Where projections are made anew: tables of the same names, which then take the place of
-- those below.
CREATE SCHEMA rebuild;
CREATE TABLE rebuild.tracking (
    projection text PRIMARY KEY,
    position bigint NOT NULL,
    rebuilds int NOT NULL DEFAULT 0,     -- always 0 here
    held text                            -- always NULL
);

CREATE TABLE instances (
    server_id uuid PRIMARY KEY,
    name text NOT NULL,
    host text,
    project_id text,
    user_id text,
    power_state text NOT NULL,           -- as the hypervisor tells it
    vm_state text NOT NULL,              -- Nova's; 'error' while there are faults
    base_vm_state text NOT NULL,         -- what it is without them
    faults jsonb NOT NULL,               -- {operation id: message}
    devices jsonb NOT NULL,              -- disk targets last seen in the guest
    definition text,                     -- the guest without its volumes: domain XML
    claims jsonb NOT NULL DEFAULT '{}',  -- {operation id: {exclusive, flow}}
    resize_source text,                  -- the host that a resize can be reverted to
    deleted boolean NOT NULL DEFAULT false,
    shown_by text,                       -- the host that showed it first; NULL: it was asked for
    volumes jsonb NOT NULL DEFAULT '[]', -- serials of its disks, as its host showed them last
    vcpus int NOT NULL DEFAULT 0,        -- as the definition says; 0: it does not, or there is none
    memory_mb int NOT NULL DEFAULT 0,
    metadata jsonb NOT NULL DEFAULT '{}',  -- these three: as whoever asked for it wants it kept
    tags jsonb NOT NULL DEFAULT '[]',
    description text,
    access_ip_v4 text NOT NULL DEFAULT '',  -- these two: whatever somebody said
    access_ip_v6 text NOT NULL DEFAULT '',
    disk_config text NOT NULL DEFAULT 'MANUAL',
    hostname text,
    locked_by text,                      -- 'owner' or 'admin'; NULL: it is not
    locked_reason text,
    elsewhere jsonb NOT NULL DEFAULT '{}', -- {host: power state}: its guest is shown there, too
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,     -- in every projection: recorded_at and position
    position bigint NOT NULL             -- of the last event that is in the row
);
CREATE INDEX instances_by_age ON instances (created_at, server_id);
CREATE INDEX instances_by_project ON instances (project_id, name);
CREATE INDEX instances_by_host ON instances (host);
CREATE INDEX instances_elsewhere ON instances (server_id) WHERE elsewhere <> '{}';

-- Block device mappings that are alive; one without volume is a root that was detached (S2).
CREATE TABLE mappings (
    bdm_id uuid PRIMARY KEY,
    server_id uuid NOT NULL,
    volume_id uuid,
    attachment_id uuid,
    device_name text,
    bus text,
    tag text,
    boot_index int,
    delete_on_termination boolean NOT NULL,
    multiattach boolean NOT NULL,
    state text NOT NULL,                 -- aggregates.mapping.MappingState
    kept uuid,                           -- the former attachment, until a resize is settled
    serial uuid,                         -- the id by which the guest knows the disk
    legacy boolean NOT NULL DEFAULT false,  -- attached by Cinder's old calls
    access_mode text,                    -- 'ro', 'rw'; NULL: its host has not said
    created_at timestamptz NOT NULL,
    created_position bigint NOT NULL,    -- the order in which mappings are listed
    updated_at timestamptz NOT NULL,
    position bigint NOT NULL
);
CREATE INDEX mappings_by_server ON mappings (server_id, created_position);
CREATE INDEX mappings_by_volume ON mappings (volume_id);
CREATE INDEX mappings_by_old_flow ON mappings (server_id) WHERE legacy;

-- All attachments, deleted ones too: which volume, which host, by which flow.
CREATE TABLE attachments (
    attachment_id uuid PRIMARY KEY,
    volume_id uuid NOT NULL,
    server_id uuid NOT NULL,
    host text,
    state text NOT NULL,                 -- aggregates.attachment.AttachmentState
    driver text,
    target_digest text,
    device_path text,
    adopted boolean NOT NULL,
    operation_id uuid,                   -- the last that touched it
    spans jsonb NOT NULL,                -- what the table spans is derived from
    legacy boolean NOT NULL DEFAULT false,  -- by Cinder's old calls; the id is our own
    access_mode text,                    -- 'ro', 'rw'; NULL: its host has not said
    created_at timestamptz NOT NULL,
    created_position bigint NOT NULL,
    ended_at timestamptz,
    updated_at timestamptz NOT NULL,
    position bigint NOT NULL
);
CREATE INDEX attachments_by_volume ON attachments (volume_id, created_position);
CREATE INDEX attachments_by_server ON attachments (server_id, created_position);
CREATE INDEX attachments_by_host ON attachments (host, created_position);
CREATE INDEX attachments_by_old_flow ON attachments (created_position) WHERE legacy;
CREATE INDEX attachments_open_by_host ON attachments (host) WHERE state <> 'deleted';
CREATE INDEX attachments_open ON attachments (attachment_id) WHERE state <> 'deleted';

-- When which host may have held which volume, from the connector until the proof (or the
-- waiver of it) that it let go; to_* are NULL while it lasts.
CREATE TABLE spans (
    attachment_id uuid NOT NULL,
    host text NOT NULL,
    from_position bigint NOT NULL,
    to_position bigint,
    from_at timestamptz NOT NULL,
    to_at timestamptz,
    volume_id uuid NOT NULL,
    server_id uuid NOT NULL,
    PRIMARY KEY (attachment_id, host, from_position)
);
CREATE INDEX spans_by_volume ON spans (volume_id, from_at);
-- By length in hours: below 1, 4, 16, 64, ... 16384, longer (8), not ended (9).  Whoever looks
-- for what was open at a moment need not pass by all that had ended long before.
CREATE INDEX spans_by_host ON spans (
    host,
    coalesce(width_bucket(extract(epoch FROM to_at - from_at),
        '{3600,14400,57600,230400,921600,3686400,14745600,58982400}'), 9),
    from_at
);

CREATE TABLE operations (
    operation_id uuid PRIMARY KEY,
    flow text NOT NULL,
    server_id uuid NOT NULL,
    volume_ids uuid[] NOT NULL,
    host text,                           -- where the server is when it begins
    state text NOT NULL,                 -- aggregates.operation.OperationState
    outcome text,                        -- aggregates.operation.Outcome, once finished
    error jsonb,                         -- the first one
    left_steps jsonb,                    -- while parked: what is not done
    lanes jsonb NOT NULL,                -- [host_agent.shared.contract.lane.Lane], with what was learnt
    steps jsonb NOT NULL,                -- [ledger.native.schemas.StepShown]
    unwinding boolean NOT NULL,          -- it goes, or went, backward
    bound boolean NOT NULL,              -- every mapping it makes exists (or it is finished)
    actor text,
    user_id text,
    project_id text,
    request_id text NOT NULL,
    destination text,                    -- where it takes the server
    pivot_passed boolean NOT NULL,       -- there is only forward
    global_request_id text,              -- of the service that passed the request on
    started_at timestamptz NOT NULL,
    started_position bigint NOT NULL,
    finished_at timestamptz,
    due_at timestamptz,                  -- when a dispatcher must look; NULL: a host's turn
    updated_at timestamptz NOT NULL,
    position bigint NOT NULL
);
CREATE INDEX operations_due ON operations (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX operations_open ON operations (state, started_position) WHERE state <> 'finished';
CREATE INDEX operations_by_start ON operations (started_position);
CREATE INDEX operations_by_server ON operations (server_id, started_position);
CREATE INDEX operations_by_volume ON operations USING gin (volume_ids);
CREATE INDEX operations_by_position ON operations (position);
CREATE INDEX operations_by_host ON operations (host, started_position);
CREATE INDEX operations_by_destination ON operations (destination, started_position)
    WHERE destination IS NOT NULL;
CREATE INDEX operations_by_global_request ON operations (global_request_id COLLATE "C")
    WHERE global_request_id IS NOT NULL;

-- Commands that wait for a host's agent, derived from operations.
CREATE TABLE mailbox (
    operation_id uuid NOT NULL,
    run int NOT NULL,
    host text NOT NULL,
    position bigint NOT NULL,            -- of the intent, or of its cancellation: the cursor
    command jsonb NOT NULL,              -- host_agent.shared.contract.messages.Command
    PRIMARY KEY (operation_id, run)
);
CREATE INDEX mailbox_by_host ON mailbox (host, position);
CREATE INDEX mailbox_by_position ON mailbox (position);

-- When operations waited for a person, derived from them.
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

CREATE TABLE hosts (
    host text PRIMARY KEY,
    service_version int NOT NULL,
    capabilities jsonb NOT NULL,
    epoch int NOT NULL,
    fenced boolean NOT NULL,
    fence_reason text,
    fence_evidence text,
    suspect boolean NOT NULL DEFAULT false,  -- fenced, and not shown since that it is clean
    leftovers jsonb,                     -- what it has that is not its any more
    connector jsonb,                     -- what storage knows it by: initiator, nqn, ip, host
    connector_position bigint,           -- of the event that says so
    disabled boolean NOT NULL DEFAULT false,  -- an operator wants no servers to come
    disabled_reason text,
    registered_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    position bigint NOT NULL
);
CREATE INDEX hosts_by_initiator ON hosts ((connector->>'initiator'));
CREATE INDEX hosts_by_nqn ON hosts ((connector->>'nqn'));
CREATE INDEX hosts_by_position ON hosts (position);
CREATE INDEX hosts_by_version ON hosts (service_version);

-- What operators' acts may have left behind in Cinder and on hosts.
CREATE TABLE remnants (
    remnant_id uuid PRIMARY KEY,
    kind text NOT NULL,
    state text NOT NULL,                 -- open, acknowledged
    act text NOT NULL,                   -- skip, give_up
    reason text NOT NULL,
    from_operation uuid NOT NULL,
    step text NOT NULL,
    server_id uuid NOT NULL,
    volume_id uuid,
    attachment_id uuid,
    host text,                           -- NULL: it is in Cinder
    left_at timestamptz NOT NULL,
    left_position bigint NOT NULL,
    acknowledged_at timestamptz,
    acknowledged_reason text,
    updated_at timestamptz NOT NULL,
    position bigint NOT NULL
);
CREATE UNIQUE INDEX remnants_by_age ON remnants (left_position DESC, remnant_id);
CREATE INDEX remnants_by_position ON remnants (position);

-- What was found to differ; of what has come several times, the last time.
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

-- When ledger, Cinder and hosts were held against each other.
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
    believe jsonb NOT NULL DEFAULT '[]', -- classes of drift, however many were found
    reason text,                         -- why these are believed
    examples jsonb,                      -- of what some of those are that were braked, by class
    began_at timestamptz NOT NULL,
    began_position bigint NOT NULL,
    ended_at timestamptz,
    updated_at timestamptz NOT NULL,
    position bigint NOT NULL
);
CREATE INDEX looks_by_age ON looks (began_position);
CREATE INDEX looks_by_kind ON looks (kind, ended_at) WHERE outcome = 'completed';
CREATE INDEX looks_by_outcome ON looks (outcome);

-- All that differs: what looks have found, and what the log itself says to be somebody's turn.
CREATE VIEW drift AS
    SELECT finding_id, drift_class, severity, state, subject, key,
           server_id, volume_id, attachment_id, host, differs,
           found_at, found_position, first_position, times, seen_at, seen_position, confirmed_at,
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
           left_at, left_position, left_position, 1, left_at, left_position, left_at,
           acknowledged_at, CASE state WHEN 'acknowledged' THEN position END,
           CASE state WHEN 'acknowledged' THEN 'settled' END, NULL, NULL,
           NULL, NULL, NULL, NULL, NULL, updated_at, position
      FROM remnants
    UNION ALL
    SELECT operation_id, 'operation_parked', 'warning',
           CASE WHEN to_position IS NULL THEN 'confirmed' ELSE 'over' END,
           'operation', operation_id::text, server_id, volume_id, NULL, host,
           jsonb_build_object('ledger', jsonb_build_object('flow', flow, 'left', left_steps)),
           from_at, from_position, from_position, times, from_at, from_position, from_at,
           to_at, to_position, CASE WHEN to_position IS NOT NULL THEN 'settled' END, NULL, NULL,
           NULL, NULL, NULL, NULL, NULL, coalesce(to_at, from_at),
           coalesce(to_position, from_position)
      FROM parked;

-- ---------------------------------------------------------------------------------------
-- What auditors read, besides event_log: docs/audit.md says what each column means.  They are a
-- promise as event_log is, and keep what `event archive --detach` takes out of the log.

CREATE SCHEMA audit;

CREATE VIEW audit.attachments AS
    SELECT attachment_id, volume_id, server_id, host, state,
           CASE WHEN legacy THEN 'old' ELSE 'new' END AS flow,
           access_mode, operation_id, created_at, ended_at
      FROM attachments;

CREATE VIEW audit.spans AS
    SELECT s.attachment_id, s.volume_id, s.server_id, s.host,
           CASE WHEN a.legacy THEN 'old' ELSE 'new' END AS flow,
           s.from_position, s.to_position, s.from_at, s.to_at
      FROM spans AS s JOIN attachments AS a USING (attachment_id);

CREATE VIEW audit.operations AS
    SELECT operation_id, flow, server_id, volume_ids, host, destination, state, outcome,
           error->>'code' AS error_code, error->>'message' AS error_message,
           actor, user_id, project_id, request_id, started_at, finished_at
      FROM operations;

CREATE VIEW audit.steps AS
    SELECT o.operation_id, s.lane, s.volume_id, s.step, s.verb, s.place, s.undo, s.status,
           s.attempts, s.error->>'code' AS error_code, s.error->>'message' AS error_message
      FROM operations AS o
     CROSS JOIN LATERAL jsonb_to_recordset(o.steps) AS s (
           lane int, volume_id uuid, step text, verb text, place text, undo boolean,
           status text, attempts int, error jsonb);

CREATE VIEW audit.archived_months AS
    SELECT month, first_position, last_position, file, sha256, detached_at
      FROM detached_months;

CREATE VIEW audit.findings AS
    SELECT finding_id, drift_class, severity, state, subject, key,
           server_id, volume_id, attachment_id, host, differs,
           found_at, times, confirmed_at, over_at, over_how, ignored_until, ignored_reason,
           repaired_by
      FROM drift;
