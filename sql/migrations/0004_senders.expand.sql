-- From where refused requests came, and how many more there were (ledger.native.log.refusals).

ALTER TABLE refusals ADD COLUMN address text,      -- the other end's; NULL: noted by 0.2.0
                     ADD COLUMN agent text,        -- User-Agent
                     ADD COLUMN left_out integer;  -- so many like this one are not here
