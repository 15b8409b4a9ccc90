"""Every request x who asks x the scope of the token x whose it is about: what the policy says.

The expectations are written here by hand, in groups; nothing of them is taken from the rules.  The
answers are those of the functions that every request passes: the door's, and `Call.sees`.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aggregates.base import Actor
from handlers.requests.edits import OVERRIDE_RULE
from ledger.auth.keystone import KeystoneTokens
from ledger.auth.keystone_client import ValidatedToken
from ledger.auth.policy import Policy
from ledger.auth.rules import NAMES, RULES
from ledger.auth.tokens import IMPLIED, Identity, RequestSender
from ledger.config import AuthMode, KeystoneSettings, Role, Settings
from ledger.http.call import Call, refuse_unless
from ledger.http.problem import ApiError
from ledger.http.routes import ROUTES
from ledger.nova.servers import create as server_create
from ledger.nova.servers.actions import ACTIONS
from ledger.web import console

OWN, FOREIGN = "own-project", "another-project"

#: Keystone's tokens have the roles that their role implies.
PERSONAS = {
    "nobody": set[str](),
    "reader": {"reader"},
    "member": {"reader", "member"},
    "manager": {"reader", "member", "manager"},
    "admin": {"reader", "member", "manager", "admin"},
    "service": {"service"},
    "agent": {"agent"},  # a role of Keystone's that is called so
    "operator": {"operator"},  # likewise: it is a word of static tokens alone
}
SCOPES: dict[str, dict[str, Any]] = {
    "project": {"project_id": OWN},
    "system": {"system": True},
    "domain": {"domain_id": "default"},
    "unscoped": {},
    "project that administers nothing": {"project_id": OWN, "is_admin_project": False},
}

#: Who may, in their own project (elsewhere it does not exist), and who may in all of them.
GROUPS: dict[str, tuple[set[str], set[str]]] = {
    "read": ({"reader", "member", "manager"}, {"admin"}),
    "read, services too": ({"reader", "member", "manager"}, {"admin", "service"}),
    "write": ({"member", "manager"}, {"admin"}),
    "write, services too": ({"member", "manager"}, {"admin", "service"}),
    "manage": ({"manager"}, {"admin"}),
    "operate": (set(), {"admin"}),
    "in Cinder's name": (set(), {"service"}),
    "an agent's": (set(), set()),
}
REQUESTS = {
    "read": """find flavors flavors_detail flavor flavor_specs instance_actions instance_action
        operations operation operation_history drift drift_finding drift_classes server_history
        attachment_history attachments attachment flows flow console zones metadata metadata_item
        tags tag limits extensions extension addresses""",
    "read, services too": """servers servers_detail server volume_attachments volume_attachment
        request""",
    "write": """volume_attachment_create volume_attachment_delete server_delete server_build
        server_create server_create:VOLUMES
        resize confirmResize revertResize shelve unshelve os-start os-stop pause unpause reboot
        rebuild server_update lock unlock metadata_add metadata_replace metadata_item_set
        metadata_item_delete tags_replace tags_delete tag_add tag_delete""",
    "write, services too": "volume_attachment_update",
    "manage": """os-migrateLive migrate migrations server_migrations server_migration_abort
        server_migration_action""",
    "operate": """server_create:FORCED server_create:REQUESTED os-migrateLive:host
        migrate:host unshelve:host evacuate shelveOffload os-resetState unlock:OVERRIDE
        server_migration server_refresh server_convert refresh convert forget operation_act
        remnants
        remnant_acknowledge drift_ignore drift_unignore drift_repair drift_runs drift_run
        drift_run_ask drift_run_stop drift_run_resume services service_update service_delete
        hypervisors hypervisors_detail
        hypervisor aggregates zones_detail volume_history history_import host_history hosts host
        host_fence
        host_unfence host_forget host_vouch host_adopt host_hand_back events event_checkpoint
        event_verification event_activity event_stream
        console_checkpoint console_operation_act
        console_remnant_acknowledge console_drift_ignore console_drift_unignore console_drift_repair
        console_drift_run_ask console_drift_run_stop console_drift_run_resume console_host_fence
        console_host_unfence console_host_forget console_host_vouch
        console_host_adopt console_host_hand_back""",
    "in Cinder's name": "assisted_snapshot assisted_deletion external_events",
    "an agent's": """host_register host_guests host_commands host_reports host_progress host_survey
        host_survey_sent host_volume_users""",
}
EVERYBODYS = {
    *("versions", "version", "health", "ready", "metrics", "openapi"),
    *("console_home", "console_login", "console_logout", "console_file"),
}


def rules() -> dict[str, tuple[str, ...]]:
    """Those of each request: the routes, and instead of `server_action` the actions."""
    found = {
        route.name: route.rules
        for route in (*ROUTES, *console.ROUTES)
        if route.name != "server_action"
    }
    for name, action in ACTIONS.items():
        found[name] = (action.rule,)
        if action.host_rule:
            found[f"{name}:host"] = (action.host_rule,)
    for name in ("VOLUMES", "FORCED", "REQUESTED"):
        found[f"server_create:{name}"] = (getattr(server_create, f"{name}_RULE"),)
    found["unlock:OVERRIDE"] = (OVERRIDE_RULE,)
    return found


class Client:
    """Keystone, who knows one token."""

    def __init__(self, proven: ValidatedToken) -> None:
        self._proven = proven

    def whose(self, token: str, *, allow_expired: bool = False) -> ValidatedToken:
        del token, allow_expired
        return self._proven


async def from_keystone(persona: str, scope: str) -> Identity:
    """Who bears a token of Keystone's."""
    unscoped = {"project_id": None, "system": False, "domain_id": None, "is_admin_project": True}
    proven = ValidatedToken(
        user_id="u",
        user_name="somebody",
        roles=frozenset(PERSONAS[persona]),
        audit_id=None,
        methods=(),
        trust_id=None,
        application_credential_id=None,
        access_rules=None,
        left_s=600,
        **{**unscoped, **SCOPES[scope]},
    )
    settings = Settings(
        auth=AuthMode.KEYSTONE, keystone=KeystoneSettings(auth={"auth_url": "http://keystone"})
    )
    tokens = KeystoneTokens(settings, Client(proven))
    try:
        return await tokens.authenticate(RequestSender(headers={"X-Auth-Token": "t"}))
    finally:
        tokens.close()


