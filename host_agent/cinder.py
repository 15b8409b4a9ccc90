"""Cinder behind the `Cinder` port, over the unmodified python-cinderclient.

A leaf: it imports the standard library, cinderclient, keystoneauth1 and the port.
All calls block; callers use threads, which may share one `CinderClient`.

Theory of operation
-------------------
* Every exception leaves as `PortError`; what it says about the world decides what
  may be done next (`error_of_status`).  Nothing else escapes, and no text of it or
  of a log holds connection information: bodies are never logged, not even at DEBUG.
* RETRYABLE failures are tried again here with exponential back-off, jitter, a bound
  on attempts and a deadline; UNKNOWN ones only for calls that may be done twice
  (LP 1970642: an update that met a 500 was never repeated).  `attachment_create` is
  never repeated: it takes no id of ours, so the caller looks for its orphan first.
* The microversion is agreed at first use: the highest that both know, at least 3.44
  (`os-complete`).  From 3.69 a volume's `shared_targets` may be null, which older
  microversions report as true (LP 1961102); both mean "take the lock".
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

from cinderclient import api_versions
from cinderclient import client as cinder_client
from cinderclient.contrib import noauth
from keystoneauth1 import exceptions as keystone_exceptions
from keystoneauth1 import loading, service_token, session

from host_agent.cinder_calls import Backoff, Retry, error_of_status, port_error, timeout_error
from host_agent.contract import ErrorKind
from host_agent.ports import AttachmentView, PortError, VolumeView

__all__ = [
    "Backoff",
    "CinderClient",
    "CinderSettings",
    "Retry",
    "attachment_view",
    "error_of_status",
    "port_error",
    "timeout_error",
    "volume_view",
]

T = TypeVar("T")

MIN_MICROVERSION = (3, 44)  # os-complete: without it there is no new attach flow
MAX_MICROVERSION = (3, 71)  # the newest whose meaning this adapter knows
PROJECT_OPTIONAL = (3, 67)  # below it, URLs must name the project
PAGE_ROWS = 50  # far below any sensible osapi_max_limit, so a short page is the last
PAGES_MAX = 20

_LOG = logging.getLogger(__name__)
_HTTP_LOG = logging.getLogger(__name__ + ".http")
_HTTP_LOG.setLevel(logging.INFO)  # at DEBUG keystoneauth would log bodies, secrets included


@dataclass(frozen=True, kw_only=True)
class CinderSettings:
    """Where Cinder is and who we are there.

    Either `endpoint` (noauth: the v3 URL, with or without a project in its path) or
    `auth`: options of a keystoneauth plugin ("auth_type", "auth_url", "username", ...),
    in which case the catalog tells the endpoint unless `endpoint` overrides it.
    `service_auth` are the options of the service token's user; None means `auth`.
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
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 120.0  # an update waits for the backend
    cacert: str | None = None
    insecure: bool = False
    backoff: Backoff = field(default_factory=Backoff)


# --- views ---------------------------------------------------------------------------------------


def volume_view(data: Mapping[str, Any]) -> VolumeView:
    """From Cinder's JSON; `shared_targets` that is absent (< 3.48) reads as None."""
    return VolumeView(
        id=data["id"],
        status=data["status"],
        size_gb=data["size"],
        multiattach=bool(data.get("multiattach")),
        shared_targets=data.get("shared_targets"),
        service_uuid=data.get("service_uuid"),
        bootable=str(data.get("bootable")).lower() == "true",
        encrypted=bool(data.get("encrypted")),
        availability_zone=data.get("availability_zone"),
        project_id=data.get("os-vol-tenant-attr:tenant_id"),
        name=data.get("name"),
        migration_status=data.get("migration_status"),
    )


def attachment_view(data: Mapping[str, Any]) -> AttachmentView:
    """From Cinder's JSON; connection_info stays as Cinder has it: flat, data beside type."""
    return AttachmentView(
        id=data["id"],
        volume_id=data["volume_id"],
        server_id=data["instance"],
        status=data["status"],
        connection_info=data.get("connection_info") or {},
    )


# --- session and microversion --------------------------------------------------------------------


