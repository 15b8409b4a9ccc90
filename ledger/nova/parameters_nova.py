"""The query parameters of Nova's lists, and how the ledger treats each.

Source: nova/api/openstack/compute/schemas; for servers `index_query_v275`.
"""

from __future__ import annotations

from ledger.http import microversions as v
from ledger.http.parameters import Parameters, of

_LIMIT = of("at most so many entries", "limit")
_PAGES = _LIMIT + of("the id of the last entry of the previous page", "marker")

_SINCE = "changed at this time or later"
_BEFORE = "changed at this time or earlier"

SERVERS: Parameters = (
    *_PAGES,
    *of(
        "`created_at` (the default), `updated_at`, `uuid`, `display_name`, `project_id`, "
        "`user_id`, `vm_state`, `task_state`, `power_state`, `instance_type_id`; for operators "
        "also `host`, `node`",
        "sort_key",
        many=True,
    ),
    *of("`asc` or `desc` (the default), for each key", "sort_dir", many=True),
    *of("a POSIX regular expression of PostgreSQL, without back references", "name"),
    *of("`status` of a server, one or several", "status", many=True),
    *of("`OS-EXT-STS:vm_state` of a server", "vm_state"),
    *of("`OS-EXT-STS:task_state` of a server", "task_state"),
    *of("`OS-EXT-STS:power_state` of a server, as a number", "power_state"),
    *of("the id of a flavor", "flavor"),
    *of("the id of a server", "uuid"),
    *of("the user who requested it", "user_id"),
    *of("the second at which it was created", "created_at"),
    *of(f"{_SINCE}; with deleted ones, unless `deleted` is given", "changes-since"),
    *of(f"{_BEFORE}; likewise", "changes-before", since=v.CHANGES_BEFORE),
    *of("`true`: deleted ones, for operators; `false`: the others", "deleted"),
    *of("`nova`: all hosts; empty: none", "availability_zone"),
    *of("on this host", "host", "node", operators=True),
    *of("servers of all projects, for operators", "all_tenants"),
    *of("of this project; for another project add `all_tenants`", "project_id", "tenant_id"),
    *of("`true`: locked ones; `false`: the others", "locked", since=v.LOCKED_FILTER),
    *of("with all of these tags, separated by commas", "tags", since=v.SERVER_TAGS),
    *of("with at least one of these tags", "tags-any", since=v.SERVER_TAGS),
    *of("lacking at least one of these tags", "not-tags", since=v.SERVER_TAGS),
    *of("with none of these tags", "not-tags-any", since=v.SERVER_TAGS),
    *of("a regular expression, as `name`, for the stored address", "access_ip_v4", "access_ip_v6"),
    *of("the ledger has no addresses", "ip", "ip6", refused=True),
    *of(
        "the ledger has no images",
        *("image", "image_ref", "kernel_id", "ramdisk_id"),
        refused=True,
    ),
    *of("use 'name'", "display_name", refused=True),
    *of(
        "the ledger does not filter by it",
        *("auto_disk_config", "config_drive", "description", "display_description", "hostname"),
        *("key_name", "launch_index", "locked_by", "progress", "reservation_id"),
        *("root_device_name",),
        refused=True,
    ),
    *of(
        "the history has when a server started or ended",
        *("launched_at", "terminated_at"),
        refused=True,
    ),
    *of("the ledger has no soft deletion", "soft_deleted", refused=True),
)

FLAVORS: Parameters = (
    *_PAGES,
    *of("`flavorid` (the default), `id`, `name`, `vcpus`, `memory_mb`", "sort_key"),
    *of("`asc` (the default) or `desc`", "sort_dir"),
    *of("every flavor is public: `false` finds none", "is_public"),
    *of("at least so many MiB", "minRam"),
    *of("every disk is a volume: a number above 0 finds none", "minDisk"),
    *of("the name", "name", since=v.FLAVOR_NAME),
)

VOLUME_ATTACHMENTS: Parameters = (*_LIMIT, *of("skip so many entries", "offset"))

MIGRATIONS: Parameters = (
    *of("`status` of a migration", "status"),
    *of("from or to this host", "host"),
    *of("from this host", "source_compute"),
    *of("of this server", "instance_uuid"),
    *of("`live-migration`, `resize` or `evacuation`", "migration_type"),
    *of("the ledger hides no migration", "hidden", refused=True),
    *of("at most so many entries", "limit", since=v.MIGRATION_UUID),
    *of("the uuid of the last entry of the previous page", "marker", since=v.MIGRATION_UUID),
    *of(_SINCE, "changes-since", since=v.MIGRATION_UUID),
    *of(_BEFORE, "changes-before", since=v.CHANGES_BEFORE),
    *of("the user who requested it", "user_id", since=v.MIGRATION_USER),
    *of("of this project", "project_id", since=v.MIGRATION_USER),
)

SNAPSHOT_DELETION: Parameters = of(
    "the files of the volume that are to be merged, as JSON", "delete_info"
)
INSTANCE_ACTIONS: Parameters = (
    *of("at most so many entries", "limit", since=v.ACTION_PAGES),
    *of(
        "the request id of the last entry of the previous page, or what the link of that page has",
        "marker",
        since=v.ACTION_PAGES,
    ),
    *of(_SINCE, "changes-since", since=v.ACTION_PAGES),
    *of(_BEFORE, "changes-before", since=v.CHANGES_BEFORE),
)

SERVICES: Parameters = (
    *of("of this host", "host"),
    *of("`nova-compute`; there are no others", "binary"),
)

HYPERVISORS: Parameters = (
    *of("at most so many entries", "limit", since=v.HYPERVISOR_PAGES),
    *of("the id of the last entry of the previous page", "marker", since=v.HYPERVISOR_PAGES),
    *of(
        "the name contains this; 404 if none does; not with `limit` or `marker`",
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
    *of("without effect: nothing is reserved", "reserved"),
)
