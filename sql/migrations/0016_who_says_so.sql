-- Who says what a host is: the agent that speaks for it, what storage knows it by, and which
-- servers nobody but a host has ever spoken of.

ALTER TABLE host_contact ADD COLUMN agent text;

ALTER TABLE hosts
    ADD COLUMN connector jsonb,
    ADD COLUMN connector_position bigint;
CREATE INDEX hosts_by_initiator ON hosts ((connector->>'initiator'));
CREATE INDEX hosts_by_nqn ON hosts ((connector->>'nqn'));

ALTER TABLE instances ADD COLUMN shown_by text;
UPDATE instances AS i SET shown_by = e.host
  FROM events AS e
 WHERE e.originator_id = i.server_id AND e.originator_version = 1
   AND e.topic = 'Instance.InstanceRegistered';