class Dialogue:
    """One keystoneauth session, and the microversion agreed with the server."""

    def __init__(self, settings: CinderSettings) -> None:
        if settings.endpoint is None and settings.auth is None:
            raise ValueError("Cinder needs an endpoint (noauth) or auth options (Keystone)")
        self._settings = settings
        self._lock = threading.Lock()
        self._agreed: tuple[tuple[int, int], str | None] | None = None
        self._service_auth: Any = None
        self._session = session.Session(
            auth=self._auth(),
            verify=False if settings.insecure else settings.cacert or True,
            additional_headers=self._headers(),
        )
        # requests takes a pair; the constructor of Session only a number.
        self._session.timeout = (  # type: ignore[assignment]
            settings.connect_timeout_s,
            settings.read_timeout_s,
        )

    def _auth(self) -> Any:
        settings = self._settings
        if settings.auth is None:
            return noauth.CinderNoAuthPlugin(settings.user_id, self._project(), endpoint="")
        user_auth = _load_auth(settings.auth)
        if not settings.service_token:
            return user_auth
        self._service_auth = _load_auth(settings.service_auth or settings.auth)
        return service_token.ServiceTokenAuthWrapper(
            user_auth=user_auth, service_auth=self._service_auth
        )

    def _headers(self) -> dict[str, str]:
        # Cinder's noauth middleware believes this header; with Keystone a token says it.
        noauth_service = self._settings.auth is None and self._settings.service_token
        return {"X-Service-Roles": self._settings.service_role} if noauth_service else {}

    def _project(self) -> str:
        """In noauth the token must name the project that the URL names, if it does."""
        _, _, tail = (self._settings.endpoint or "").rstrip("/").partition("/v3/")
        return tail or self._settings.project_id

    def client(self) -> Any:
        """A client for one call: a client keeps the first answer's request id for ever."""
        version, endpoint = self._negotiate()
        return cinder_client.Client(
            api_versions.APIVersion(f"{version[0]}.{version[1]}"),
            session=self._session,
            os_endpoint=endpoint,
            region_name=self._settings.region_name,
            endpoint_type=self._settings.interface,
            logger=_HTTP_LOG,
        )

    def _negotiate(self) -> tuple[tuple[int, int], str | None]:
        with self._lock:
            if self._agreed is None:
                endpoint = self._endpoint()
                root = re.sub(r"/v3(/.*)?$", "", endpoint.rstrip("/"))
                version = agree(self._versions(root), root)
                override = self._settings.endpoint
                if override and self._settings.auth is None and version < PROJECT_OPTIONAL:
                    override = f"{root}/v3/{self._project()}"
                self._agreed = (version, override)
            return self._agreed

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
        raise error_of_status(answer.status_code, f"No version document at {root}.")

    def close(self) -> None:
        self._session.session.close()

    def check_service_token(self) -> None:
        """Raise FINAL `no_service_token` if Cinder would refuse our deletes.

        Since CVE-2023-2088 (LP 2004555) a connected attachment is deleted only for a
        service; whoever forgot that could no longer detach (LP 2019892).  With
        Keystone the service token's own roles are read; auth types that do not tell
        them are passed with a warning.
        """
        if not self._settings.service_token:
            text = "Cinder will refuse to detach: service_token is off. Switch it on."
            raise PortError(ErrorKind.FINAL, "no_service_token", text)
        if self._settings.auth is None:
            return
        try:
            roles = self._service_auth.get_access(self._session).role_names
        except AttributeError:
            _LOG.warning("the service token's roles cannot be read; detaching may be refused")
            return
        if self._settings.service_role not in roles:
            text = (
                f"Cinder will refuse to detach: the service user has no role "
                f"{self._settings.service_role!r}. Grant it, or set service_role to a role "
                "named in Cinder's service_token_roles."
            )
            raise PortError(ErrorKind.FINAL, "no_service_token", text)


def _load_auth(options: Mapping[str, Any]) -> Any:
    values = {name.replace("-", "_"): value for name, value in options.items()}
    plugin: Any = loading.get_plugin_loader(values.pop("auth_type", "password"))
    return plugin.load_from_options(**values)


