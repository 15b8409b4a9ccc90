"""What this service relies on at Keystone: the simulated one, and in the lab a real one.

LEDGER_LAB_KEYSTONE is the URL of a Keystone (with /v3) to make users and projects in, and
LEDGER_LAB_KEYSTONE_PASSWORD its administrator's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import requests

from ledger.auth.access_rules import AccessRule
from ledger.auth.keystone_client import KeystoneClient, KeystoneError
from tests.contracts.keystones import Keystone, Real, Simulated
from tests.doubles.simulated_keystone import running_keystone


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.lab)])
def keystone(request: pytest.FixtureRequest) -> Iterator[Keystone]:
    if request.param == "simulated":
        with running_keystone() as running:
            yield Simulated(running)
        return
    if not (url := os.environ.get("LEDGER_LAB_KEYSTONE")):
        pytest.skip("LEDGER_LAB_KEYSTONE names no Keystone")
    yield Real(url, os.environ["LEDGER_LAB_KEYSTONE_PASSWORD"])


@pytest.fixture
def client(keystone: Keystone) -> Iterator[KeystoneClient]:
    """As a service asks it: its user has the role service and no other."""
    asking = KeystoneClient(keystone.options("ledger", "service", project="service"))
    yield asking
    asking.close()


def test_a_projects_token_has_the_roles_that_are_implied(
    keystone: Keystone, client: KeystoneClient
) -> None:
    found = client.whose(keystone.token("alice", "admin", project="p"))
    assert found is not None
    assert found.roles == {"admin", "manager", "member", "reader"}
    assert found.user_name.startswith("alice")
    assert found.project_id
    assert (found.domain_id, found.system, found.is_admin_project) == (None, False, True)
    assert found.audit_id
    assert found.methods == ("password",)
    assert (found.trust_id, found.application_credential_id, found.access_rules) == (None,) * 3
    assert 0 < found.left_s < 90_000


def test_a_scope_is_a_project_the_system_a_domain_or_nothing(
    keystone: Keystone, client: KeystoneClient
) -> None:
    system = client.whose(keystone.token("root", "admin", system=True))
    domain = client.whose(keystone.token("head", "admin", domain="default"))
    unscoped = client.whose(keystone.token("bob"))
    assert system is not None
    assert domain is not None
    assert unscoped is not None
    assert (system.project_id, system.domain_id, system.system) == (None, None, True)
    assert (domain.project_id, domain.domain_id, domain.system) == (None, "default", False)
    assert (unscoped.project_id, unscoped.domain_id, unscoped.system) == (None, None, False)
    assert "admin" in system.roles & domain.roles
    assert unscoped.roles == frozenset()


def test_a_wrong_token_and_a_revoked_one_are_nobodys(
    keystone: Keystone, client: KeystoneClient
) -> None:
    token = keystone.token("alice", "member", project="p")
    assert client.whose(token) is not None
    keystone.revoke(token)
    assert client.whose(token) is None
    assert client.whose(token, allow_expired=True) is None
    assert client.whose("gAAAAABnonsense") is None
    assert client.whose("x" * 4096) is None


def test_an_expired_token_is_shown_to_who_allows_it(
    keystone: Keystone, client: KeystoneClient
) -> None:
    token = keystone.expired("alice")
    assert client.whose(token) is None
    found = client.whose(token, allow_expired=True)
    assert found is not None
    assert found.left_s <= 0


def test_access_rules_are_told_to_who_enforces_them(
    keystone: Keystone, client: KeystoneClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = {"service": "compute", "method": "GET", "path": "/v2.1/servers/*"}
    token = keystone.restricted("robot", [rule])
    found = client.whose(token)
    assert found is not None
    assert found.access_rules == (AccessRule("compute", "GET", "/v2.1/servers/*"),)
    assert found.application_credential_id
    assert found.methods == ("application_credential",)
    monkeypatch.setattr("ledger.auth.keystone_client.ACCESS_RULES", {})
    assert client.whose(token) is None


def test_our_own_token_that_has_gone_is_replaced(
    keystone: Keystone, client: KeystoneClient
) -> None:
    token = keystone.token("alice", "member", project="p")
    assert client.whose(token) is not None
    own = client._own
    assert own is not None
    keystone.revoke(own)
    assert client.whose(token) is not None
    assert client._own != own


def test_who_may_not_ask_is_told_so_only_of_others_good_tokens(keystone: Keystone) -> None:
    client = KeystoneClient(keystone.options("plain", "member", project="p"))
    client.reach()
    assert not client.may_ask()
    assert client.whose("gAAAAABnonsense") is None
    with pytest.raises(KeystoneError, match="our user needs the role service or admin"):
        client.whose(keystone.token("alice", "member", project="p"))
    client.close()


def test_who_may_ask_is_seen_before_anybody_asks(client: KeystoneClient) -> None:
    assert client.may_ask()


def test_a_password_that_is_wrong_is_ours(keystone: Keystone) -> None:
    options = {**keystone.options("ledger", "service", project="service"), "password": "wrong"}
    client = KeystoneClient(options)
    with pytest.raises(KeystoneError, match="refuses our own log-in"):
        client.whose(keystone.token("alice", "member", project="p"))
    with pytest.raises(KeystoneError, match="refuses our own log-in"):
        client.reach()
    client.close()


@pytest.mark.parametrize("known", [True, False])
def test_an_answer_is_in_keystones_form(
    keystone: Keystone, client: KeystoneClient, known: bool
) -> None:
    """What is read of it, beside the body."""
    token = keystone.token("alice", "member", project="p") if known else "gAAAAABnonsense"
    assert (client.whose(token) is not None) is known
    own = client._own
    assert own is not None
    headers = {"X-Auth-Token": own, "X-Subject-Token": token}
    answer = requests.get(client._url, headers=headers, timeout=30)
    assert answer.headers["Date"]
    body = answer.json()
    assert body["error"]["code"] == 404 if not known else "catalog" not in body["token"]
