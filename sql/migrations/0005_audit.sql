-- Time travel on hosts of any age, and months whose events are kept in files.

DROP INDEX spans_by_host;
CREATE INDEX spans_by_host ON spans (
    host,
    coalesce(width_bucket(extract(epoch FROM to_at - from_at),
        '{3600,14400,57600,230400,921600,3686400,14745600,58982400}'), 9),
    from_at
);

CREATE TABLE detached_months (
    month date PRIMARY KEY,
    first_position bigint NOT NULL,
    last_position bigint NOT NULL,
    file text NOT NULL,
    sha256 text NOT NULL,
    detached_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
