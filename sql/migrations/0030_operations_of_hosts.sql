-- A host's operations, those that take a server to it, too: few among very many.
CREATE INDEX operations_by_host ON operations (host, started_position);
CREATE INDEX operations_by_destination ON operations (destination, started_position)
    WHERE destination IS NOT NULL;
