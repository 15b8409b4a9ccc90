"""The section [cinder]: endpoint, credentials, and retries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from host_agent.shared.platform.settings import Positive, Seconds

#: The options of a keystoneauth plugin that are the token's scope.
_SCOPE = frozenset(
    f"{what}_{name}" for what in ("project", "project_domain", "tenant") for name in ("id", "name")
) | {"domain_id", "domain_name", "system_scope", "trust_id"}


@dataclass(frozen=True, kw_only=True)
class RetryLimits:
    """The limits of retries; the waits are from `host_agent.shared.contract.backoff`."""

    attempts_max: Positive = 5
    delay_first_s: Seconds = 0.5
    delay_max_s: Seconds = 8.0
    deadline_s: Seconds = 90.0  # after the first attempt; no other begins later


@dataclass(frozen=True, kw_only=True)
class CinderSettings:
    """Cinder's endpoint and the credentials for it.

    Either `endpoint` (noauth: the v3 URL, with or without a project in its path) or `auth`: options
    of a keystoneauth plugin ("auth_type", "auth_url", "username", ...).  Then the endpoint is from
    the catalog, unless `endpoint` overrides it.  `service_auth`: the options of the service token's
    user; None: `auth`.
    """

    endpoint: str | None = None
    user_id: str = "attachment-ledger"
    project_id: str = "service"
    auth: Mapping[str, Any] | None = field(default=None, repr=False)
    service_auth: Mapping[str, Any] | None = field(default=None, repr=False)
    service_token: bool = True
    service_role: str = "service"
    region_name: str | None = None
    interface: str = "internalURL"
    connect_timeout_s: Seconds = 5.0
    read_timeout_s: Seconds = 120.0  # an update waits for the backend
    cacert: str | None = None
    insecure: bool = False
    backoff: RetryLimits = RetryLimits()

    @property
    def timeout_s(self) -> tuple[float, float]:
        """The timeouts to connect and to read."""
        return self.connect_timeout_s, self.read_timeout_s

    def in_project(self, project_id: str) -> CinderSettings:
        """The same user in another project: what it creates there belongs to that project."""
        endpoint = self.endpoint and f"{root_of(self.endpoint)}/v3/{project_id}"
        if self.auth is None:
            return replace(self, endpoint=endpoint, project_id=project_id)
        who = {k: v for k, v in self.auth.items() if k.replace("-", "_") not in _SCOPE}
        return replace(
            self,
            endpoint=endpoint,
            auth={**who, "project_id": project_id},
            service_auth=self.service_auth or self.auth,
        )


def root_of(endpoint: str) -> str:
    """The URL before /v3, where the version document is."""
    return re.sub(r"/v3(/.*)?$", "", endpoint.rstrip("/"))
