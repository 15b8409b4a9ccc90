INSERT INTO persons (known_as, salt, user_id, name, address, agent)
SELECT p.known_as, p.salt, p.user_id, p.name, p.address, p.agent
  FROM json_to_recordset(%(persons)s) AS p (
           append_no int, known_as text, salt bytea, user_id text, name text, address text,
           agent text)
