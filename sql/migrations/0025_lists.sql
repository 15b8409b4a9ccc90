-- What lists of servers are filtered and sorted by, and hosts that are to get no servers.

ALTER TABLE instances
    ADD COLUMN vcpus int NOT NULL DEFAULT 0,
    ADD COLUMN memory_mb int NOT NULL DEFAULT 0;
CREATE INDEX instances_by_age ON instances (created_at, server_id);

-- Definitions are libvirt's XML, whose numbers are plain; units as in host_agent.shared.definition.
UPDATE instances AS i
   SET vcpus = least(coalesce(d.vcpus, '0')::numeric, 2147483647)::int,
       memory_mb = least(trunc(coalesce(d.memory[2], '0')::numeric
           * CASE lower(substring(d.memory[1] FROM 'unit=["'']([A-Za-z])'))
                 WHEN 'b' THEN 1 WHEN 'm' THEN 1048576 WHEN 'g' THEN 1073741824 ELSE 1024 END
           / 1048576), 2147483647)::int
  FROM (SELECT server_id,
               substring(definition FROM '<vcpu(?:\s[^>]*)?>\s*(\d+)\s*</vcpu>') AS vcpus,
               regexp_match(definition, '<memory(\s[^>]*)?>\s*(\d+)\s*</memory>') AS memory
          FROM instances) AS d
 WHERE d.server_id = i.server_id AND i.definition IS NOT NULL;

ALTER TABLE hosts
    ADD COLUMN disabled boolean NOT NULL DEFAULT false,
    ADD COLUMN disabled_reason text;
