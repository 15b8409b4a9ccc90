"""The rules of the policy: their names, and who may by default.  Data alone.

A call of Nova's has Nova's name for its rule (nova/policies), so that a cloud's policy file for
Nova does here what it does there; our own calls are under `attachment-ledger:`.  Where a default
is not Nova's, `what` says so.  `ledger.auth.policy` answers by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ledger.words.acts import ACTS, HOST

OURS = "attachment-ledger:"
_NOVAS = "os_compute_api:"

# Nova's names for its personas (nova/policies/base.py).
ADMIN = "rule:context_is_admin"
MANAGER = "rule:project_manager_or_admin"
MEMBER = "rule:project_member_or_admin"
READER = "rule:project_reader_or_admin"
SERVICE = "rule:service_api"
AGENT = "role:agent"

#: Decides whether the caller is an administrator.
IS_ADMIN = "context_is_admin"
#: Whose calls are about all projects; to others only their own project exists.
ALL_PROJECTS = f"{OURS}all-projects"
#: Who may finish Cinder's own migrations of volumes.
SWAP_FOR_CINDER = f"{OURS}volume-attachments:swap-for-cinder"


@dataclass(frozen=True)
class Rule:
    """`check` is in oslo.policy's language.

    `formerly`: the older name that stands for this one in a file that does not have it.
    """

    name: str
    check: str
    what: str
    formerly: str | None = None


def _under(prefix: str, *rules: tuple[str, str, str]) -> Iterator[Rule]:
    for name, check, what in rules:
        yield Rule(f"{prefix}{name}", check, what)


_PERSONAS = (
    Rule(IS_ADMIN, "role:admin", "who administers the cloud"),
    Rule(
        "admin_or_owner",
        "is_admin:True or project_id:%(project_id)s",
        "only for older files: no rule here refers to it",
    ),
    Rule("admin_api", "is_admin:True", "only for older files: no rule here refers to it"),
    Rule("project_manager_api", "role:manager and project_id:%(project_id)s", "a manager's"),
    Rule("project_member_api", "role:member and project_id:%(project_id)s", "a member's"),
    Rule("project_reader_api", "role:reader and project_id:%(project_id)s", "a reader's"),
    Rule("service_api", "role:service", "a service's"),
    Rule("project_manager_or_admin", f"rule:project_manager_api or {ADMIN}", "managers and up"),
    Rule("project_member_or_admin", f"rule:project_member_api or {ADMIN}", "members and up"),
    Rule("project_reader_or_admin", f"rule:project_reader_api or {ADMIN}", "readers and up"),
    Rule("service_or_admin", f"{SERVICE} or {ADMIN}", "services and administrators"),
)

_OR_SERVICE = f"{READER} or {SERVICE}"

_VOLUMES = _under(
    f"{_NOVAS}os-volumes-attachments:",
    ("index", _OR_SERVICE, "list a server's volumes; Nova: no services"),
    ("show", _OR_SERVICE, "show one; Cinder asks before it lets a user delete. Nova: no services"),
    ("create", MEMBER, "attach a volume"),
    ("update", MEMBER, "change delete_on_termination"),
    (
        "swap",
        f"{MEMBER} or {SERVICE}",
        "swap volumes; users need `swap_by_users`, too. Nova: services and administrators alone",
    ),
    ("delete", MEMBER, "detach a volume"),
)

_SERVERS = _under(
    f"{_NOVAS}servers:",
    ("index", _OR_SERVICE, "list servers; Nova: no services"),
    ("detail", _OR_SERVICE, "list them with details; Nova: no services"),
    ("index:get_all_tenants", f"{ADMIN} or {SERVICE}", "of all projects; Nova: no services"),
    ("detail:get_all_tenants", f"{ADMIN} or {SERVICE}", "of all projects; Nova: no services"),
    ("show", _OR_SERVICE, "show a server; Nova: no services"),
    ("create", MEMBER, "create a server"),
    ("create:attach_volume", MEMBER, "with volumes, as all are"),
    ("create:forced_host", ADMIN, "on a host that the caller names in the zone"),
    ("delete", MEMBER, "delete a server"),
    ("resize", MEMBER, "resize"),
    ("confirm_resize", MEMBER, "confirmResize"),
    ("revert_resize", MEMBER, "revertResize"),
    ("start", MEMBER, "os-start"),
    ("stop", MEMBER, "os-stop"),
    ("reboot", MEMBER, "reboot"),
    ("rebuild", MEMBER, "rebuild"),
    ("update", MEMBER, "change its name and other properties"),
)

_REQUESTED = Rule(
    "compute:servers:create:requested_destination",
    ADMIN,
    "create a server on a host that the caller names (2.74)",
)

_MOVES = (
    *_under(
        f"{_NOVAS}os-migrate-server:",
        ("migrate", MANAGER, "migrate; the ledger chooses the host"),
        ("migrate:host", ADMIN, "migrate to a host that the caller names"),
        ("migrate_live", MANAGER, "os-migrateLive; the ledger chooses the host"),
    ),
    Rule(
        f"{_NOVAS}os-migrate-server:migrate_live:host",
        ADMIN,
        "os-migrateLive to a host that the caller names",
        formerly=f"{_NOVAS}os-migrate-server:migrate_live",
    ),
    Rule(f"{_NOVAS}os-evacuate", ADMIN, "evacuate"),
    *_under(
        f"{_NOVAS}os-shelve:",
        ("shelve", MEMBER, "shelve"),
        ("shelve_offload", ADMIN, "shelveOffload"),
        ("unshelve", MEMBER, "unshelve; the ledger chooses the host"),
        ("unshelve_to_host", ADMIN, "unshelve on a host that the caller names"),
    ),
    *_under(
        f"{_NOVAS}os-pause-server:", ("pause", MEMBER, "pause"), ("unpause", MEMBER, "unpause")
    ),
)

_EDITS = (
    *_under(
        f"{_NOVAS}os-lock-server:",
        ("lock", MEMBER, "lock: only administrators and services change the server then"),
        ("unlock", MEMBER, "unlock a server that a user of the same kind locked"),
        ("unlock:unlock_override", ADMIN, "unlock a server that any user locked"),
    ),
    Rule(f"{_NOVAS}os-admin-actions:reset_state", ADMIN, "os-resetState"),
    *_under(
        f"{_NOVAS}server-metadata:",
        ("index", READER, "list a server's metadata"),
        ("show", READER, "show an item of it"),
        ("create", MEMBER, "add items"),
        ("update_all", MEMBER, "replace all items"),
        ("update", MEMBER, "set an item"),
        ("delete", MEMBER, "delete an item"),
    ),
    *_under(
        f"{_NOVAS}os-server-tags:",
        ("index", READER, "list a server's tags"),
        ("show", READER, "whether a server has a tag"),
        ("update_all", MEMBER, "replace all tags"),
        ("delete_all", MEMBER, "delete all tags"),
        ("update", MEMBER, "add a tag"),
        ("delete", MEMBER, "delete a tag"),
    ),
)

_INDEX, _LIVE = f"{_NOVAS}os-migrations:index", f"{_NOVAS}servers:migrations:index"

_MIGRATIONS = (
    Rule(_INDEX, MANAGER, "list migrations of the caller's project, without hosts"),
    Rule(f"{_INDEX}:all_projects", ADMIN, "list those of all projects", formerly=_INDEX),
    Rule(f"{_INDEX}:host", ADMIN, "list them with their hosts", formerly=_INDEX),
    Rule(_LIVE, MANAGER, "list a server's live migrations in progress, without hosts"),
    Rule(f"{_LIVE}:host", ADMIN, "list them with their hosts", formerly=_LIVE),
    *_under(
        f"{_NOVAS}servers:migrations:",
        ("show", ADMIN, "show a live migration in progress, with its hosts"),
        ("delete", MANAGER, "abort a live migration"),
        ("force_complete", MANAGER, "force_complete, which is refused here"),
    ),
)

_OTHERS_OF_NOVA = (
    *_under(
        f"{_NOVAS}os-instance-actions:",
        ("list", READER, "list a server's actions"),
        ("show", READER, "show one"),
        ("events", ADMIN, "with its events before 2.51; with their hosts and tracebacks"),
        ("events:details", ADMIN, "with their details (2.84)"),
    ),
    *_under(
        f"{_NOVAS}os-services:",
        ("list", ADMIN, "list hosts as nova-compute services"),
        ("update", ADMIN, "disable a host, or enable it again"),
        ("delete", ADMIN, "forget a host that is gone for good"),
    ),
    *_under(
        f"{_NOVAS}os-hypervisors:",
        ("list", ADMIN, "list hosts as hypervisors"),
        ("list-detail", ADMIN, "list them with details"),
        ("show", ADMIN, "show one"),
    ),
    *_under(
        _NOVAS,
        ("os-aggregates:index", ADMIN, "list aggregates, of which there are none"),
        ("os-availability-zone:list", READER, "list the one zone (Nova: all users)"),
        ("os-availability-zone:detail", ADMIN, "list it with its hosts"),
        ("ips:index", READER, "list a server's addresses, of which there are none"),
        ("limits", READER, "what a project's servers use (Nova: all users)"),
        ("extensions", READER, "list extensions (Nova: all users)"),
        ("os-extended-server-attributes", f"{ADMIN} or {SERVICE}", "OS-EXT-SRV-ATTR of a server"),
        ("os-flavor-extra-specs:index", READER, "list a flavor's extra specs"),
        (
            "os-assisted-volume-snapshots:create",
            SERVICE,
            "Cinder's call. Nova: administrators, too",
        ),
        (
            "os-assisted-volume-snapshots:delete",
            SERVICE,
            "Cinder's call. Nova: administrators, too",
        ),
        ("os-server-external-events:create", SERVICE, "Cinder's call. Nova: administrators, too"),
    ),
)

_OWN = _under(
    OURS,
    ("all-projects", f"{ADMIN} or {SERVICE}", "see all projects, and names of hosts"),
    (
        "volume-attachments:swap-for-cinder",
        SERVICE,
        "swap while Cinder migrates the volume, regardless of swap_by_users",
    ),
    ("flavors:list", READER, "list flavors (Nova: all users)"),
    ("flavors:show", READER, "show a flavor (Nova: all users)"),
    ("find", READER, "resolve the beginning of an id, or a server's name"),
    ("servers:build", MEMBER, "create a server from volumes"),
    ("servers:refresh", ADMIN, "refresh the connections of a server, or of many"),
    ("servers:convert", ADMIN, "convert attachments of the old flow"),
    ("servers:forget", ADMIN, "forget servers whose guests have vanished"),
    ("servers:history", READER, "a server's events"),
    ("operations:list", READER, "list operations"),
    ("operations:show", READER, "show one, and wait for its end"),
    ("operations:history", READER, "an operation's events"),
    ("operations:act", ADMIN, "retry, skip, give up, ... a parked operation"),
    ("remnants:list", ADMIN, "list remnants, of all projects"),
    ("remnants:acknowledge", ADMIN, "acknowledge one"),
    ("attachments:list", READER, "list attachments"),
    ("attachments:show", READER, "show one"),
    ("attachments:history", READER, "an attachment's events"),
    ("volumes:history", ADMIN, "a volume's events; it may have been another project's before"),
    ("history:import", ADMIN, "import mappings that ended in Nova's database"),
    ("requests:show", f"{READER} or {SERVICE} or {AGENT}", "why one's own request failed"),
    ("hosts:list", ADMIN, "list hosts"),
    ("hosts:show", ADMIN, "show one"),
    ("hosts:history", ADMIN, "a host's events"),
    *((act.filled(act.of.rule), ADMIN, act.summary) for act in ACTS if act.of.kind == HOST.kind),
    ("hosts:agent", AGENT, "an agent's calls; each only for the host of its token"),
    ("drift:list", READER, "list what differs"),
    ("drift:show", READER, "show a finding"),
    ("drift:classes", READER, "list the classes of drift"),
    ("drift:ignore", ADMIN, "ignore or unignore a finding"),
    ("drift:repair", ADMIN, "repair it"),
    ("drift:looks", ADMIN, "list and show looks"),
    ("drift:look", ADMIN, "request, stop or resume a look"),
    ("events:list", ADMIN, "the log, of all projects"),
    ("events:checkpoint", ADMIN, "a checkpoint of it"),
    ("events:stream", ADMIN, "the log as it grows"),
    ("flows:list", READER, "list the flows"),
    ("flows:show", READER, "show one"),
    ("console:pages", READER, "the console; what its pages show is under the rules of that"),
)

RULES: tuple[Rule, ...] = (
    *_PERSONAS,
    *_VOLUMES,
    *_SERVERS,
    _REQUESTED,
    *_MOVES,
    *_EDITS,
    *_MIGRATIONS,
    *_OTHERS_OF_NOVA,
    *_OWN,
)

NAMES = frozenset(rule.name for rule in RULES)
