-- A person's row comes with the first event of theirs that is stored, so two processes that meet them
-- in the same moment may each bring one: known by two hashes, as one who was renamed.
ALTER TABLE persons DROP CONSTRAINT persons_user_id_name_address_agent_key;
CREATE INDEX persons_by_user ON persons (user_id, name, address, agent);
