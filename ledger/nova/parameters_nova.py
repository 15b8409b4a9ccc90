"""The query parameters of Nova's lists, and what becomes of each here.

What Nova knows is said in its nova/api/openstack/compute/schemas; of servers by `index_query_v275`.
"""

from __future__ import annotations

from ledger.http import microversions as v
from ledger.http.parameters import Parameters, of

_LIMIT = of("so many at most", "limit")
_PAGES = _LIMIT + of("the id of the last item that was seen", "marker")

_SINCE = "changed at this time or later"
_BEFORE = "changed at this time or earlier"

SERVERS: Parameters = (
    *_PAGES,
    *of(
        "`created_at` (the default), `updated_at`, `uuid`, `display_name`, `project_id`, "
        "`user_id`, `vm_state`, `task_state`, `power_state`, `instance_type_id`; of operators also "
        "`host`, `node`",
        "sort_key",
        many=True,
    ),
    *of("`asc` or `desc` (the default), for each key", "sort_dir", many=True),
    *of("a POSIX regular expression of PostgreSQL, without back references", "name"),
    *of("as `status` of a server, one or several", "status", many=True),
    *of("as `OS-EXT-STS:vm_state` of a server", "vm_state"),
    *of("as `OS-EXT-STS:task_state` of a server", "task_state"),
    *of("as `OS-EXT-STS:power_state` of a server, a number", "power_state"),
    *of("the id of a flavor", "flavor"),
    *of("the id of a server", "uuid"),
    *of("who asked for it", "user_id"),
    *of("the second at which it was created", "created_at"),
    *of(f"{_SINCE}; those that are gone, too, if `deleted` says nothing", "changes-since"),
    *of(f"{_BEFORE}; likewise", "changes-before", since=v.CHANGES_BEFORE),
    *of("`true`: those that are gone, for operators; `false`: the others", "deleted"),
    *of("`nova` is all hosts, empty is none", "availability_zone"),
    *of("on this host", "host", "node", operators=True),
    *of("servers of all projects, for operators", "all_tenants"),
    *of(
        "of this project; another one than one's own with `all_tenants`", "project_id", "tenant_id"
    ),
    *of("`true`: those that are locked; `false`: the others", "locked", since=v.LOCKED_FILTER),
    *of("with all of these tags, commas between them", "tags", since=v.SERVER_TAGS),
    *of("with one of these", "tags-any", since=v.SERVER_TAGS),
    *of("not with all of these", "not-tags", since=v.SERVER_TAGS),
    *of("with none of these", "not-tags-any", since=v.SERVER_TAGS),
    *of("a regular expression, as `name`; of what somebody said", "access_ip_v4", "access_ip_v6"),
    *of("addresses are not known here", "ip", "ip6", refused=True),
    *of(
        "images are not known here",
        *("image", "image_ref", "kernel_id", "ramdisk_id"),
        refused=True,
    ),
    *of("names are asked for by 'name'", "display_name", refused=True),
    *of(
        "servers are not looked for by that here",
        *("auto_disk_config", "config_drive", "description", "display_description", "hostname"),
        *("key_name", "launch_index", "locked_by", "progress", "reservation_id"),
        *("root_device_name",),
        refused=True,
    ),
    *of(
        "when a server started or ended is in its history",
        *("launched_at", "terminated_at"),
        refused=True,
    ),
    *of("there is no soft deletion", "soft_deleted", refused=True),
)

FLAVORS: Parameters = (
    *_PAGES,
    *of("`flavorid` (the default), `id`, `name`, `vcpus`, `memory_mb`", "sort_key"),
    *of("`asc` (the default) or `desc`", "sort_dir"),
    *of("all are public: `false` finds none", "is_public"),
    *of("with so many MiB or more", "minRam"),
    *of("all disks are volumes: above 0 finds none", "minDisk"),
    *of("the name", "name", since=v.FLAVOR_NAME),
)

VOLUME_ATTACHMENTS: Parameters = (*_LIMIT, *of("after so many", "offset"))

MIGRATIONS: Parameters = (
    *of("as `status` of a migration", "status"),
    *of("from or to this host", "host"),
    *of("from this host", "source_compute"),
    *of("of this server", "instance_uuid"),
    *of("`live-migration`, `resize` or `evacuation`", "migration_type"),
    *of("none is hidden here", "hidden", refused=True),
    *of("so many at most", "limit", since=v.MIGRATION_UUID),
    *of("the uuid of the last one that was seen", "marker", since=v.MIGRATION_UUID),
    *of(_SINCE, "changes-since", since=v.MIGRATION_UUID),
    *of(_BEFORE, "changes-before", since=v.CHANGES_BEFORE),
    *of("who asked for it", "user_id", since=v.MIGRATION_USER),
    *of("of this project", "project_id", since=v.MIGRATION_USER),
)

SNAPSHOT_DELETION: Parameters = of(
    "the files of the volume that are to be merged, as JSON", "delete_info"
)
INSTANCE_ACTIONS: Parameters = (
    *of("so many at most", "limit", since=v.ACTION_PAGES),
    *of("the request id of the last one that was seen", "marker", since=v.ACTION_PAGES),
    *of(_SINCE, "changes-since", since=v.ACTION_PAGES),
    *of(_BEFORE, "changes-before", since=v.CHANGES_BEFORE),
)

SERVICES: Parameters = (
    *of("of this host", "host"),
    *of("`nova-compute`; there are no others", "binary"),
)

HYPERVISORS: Parameters = (
    *of("so many at most", "limit", since=v.HYPERVISOR_PAGES),
    *of("the id of the last one that was seen", "marker", since=v.HYPERVISOR_PAGES),
    *of(
        "whose name has this in it; 404 if none has; not with `limit` or `marker`",
        "hypervisor_hostname_pattern",
        since=v.HYPERVISOR_UUID,
    ),
    *of("`true`: with the servers on it", "with_servers", since=v.HYPERVISOR_UUID),
)

HYPERVISOR: Parameters = of(
    "`true`: with the servers on it", "with_servers", since=v.HYPERVISOR_UUID
)

LIMITS: Parameters = (
    *of("of this project", "tenant_id", operators=True),
    *of("nothing is reserved beside what is used: says the same", "reserved"),
)
