-- The rows of operations are views of the aggregate, with other columns: they are made anew
-- from the log, which the service does when it starts.

DO $$
BEGIN
    IF EXISTS (SELECT FROM detached_months) THEN
        RAISE EXCEPTION 'Operations are made anew from the whole log, and months are detached.'
            USING HINT = 'Restore them first, with the version before this one '
                         '(attachment-ledger event restore), and detach them again afterwards.';
    END IF;
END
$$;

TRUNCATE operations, mailbox;
UPDATE tracking SET position = 0, rebuilds = rebuilds + 1 WHERE projection = 'operations';

ALTER TABLE operations
    DROP COLUMN plan,
    DROP COLUMN active,
    DROP COLUMN retries,
    ADD COLUMN pivot_passed boolean NOT NULL;
ALTER TABLE mailbox DROP COLUMN done_steps;