def answer(policy: Policy, identity: Identity, rules: tuple[str, ...], project: str) -> int:
    """What a request comes to that is about something of a project."""
    identity = policy.admitted(identity)
    call = Call(
        request=cast(Any, None),
        rules=rules,
        components=cast(Any, SimpleNamespace(policy=policy)),
        identity=identity,
        request_id="req",
        version=(2, 1),
    )
    try:
        refuse_unless(policy, identity, rules)
        return 200 if call.sees(project) else 404
    except ApiError as error:
        return error.status


def expected(group: str, persona: str, scope: str, project: str) -> int:
    own, everywhere = GROUPS[group]
    if scope in {"domain", "unscoped"}:
        return 403
    if persona == "admin" and scope == "project that administers nothing":
        persona = "manager"  # what is left of its roles
    if persona in everywhere:
        return 200
    if persona in own and scope != "system":
        return 200 if project == OWN else 404
    return 403


def test_each_request_is_in_one_group() -> None:
    named = [name for names in REQUESTS.values() for name in names.split()]
    assert len(named) == len(set(named))
    assert set(named) | EVERYBODYS == set(rules())
    assert {name for name, rule in rules().items() if not rule} == EVERYBODYS


def test_each_rule_that_is_asked_is_one_that_there_is() -> None:
    assert len(NAMES) == len(RULES)
    assert {rule for several in rules().values() for rule in several} <= NAMES
    [routed] = [route.rules for route in ROUTES if route.name == "server_action"]
    assert set(routed) == {action.rule for action in ACTIONS.values()}


@cache
def built_in() -> Policy:
    """Nothing changes it, and it takes as long to make as all of these questions."""
    return Policy()


@pytest.mark.parametrize("scope", sorted(SCOPES))
@pytest.mark.parametrize("persona", sorted(PERSONAS))
async def test_what_keystones_tokens_are_for(persona: str, scope: str) -> None:
    policy, identity = built_in(), await from_keystone(persona, scope)
    under = rules()
    for group, names in REQUESTS.items():
        for name in names.split():
            for project in (OWN, FOREIGN):
                found = answer(policy, identity, under[name], project)
                wanted = expected(group, persona, scope, project)
                assert found == wanted, (name, persona, scope, project)


#: What a static token's role is, of the personas above.
STATIC = {
    Role.READER: {"reader"},
    Role.MEMBER: {"member"},
    Role.MANAGER: {"manager"},
    Role.OPERATOR: {"admin"},
    Role.SERVICE: {"service"},
    Role.ADMIN: {"admin", "service"},
}


@pytest.mark.parametrize("role", sorted(Role))
def test_what_static_tokens_are_for(role: Role) -> None:
    policy, under = built_in(), rules()
    actor = Actor(name="a", user_id="u", project_id=OWN)
    identity = Identity(actor=actor, roles=IMPLIED[role])
    for group, names in REQUESTS.items():
        for name in names.split():
            for project in (OWN, FOREIGN):
                wanted = {
                    expected(group, persona, "project", project)
                    for persona in STATIC.get(role, {"nobody"})
                }
                if role is Role.AGENT and (group == "an agent's" or name == "request"):
                    wanted = {200 if project == OWN else 404}
                found = answer(policy, identity, under[name], project)
                assert found == min(wanted), (name, role, project)


async def test_what_is_nobodys_is_no_project_of_a_caller_without_one() -> None:
    """A check would take the two for alike: both are None."""
    policy, under = built_in(), rules()
    for persona in PERSONAS:
        identity = await from_keystone(persona, "system")
        found = answer(policy, identity, under["server"], cast(Any, None))
        assert found == (200 if persona in {"admin", "service"} else 403), persona