def agree(document: Any, root: str) -> tuple[int, int]:
    """The microversion to speak, from Cinder's version document.

    Raises FINAL `cinder_too_old`, naming what was found, below 3.44.
    """
    found = [
        entry.get("version") or ""
        for entry in document["versions"]
        if str(entry.get("id", "")).startswith("v3")
    ]
    major, _, minor = (found[0] if found else "").partition(".")
    offered = (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)
    if offered < MIN_MICROVERSION:
        has = f"microversions up to {found[0]}" if found and found[0] else "no API v3"
        text = f"Cinder at {root} offers {has}; attachments need 3.44 (Cinder Queens) or newer."
        raise PortError(ErrorKind.FINAL, "cinder_too_old", text)
    return min(offered, MAX_MICROVERSION)


# --- the port ------------------------------------------------------------------------------------


class CinderClient:
    """The `Cinder` port over HTTP.  See the module's theory of operation."""

    def __init__(self, settings: CinderSettings, *, retry: Retry | None = None) -> None:
        self._dialogue = Dialogue(settings)
        self._retry = retry or Retry(settings.backoff)

    def _call(self, act: Callable[[Any], T], *, repeatable: bool = True) -> T:
        def attempt() -> T:
            try:
                return act(self._dialogue.client())
            except Exception as error:  # noqa: BLE001 - the port raises PortError and nothing else
                # "from None": the original may hold a response with connection information
                raise port_error(error) from None

        return self._retry.run(attempt, repeatable=repeatable)

    def check_service_token(self) -> None:
        """Start-up self-check: see `Dialogue.check_service_token`."""
        try:
            self._dialogue.check_service_token()
        except keystone_exceptions.ClientException as error:
            raise port_error(error) from None

    def volume(self, volume_id: str) -> VolumeView:
        return self._call(lambda cinder: volume_view(cinder.volumes.get(volume_id).to_dict()))

    def attachment(self, attachment_id: str) -> AttachmentView:
        return self._call(
            lambda cinder: attachment_view(cinder.attachments.show(attachment_id).to_dict())
        )

    def attachments(self, volume_id: str, server_id: str) -> list[AttachmentView]:
        """All of this volume and server, of any project, with connection information."""
        wanted = {"volume_id": volume_id, "instance_id": server_id, "all_tenants": "1"}
        rows: list[AttachmentView] = []
        for _page in range(PAGES_MAX):
            page = self._page(wanted, rows[-1].id if rows else None)
            rows += page
            if len(page) < PAGE_ROWS:
                return rows
        text = f"Volume {volume_id} has more than {len(rows)} attachments of one server."
        raise PortError(ErrorKind.FINAL, "too_many_attachments", text)

    def _page(self, wanted: dict[str, str], marker: str | None) -> list[AttachmentView]:
        def read(cinder: Any) -> list[AttachmentView]:
            found = cinder.attachments.list(
                detailed=True, search_opts=wanted, limit=PAGE_ROWS, marker=marker
            )
            return [attachment_view(item.to_dict()) for item in found]

        return self._call(read)

    def attachment_create(
        self, volume_id: str, server_id: str, connector: dict[str, Any] | None = None
    ) -> AttachmentView:
        """One attempt only, and no look before it: see the module's theory."""
        try:
            made = self._dialogue.client().attachments.create(volume_id, connector, server_id)
            return attachment_view(made)
        except Exception as error:  # noqa: BLE001 - as above
            raise port_error(error) from None

    def attachment_update(self, attachment_id: str, connector: dict[str, Any]) -> AttachmentView:
        return self._call(
            lambda cinder: attachment_view(
                cinder.attachments.update(attachment_id, connector).to_dict()
            )
        )

    def attachment_complete(self, attachment_id: str) -> None:
        self._call(lambda cinder: cinder.attachments.complete(attachment_id))

    def attachment_delete(self, attachment_id: str) -> None:
        """An attachment that is not there any more is success."""
        try:
            self._call(lambda cinder: cinder.attachments.delete(attachment_id))
        except PortError as error:
            if error.code != "not_found":
                raise

    def close(self) -> None:
        """Close the connections that are kept open; the client is of no use afterwards."""
        self._dialogue.close()
