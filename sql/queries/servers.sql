-- name: page
-- Servers that match all filters (NULL: any), in an order that ends with their ids, after the
-- server `marker`, which need not match.  By age with instances_by_age, otherwise sorted; of a
-- project with instances_by_project, on a host with instances_by_host.  The columns by_* are Nova's
-- sort keys.  The task state is that of the first claim whose flow is one of `tasks` and that is
-- not parked, a deletion's first (ledger.nova.servers.state).
WITH keyed AS NOT MATERIALIZED (
    SELECT i.*,
           i.created_at AS by_created_at,
           i.updated_at AS by_updated_at,
           i.server_id AS by_uuid,
           i.name AS by_display_name,
           coalesce(i.host, '') AS by_host,
           coalesce(i.project_id, '') AS by_project_id,
           coalesce((SELECT p.user_id FROM persons AS p WHERE p.known_as = i.user_id),
                    i.user_id, '') AS by_user_id,
           i.vm_state AS by_vm_state,
           i.vcpus::bigint * 4294967296 + i.memory_mb AS by_instance_type_id,
           coalesce((%(powers)s::jsonb ->> i.power_state)::int, 0) AS by_power_state,
           coalesce((SELECT %(tasks)s::jsonb ->> (c.value ->> 'flow') FROM jsonb_each(i.claims) AS c
                      WHERE %(tasks)s::jsonb ? (c.value ->> 'flow') AND NOT i.faults ? c.key
                      ORDER BY c.value ->> 'flow' <> 'delete'
                      LIMIT 1), '') AS by_task_state
      FROM instances AS i)
SELECT s.*
  FROM keyed AS s
  LEFT JOIN keyed AS m ON m.server_id = %(marker)s
 WHERE (%(project_id)s::text IS NULL OR s.project_id = %(project_id)s)
   AND (%(user_id)s::text IS NULL OR s.by_user_id = %(user_id)s)
   AND (%(uuid)s::uuid IS NULL OR s.server_id = %(uuid)s)
   AND (%(name)s::text IS NULL OR s.name ~ %(name)s)
   AND (%(host)s::text IS NULL OR s.host = %(host)s)
   AND (%(placed)s::boolean IS NULL OR (s.host IS NOT NULL) = %(placed)s)
   AND (%(vcpus)s::int IS NULL OR (s.vcpus, s.memory_mb) = (%(vcpus)s, %(memory_mb)s))
   AND (%(deleted)s::boolean IS NULL OR s.deleted = %(deleted)s)
   AND (%(created_at)s::timestamptz IS NULL
        OR date_trunc('second', s.created_at) = %(created_at)s)
   AND (%(since)s::timestamptz IS NULL OR s.updated_at >= %(since)s)
   AND (%(before)s::timestamptz IS NULL OR date_trunc('second', s.updated_at) <= %(before)s)
   AND (%(vm_state)s::text IS NULL OR s.vm_state = %(vm_state)s)
   AND (%(power_state)s::int IS NULL OR s.by_power_state = %(power_state)s)
   AND (%(task_state)s::text IS NULL OR s.by_task_state = %(task_state)s)
   AND (%(states)s::text[] IS NULL OR s.vm_state || '/' || s.by_task_state = ANY (%(states)s))
   AND (%(access_ip_v4)s::text IS NULL OR s.access_ip_v4 ~ %(access_ip_v4)s)
   AND (%(access_ip_v6)s::text IS NULL OR s.access_ip_v6 ~ %(access_ip_v6)s)
   AND (%(locked)s::boolean IS NULL OR (s.locked_by IS NOT NULL) = %(locked)s)
   AND (%(tags)s::text[] IS NULL OR s.tags ?& %(tags)s)
   AND (%(tags_any)s::text[] IS NULL OR s.tags ?| %(tags_any)s)
   AND (%(not_tags)s::text[] IS NULL OR NOT s.tags ?& %(not_tags)s)
   AND (%(not_tags_any)s::text[] IS NULL OR NOT s.tags ?| %(not_tags_any)s)
   AND (NOT %(ours)s OR s.origin IS NULL)
   AND (%(marker)s::uuid IS NULL OR ({after}))
 ORDER BY {order}
 LIMIT %(limit)s;

-- name: sizes
-- The different sizes of servers, of a project (instances_by_project) or of all; usually few.
SELECT DISTINCT vcpus, memory_mb FROM instances
 WHERE NOT deleted AND vcpus > 0 AND memory_mb > 0
   AND (%(project_id)s::text IS NULL OR project_id = %(project_id)s)
 ORDER BY vcpus, memory_mb LIMIT %(limit)s;

-- name: used
-- The number and the total size of a project's servers.  instances_by_project.
SELECT count(*) AS servers, coalesce(sum(vcpus), 0)::bigint AS vcpus,
       coalesce(sum(memory_mb), 0)::bigint AS memory_mb
  FROM instances WHERE NOT deleted AND project_id = %(project_id)s;

-- name: on_hosts
-- By host: its `servers` (id and name) and their total size.  instances_by_host.
SELECT host, sum(vcpus)::bigint AS vcpus, sum(memory_mb)::bigint AS memory_mb,
       json_agg(json_build_object('uuid', server_id, 'name', name) ORDER BY name, server_id)
           AS servers
  FROM instances WHERE NOT deleted AND host = ANY (%(hosts)s) GROUP BY host;
