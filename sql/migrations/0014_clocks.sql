-- How far hosts' clocks are ahead of the database's, as their agents have measured it.

ALTER TABLE host_contact ADD COLUMN clock_ahead_s float8;
