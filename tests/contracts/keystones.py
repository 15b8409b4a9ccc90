"""A Keystone to hold to the contract: simulated, or a real one that the test fills by its API."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from uuid import uuid4

import requests

from tests.doubles.simulated_keystone import HOUR, SimulatedKeystone

Row = dict[str, Any]

DEFAULT = {"id": "default"}


class Keystone(Protocol):
    """What a test needs of one; names are its own, and scopes as SimulatedKeystone has them."""

    def options(self, name: str, *roles: str, **scope: Any) -> Row:
        """How a user with these roles logs in."""

    def token(self, name: str, *roles: str, **scope: Any) -> str: ...

    def restricted(self, name: str, rules: list[Row]) -> str:
        """A token of a member's application credential with these access rules."""

    def expired(self, name: str) -> str:
        """A member's token that was valid once."""

    def revoke(self, token: str) -> None: ...


class Simulated:
    def __init__(self, keystone: SimulatedKeystone) -> None:
        self._keystone = keystone
        self.options = keystone.user
        self.token = keystone.token
        self.revoke = keystone.revoke

    def restricted(self, name: str, rules: list[Row]) -> str:
        return self._keystone.token(name, "member", project="p", rules=rules)

    def expired(self, name: str) -> str:
        return self._keystone.token(name, "member", project="p", valid=-HOUR)


class Real:
    """Asked as its first administrator; all it makes has names of its own, and stays."""

    def __init__(self, url: str, password: str) -> None:
        self._url = url
        self._run = uuid4().hex[:8]
        scope = {"project": {"name": "admin", "domain": DEFAULT}}
        self._admin = self._logged_in({"name": "admin", "password": password}, scope)

    def options(self, name: str, *roles: str, **scope: Any) -> Row:
        user = self._user(name, *roles, **scope)
        found: Row = {
            "auth_type": "v3password",
            "auth_url": self._url,
            "user_id": user["id"],
            "password": user["password"],
        }
        if "project" in scope:
            found["project_id"] = self._named("projects", scope["project"])
        return found

    def token(self, name: str, *roles: str, **scope: Any) -> str:
        return self._logged_in(self._user(name, *roles, **scope), self._scope(scope))

    def restricted(self, name: str, rules: list[Row]) -> str:
        return self._application_credential(name, access_rules=rules)

    def expired(self, name: str) -> str:
        token = self._application_credential(name, lives=timedelta(seconds=5))
        own = {"X-Auth-Token": token, "X-Subject-Token": token}
        deadline = time.monotonic() + 30
        while requests.get(f"{self._url}/auth/tokens", headers=own, timeout=30).ok:
            assert time.monotonic() < deadline, "the token did not expire"
            time.sleep(0.2)
        return token

    def revoke(self, token: str) -> None:
        headers = {"X-Auth-Token": self._admin, "X-Subject-Token": token}
        requests.delete(f"{self._url}/auth/tokens", headers=headers, timeout=30).raise_for_status()

    def grant(self, user_id: str, role: str, **scope: Any) -> str:
        """One more role for the user there; the id of the project, if it is one."""
        project = self._named("projects", scope["project"]) if "project" in scope else ""
        place = f"projects/{project}" if project else "system"
        if "domain" in scope:
            place = f"domains/{scope['domain']}"
        self._admins("PUT", f"{place}/users/{user_id}/roles/{self._named('roles', role)}")
        return project

    def _user(self, name: str, *roles: str, **scope: Any) -> Row:
        password = uuid4().hex
        made = {"name": f"{name}-{uuid4().hex}", "password": password, "domain_id": "default"}
        user = self._admins("POST", "users", user=made)["user"]
        for role in roles:
            self.grant(user["id"], role, **scope)
        return {"id": user["id"], "password": password}

    def _scope(self, scope: Row) -> Any:
        if "project" in scope:
            return {"project": {"id": self._named("projects", scope["project"])}}
        if "domain" in scope:
            return {"domain": {"id": scope["domain"]}}
        return {"system": {"all": True}} if scope.get("system") else "unscoped"

    def _application_credential(
        self, name: str, *, lives: timedelta | None = None, **fields: Any
    ) -> str:
        """Its token ends with it."""
        user = self._user(name, "member", project="p")
        own = self._logged_in(user, self._scope({"project": "p"}))
        path = f"users/{user['id']}/application_credentials"
        if lives is not None:
            fields["expires_at"] = f"{datetime.now(UTC) + lives:%Y-%m-%dT%H:%M:%S}.000000Z"
        body = {"application_credential": {"name": name, **fields}}
        made = self._asked("POST", path, own, body)["application_credential"]
        method = "application_credential"
        secret = {"id": made["id"], "secret": made["secret"]}
        return self._issued({"identity": {"methods": [method], method: secret}})

    def _named(self, kind: str, name: str) -> str:
        """The id of a role, or of a project of this run."""
        if kind == "projects":
            name = f"{name}-{self._run}"
        found = self._admins("GET", f"{kind}?name={name}")[kind]
        if not found:
            made = {"name": name, "domain_id": "default"}
            return str(self._admins("POST", "projects", project=made)["project"]["id"])
        return str(found[0]["id"])

    def _logged_in(self, user: Row, scope: Any) -> str:
        if "name" in user:
            user = {**user, "domain": DEFAULT}
        identity = {"methods": ["password"], "password": {"user": user}}
        return self._issued({"identity": identity, "scope": scope})

    def _issued(self, auth: Row) -> str:
        answer = requests.post(f"{self._url}/auth/tokens", json={"auth": auth}, timeout=30)
        answer.raise_for_status()
        return str(answer.headers["X-Subject-Token"])

    def _admins(self, method: str, path: str, **body: Row) -> Any:
        return self._asked(method, path, self._admin, body)

    def _asked(self, method: str, path: str, token: str, body: Row) -> Any:
        answer = requests.request(
            method,
            f"{self._url}/{path}",
            json=body or None,
            headers={"X-Auth-Token": token},
            timeout=30,
        )
        answer.raise_for_status()
        return answer.json() if answer.content else None
