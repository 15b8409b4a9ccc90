"""The session with Cinder: endpoint, credentials, microversion, errors.

The base of the `Cinder` port's adapter (client.py) and of the lists (lists.py).

* Every exception becomes `PortError`, with the kind of the error (`error_of_status`).  Neither its
  text nor a log has connection information: bodies are never logged, not even at DEBUG.
* RETRYABLE errors are retried with exponential back-off, jitter, and limits of attempts and time;
  UNKNOWN ones only for idempotent calls (LP 1970642: an update that got a 500 was never repeated).
* The microversion is the highest of both sides, and read again now and then, so that an upgrade of
  Cinder needs no restart here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from http import HTTPStatus
from typing import Any, TypeVar

import structlog
from cinderclient import api_versions, exceptions
from cinderclient import client as cinder_client
from cinderclient.contrib import noauth
from keystoneauth1 import loading, service_token
from prometheus_client import Histogram

from host_agent.shared.cinder.answers import check
from host_agent.shared.cinder.calls import Retry, error_of_status, port_error
from host_agent.shared.cinder.http import session_of
from host_agent.shared.cinder.settings import CinderSettings, root_of
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError
from host_agent.shared.platform.lines import left_s

T = TypeVar("T")
Microversion = tuple[int, int]

MIN_MICROVERSION = (3, 0)  # the old flow's calls
MAX_MICROVERSION = (3, 71)  # the newest whose meaning this adapter knows
PROJECT_OPTIONAL = (3, 67)  # below it, URLs must name the project
VERSION_AGE_MAX_S = 300.0
ADMIN_ROLE = "admin"  # as Cinder's policy has it: context_is_admin

_LOG = structlog.get_logger(__name__)
_HTTP_LOG = logging.getLogger(__name__ + ".http")
_HTTP_LOG.setLevel(logging.INFO)  # at DEBUG keystoneauth would log bodies, secrets included


class Dialogue:
    """One keystoneauth session, and the microversion agreed with the server."""

    def __init__(
        self,
        settings: CinderSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        calls: Histogram | None = None,
    ) -> None:
        """`calls`: see session_of."""
        if settings.endpoint is None and settings.auth is None:
            raise ValueError("Cinder needs an endpoint (noauth) or auth options (Keystone)")
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._agreed: tuple[Microversion, str | None] | None = None
        self._agreed_until = 0.0
        self._asked = 0
        self._trouble: Exception | None = None
        self._own = threading.local()
        self._user_auth: Any = None
        self._service_auth: Any = None
        self._session = session_of(
            "cinder",
            calls,
            settings.timeout_s,
            auth=self._auth(),
            cacert=settings.cacert,
            insecure=settings.insecure,
        )
        self._session.additional_headers = self._headers()

    def _auth(self) -> Any:
        settings = self._settings
        if settings.auth is None:
            return noauth.CinderNoAuthPlugin(settings.user_id, self._project(), endpoint="")
        user_auth = self._user_auth = load_auth(settings.auth)
        if not settings.service_token:
            return user_auth
        self._service_auth = load_auth(settings.service_auth or settings.auth)
        return service_token.ServiceTokenAuthWrapper(
            user_auth=user_auth, service_auth=self._service_auth
        )

    def _headers(self) -> dict[str, str]:
        # Cinder's noauth middleware takes roles from this header; with Keystone a token has them.
        noauth_service = self._settings.auth is None and self._settings.service_token
        return {"X-Service-Roles": self._settings.service_role} if noauth_service else {}

    def _project(self) -> str:
        """With noauth the token must have the project of the URL, if that has one."""
        _, _, tail = (self._settings.endpoint or "").rstrip("/").partition("/v3/")
        return tail or self._settings.project_id

    def project(self) -> str | None:
        """The token's project."""
        if self._settings.auth is None:
            return self._project()
        found = self._session.get_project_id()
        return None if found is None else str(found)

    def user(self) -> str | None:
        """The token's user."""
        if self._settings.auth is None:
            return self._settings.user_id
        found = self._session.get_user_id()
        return None if found is None else str(found)

    def client(self) -> Any:
        """This thread's client, for one call."""
        agreed = self._negotiate()
        if getattr(self._own, "agreed", None) != agreed:
            self._own.client, self._own.agreed = self._made(*agreed), agreed
        client = self._own.client
        client.client.global_request_id = None  # else it would keep the first answer's
        return client

    def _made(self, version: Microversion, endpoint: str | None) -> Any:
        made = cinder_client.Client(
            api_versions.APIVersion(f"{version[0]}.{version[1]}"),
            session=self._session,
            os_endpoint=endpoint,
            region_name=self._settings.region_name,
            endpoint_type=self._settings.interface,
            logger=_HTTP_LOG,
        )
        made.client.request = _checked(made.client.request)
        return made

    def version(self) -> Microversion:
        return self._negotiate()[0]

    def _negotiate(self) -> tuple[Microversion, str | None]:
        """The agreed version and endpoint.  One thread renews them; the others use the old ones.

        If there are none yet, they wait for that thread's result, and do not ask one after another.
        """
        agreed, asked = self._agreed, self._asked
        if agreed is not None and self._clock() < self._agreed_until:
            return agreed
        wait_s = left_s() if agreed is None else 0.0
        if not self._lock.acquire(timeout=-1 if wait_s is None else wait_s):
            if agreed is None:
                text = "Cinder did not tell its versions in time; it was not asked for more."
                raise PortError(ErrorKind.RETRYABLE, "cinder_unavailable", text)
            return agreed
        try:
            if asked == self._asked:
                self._ask()
            if self._agreed is None:
                assert self._trouble is not None, "it was asked"
                raise self._trouble
            return self._agreed
        finally:
            self._lock.release()

    def _ask(self) -> None:
        """A failure keeps the version agreed before."""
        self._asked += 1
        self._agreed_until = self._clock() + VERSION_AGE_MAX_S
        try:
            self._agreed = self._agreement()
        except Exception as error:  # noqa: BLE001 - raised above, if there is no earlier version
            self._trouble = error

    def _agreement(self) -> tuple[Microversion, str | None]:
        """The microversion, and the endpoint if it is not the catalog's."""
        root = root_of(self._endpoint())
        version = agree(self._versions(root))
        override = self._settings.endpoint
        if override and self._settings.auth is None and version < PROJECT_OPTIONAL:
            override = f"{root}/v3/{self._project()}"
        return version, override

    def _endpoint(self) -> str:
        if self._settings.endpoint:
            return self._settings.endpoint
        found = self._session.get_endpoint(
            service_type="block-storage",
            interface=self._settings.interface.removesuffix("URL"),
            region_name=self._settings.region_name,
        )
        if not found:
            text = "Keystone's catalog has no block-storage endpoint for this region and interface."
            raise PortError(ErrorKind.RETRYABLE, "cinder_unavailable", text)
        return str(found)

    def _versions(self, root: str) -> Any:
        """The version document: at the root, or at /v3/ where a proxy hides the root."""
        for url in (f"{root}/", f"{root}/v3/"):
            answer = self._session.get(
                url, authenticated=False, raise_exc=False, logger=_HTTP_LOG, redirect=False
            )
            if answer.status_code in (HTTPStatus.OK, HTTPStatus.MULTIPLE_CHOICES):
                return answer.json()
            if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                break
        # /readyz shows the text to anybody, so it has no address.
        raise error_of_status(answer.status_code, "Cinder's endpoint has no version document.")

    def reach(self) -> None:
        """Read the server's versions now."""
        self._agreement()

    def close(self) -> None:
        self._session.session.close()

    def check_service_token(self) -> None:
        """Raise FINAL `no_service_token` if Cinder would refuse this client's deletions.

        Since CVE-2023-2088 (LP 2004555) only a service may delete a connected attachment; without a
        service token a detach fails (LP 2019892).  With Keystone the service token's roles are
        read; auth types without roles pass with a warning.
        """
        if not self._settings.service_token:
            text = "Cinder will refuse to detach: service_token is off. Switch it on."
            raise PortError(ErrorKind.FINAL, "no_service_token", text)
        if self._settings.auth is None:
            return
        try:
            roles = self._service_auth.get_access(self._session).role_names
        except AttributeError:
            _LOG.warning("service_token_roles_unknown", hint="Cinder may refuse to detach")
            return
        if self._settings.service_role not in roles:
            text = (
                f"Cinder will refuse to detach: the service user has no role "
                f"{self._settings.service_role!r}. Grant it, or set service_role to a role "
                "named in Cinder's service_token_roles."
            )
            raise PortError(ErrorKind.FINAL, "no_service_token", text)

    def sees_all_projects(self) -> bool:
        """Whether the user's roles allow lists of all projects.

        Without the role admin Cinder answers 200 with an empty list.  True if the roles are
        unknown: without Keystone, or with an auth type without roles.
        """
        if self._user_auth is None:
            return True
        try:
            return ADMIN_ROLE in self._user_auth.get_access(self._session).role_names
        except AttributeError:
            return True


