"""Who there is in the lab's cloud, and what: users and catalog for Keystone, clouds.yaml for them.

What is there already stays.  Run by Keystone's own environment, with the lab's settings (env.sh);
arguments are services that not every lab has.  One that the catalog names and that does not answer
breaks the lists of clients; so the catalog names no other of these.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from keystoneauth1 import adapter, identity, session

ENV = os.environ
URL = ENV["LEDGER_LAB_KEYSTONE"]
DEFAULT = {"user_domain_id": "default", "project_domain_id": "default"}

#: How long an answer may be silent for all clients: more than any here takes.  Nova waits a minute
#: for a message (rpc_response_timeout), and the ledger two for an answer of Nova's.
ANSWER_S = 180
#: Name, project, roles.  A user's cloud in clouds.yaml is called like the user.
USERS = (
    ("member", "lab", ("member",)),
    ("reader", "lab", ("reader",)),
    ("stranger", "elsewhere", ("member",)),
    ("ledger", "service", ("service", "admin")),
    ("cinder", "service", ("service", "admin")),
    ("glance", "service", ("service",)),
    ("nova", "service", ("service", "admin")),
    ("placement", "service", ("service", "admin")),
    ("neutron", "service", ("service", "admin")),
)
SERVICES = {
    "volumev3": f"{ENV['LAB_GATE_URL']}/v3/%(project_id)s",
    "compute": f"{ENV['LAB_COMPUTE_URL']}/v2.1",
    "attachment-ledger": f"{ENV['LAB_LEDGER_URL']}/v1",
}
MORE = {
    "image": ENV["LAB_GLANCE_URL"],
    "placement": f"http://127.0.0.1:{ENV.get('LAB_PLACEMENT_PORT')}",
    "network": f"http://127.0.0.1:{ENV.get('LAB_NEUTRON_PORT')}",
}


def login(name: str, project: str) -> dict[str, Any]:
    """What a client needs of it: options of keystoneauth."""
    password = ENV["LEDGER_LAB_KEYSTONE_PASSWORD"] if name == "admin" else f"lab-{name}"
    return {
        "auth_url": URL,
        "username": name,
        "password": password,
        "project_name": project,
        **DEFAULT,
    }


class Keystone:
    """As its first administrator."""

    def __init__(self) -> None:
        auth = identity.V3Password(**login("admin", "admin"))
        to = session.Session(auth=auth, timeout=ANSWER_S)
        self._api = adapter.Adapter(to, endpoint_override=URL)

    def ensure(self, kind: str, **what: Any) -> str:
        """The id of what has these fields, which is made if there is none."""
        found = self._api.get(f"/{kind}s", params=what).json()[f"{kind}s"]
        if not found:
            found = [self._api.post(f"/{kind}s", json={kind: what}).json()[kind]]
        return str(found[0]["id"])

    def remove(self, kind: str, **what: Any) -> None:
        """All that have these fields, and what belongs to them."""
        for each in self._api.get(f"/{kind}s", params=what).json()[f"{kind}s"]:
            self._api.delete(f"/{kind}s/{each['id']}")

    def ensure_user(self, name: str, password: str) -> str:
        found = self._api.get("/users", params={"name": name}).json()["users"]
        if found:
            return str(found[0]["id"])
        user = {"name": name, "password": password, "domain_id": "default"}
        return str(self._api.post("/users", json={"user": user}).json()["user"]["id"])

    def grant_everywhere(self, role: str, user: str) -> None:
        """In all projects of the domain."""
        role_id = self.ensure("role", name=role)
        place = f"/OS-INHERIT/domains/default/users/{user}/roles/{role_id}"
        self._api.put(f"{place}/inherited_to_projects")

    def grant(self, role: str, user: str, project: str) -> None:
        place = self.ensure("project", name=project, domain_id="default")
        role_id = self.ensure("role", name=role)
        self._api.put(f"/projects/{place}/users/{user}/roles/{role_id}")


def main(more: list[str]) -> None:
    keystone = Keystone()
    for name, project, roles in USERS:
        user = keystone.ensure_user(name, login(name, project)["password"])
        for role in roles:
            keystone.grant(role, user, project)
        if name == "ledger":  # it makes volumes for servers in their projects
            keystone.grant_everywhere("member", user)
    for kind in MORE.keys() - set(more):
        keystone.remove("service", type=kind)
    for kind, url in (SERVICES | {kind: MORE[kind] for kind in more}).items():
        service = keystone.ensure("service", name=kind, type=kind)
        for side in ("public", "internal"):
            place = {"interface": side, "region_id": "RegionOne", "service_id": service}
            keystone.ensure("endpoint", **place, url=url)
    homes = {"admin": "admin"} | {name: project for name, project, _ in USERS}
    clouds = {
        name: {"auth": login(name, project), "region_name": "RegionOne", "api_timeout": ANSWER_S}
        for name, project in homes.items()
    }
    Path(ENV["OS_CLIENT_CONFIG_FILE"]).write_text(yaml.safe_dump({"clouds": clouds}))


if __name__ == "__main__":
    main(sys.argv[1:])
