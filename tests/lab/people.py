"""Who acts in the lab: the users that Keystone knows, by their clouds.yaml (keystone_cloud.py)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from cinderclient import api_versions, client
from keystoneauth1 import identity, service_token, session

from tests.lab.settings import ENV


@dataclass(frozen=True)
class Person:
    """One of them, logged in for as long as the tests run."""

    name: str
    auth: identity.V3Password
    session: session.Session

    @property
    def token(self) -> str:
        return str(self.session.get_token())

    @property
    def user_id(self) -> str:
        return str(self.session.get_user_id())

    @property
    def project_id(self) -> str:
        return str(self.session.get_project_id())

    def cinder(self, *, passed_on_by: Person | None = None) -> client.Client:
        """Cinder, past the gate; with a service's token, too, if one passes it on."""
        auth: Any = self.auth
        if passed_on_by:
            auth = service_token.ServiceTokenAuthWrapper(auth, passed_on_by.auth)
        return client.Client(
            api_versions.APIVersion("3.71"),
            session=session.Session(auth=auth, timeout=self.session.timeout),
            endpoint_override=f"{ENV['CINDER_ENDPOINT']}/{self.project_id}",
        )


@functools.cache
def person(name: str) -> Person:
    clouds = yaml.safe_load(Path(ENV["OS_CLIENT_CONFIG_FILE"]).read_text())["clouds"]
    auth = identity.V3Password(**clouds[name]["auth"])
    return Person(name, auth, session.Session(auth=auth, timeout=clouds[name]["api_timeout"]))