def _checked(request: Callable[..., Any]) -> Callable[..., Any]:
    """A client's `request` that accepts only Cinder's own answers (shared.cinder.answers).

    Without a rate limit: keystoneauth's would block each call until the wall clock has reached the
    time at which the client was made, which takes hours after the clock was set back.
    """
    at_once = nullcontext()

    def checked(*args: Any, **kwargs: Any) -> Any:
        raising = kwargs.pop("raise_exc", True)
        answer, body = request(*args, raise_exc=False, rate_semaphore=at_once, **kwargs)
        sent = f"{kwargs.get('body')} {kwargs.get('json')}"
        check(answer.status_code, answer.text, body, path=str(args[0]), sent=sent)
        if raising and answer.status_code >= HTTPStatus.BAD_REQUEST:
            raise exceptions.from_response(answer, body)
        return answer, body

    return checked


def load_auth(options: Mapping[str, Any]) -> Any:
    """A keystoneauth plugin, from its options by name ("auth_type", "auth_url", ...)."""
    values = {name.replace("-", "_"): value for name, value in options.items()}
    plugin: Any = loading.get_plugin_loader(values.pop("auth_type", "password"))
    return plugin.load_from_options(**values)


def agree(document: Any) -> Microversion:
    """The microversion to use, from Cinder's version document.

    Raises FINAL `cinder_too_old` if there is no API v3 at all.
    """
    found = [
        entry.get("version") or ""
        for entry in document["versions"]
        if str(entry.get("id", "")).startswith("v3")
    ]
    major, _, minor = (found[0] if found else "").partition(".")
    offered = (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)
    if offered < MIN_MICROVERSION:
        text = "Cinder offers no API v3, which came with Cinder Mitaka: upgrade it."
        raise PortError(ErrorKind.FINAL, "cinder_too_old", text)
    return min(offered, MAX_MICROVERSION)


