-- Names and ids of people are beside the log, so that they can be erased (projections.reads.persons).

-- `known_as` stands in the log in their place.  A row is of a person by one name, or of where one of
-- their requests came from; what it does not say is ''.  Deleted by `event erase-person` alone.
CREATE TABLE persons (
    known_as text PRIMARY KEY,
    salt bytea NOT NULL,
    user_id text NOT NULL,
    name text NOT NULL,
    address text NOT NULL,
    agent text NOT NULL,
    first_seen timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (user_id, name, address, agent)
);

-- What a row is known as: with its salt nobody can make another row of that name, and without it
-- nobody can try whether it was somebody.  64 characters, as an id of Keystone's at most: hosts report
-- it as their guests' user.
CREATE FUNCTION known_as(salt bytea, user_id text, name text, address text, agent text) RETURNS text
LANGUAGE sql STABLE
RETURN left('p:' || encode(sha256(salt || sha256(convert_to(user_id, 'UTF8'))
                                       || sha256(convert_to(name, 'UTF8'))
                                       || sha256(convert_to(address, 'UTF8'))
                                       || sha256(convert_to(agent, 'UTF8'))), 'hex'), 64);

CREATE OR REPLACE VIEW event_log AS
    SELECT e.position, e.recorded_at, e.topic, e.originator_id, e.originator_version,
           e.attachment_id, e.volume_id, e.server_id, e.host,
           e.operation_id, e.request_id, e.cause, coalesce(p.name, e.actor) AS actor,
           coalesce(p.user_id, e.user_id) AS user_id, e.project_id, e.roles, e.append_id,
           convert_from(e.body, 'UTF8')::json AS body
      FROM events AS e LEFT JOIN persons AS p ON p.known_as = e.actor;

CREATE OR REPLACE VIEW audit.operations AS
    SELECT o.operation_id, o.flow, o.server_id, o.volume_ids, o.host, o.destination, o.state,
           o.outcome, o.error->>'code' AS error_code, o.error->>'message' AS error_message,
           coalesce(p.name, o.actor) AS actor, coalesce(p.user_id, o.user_id) AS user_id,
           o.project_id, o.request_id, o.started_at, o.finished_at
      FROM operations AS o LEFT JOIN persons AS p ON p.known_as = o.actor;
