-- No event is ever updated, so autovacuum may freeze it the first time that it comes by, at no cost.
-- Else it writes each page again, and all of them at once, every 200 million transactions.

ALTER TABLE events SET (autovacuum_freeze_min_age = 0);