def _asked(ask: Callable[[], T]) -> T:
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - the port raises PortError and nothing else
        # "from None": the original may contain a response with connection information
        raise port_error(error) from None


class Caller:
    """The base of the adapters: client, errors and retries of each call."""

    def __init__(
        self,
        settings: CinderSettings,
        *,
        retry: Retry | None = None,
        calls: Histogram | None = None,
    ) -> None:
        self._settings = settings
        self._calls = calls
        self._dialogue = Dialogue(settings, calls=calls)
        self._retry = retry or Retry(settings.backoff)

    def _call(self, act: Callable[[Any], T], *, repeatable: bool = True) -> T:
        return self._retry.run(lambda: self._once(act), repeatable=repeatable)

    def _once(self, act: Callable[[Any], T]) -> T:
        return _asked(lambda: act(self._dialogue.client()))

    def check_service_token(self) -> None:
        """Start-up self-check: see `Dialogue.check_service_token`."""
        _asked(self._dialogue.check_service_token)

    def sees_all_projects(self) -> bool:
        """See `Dialogue.sees_all_projects`.  Raises PortError."""
        return _asked(self._dialogue.sees_all_projects)

    def reach(self) -> None:
        """Raises PortError unless Cinder (and Keystone, for the catalog) answers; one attempt."""
        _asked(self._dialogue.reach)

    def close(self) -> None:
        """Close the kept connections; the adapter cannot be used afterwards."""
        self._dialogue.close()
