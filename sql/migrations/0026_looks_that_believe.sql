-- Looks that are told to believe a class of drift however many new findings it has; and, of a
-- class that was not believed, which some of these are.

ALTER TABLE looks_asked
    DROP CONSTRAINT looks_asked_scope_key,
    ADD COLUMN believe jsonb NOT NULL DEFAULT '[]',
    ADD COLUMN reason text,
    ADD CONSTRAINT looks_asked_once UNIQUE (scope, believe);

ALTER TABLE looks
    ADD COLUMN believe jsonb NOT NULL DEFAULT '[]',
    ADD COLUMN reason text,
    ADD COLUMN examples jsonb;
