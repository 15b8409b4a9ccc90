"""Asks Glance whether a user may write an image to a volume.

Cinder reads the image as the service's user, who as an administrator may read all images.  So the
service asks Glance first, with the user's token: Glance's policy decides what is public, shared or
the user's own.  The token is used for this one call, and is not stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from keystoneauth1 import session
from prometheus_client import Histogram

from host_agent.shared.cinder.http import session_of
from host_agent.shared.cinder.session import load_auth
from host_agent.shared.cinder.settings import CinderSettings
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import GIB, PortError

#: What Glance says of an image that there is not, at all or for whoever asks.
_REFUSALS = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED})


@dataclass(frozen=True)
class Image:
    """`room_gb`: the smallest volume that it fits into, in GiB."""

    room_gb: int


class Images:
    """Glance, found in the catalog of Cinder's Keystone.  Threads may share it."""

    def __init__(self, settings: CinderSettings, calls: Histogram) -> None:
        self._settings = settings
        self._session = None
        if settings.auth is not None:
            self._session = session_of(
                "glance",
                calls,
                settings.timeout_s,
                auth=load_auth(settings.auth),
                cacert=settings.cacert,
                insecure=settings.insecure,
            )

    @property
    def known(self) -> bool:
        """Whether there is a Keystone that can say where Glance is."""
        return self._session is not None

    def image(self, image_id: str, token: str | None) -> Image | None:
        """The image, if the owner of this token (None: the service) may use it.  Raises PortError.
        Blocks.
        """
        assert self._session is not None, "it is known"
        theirs = {"X-Auth-Token": token} if token is not None else {}
        try:
            answer = self._session.get(
                f"{self._root(self._session)}/v2/images/{image_id}",
                headers={**theirs, "Accept": "application/json"},
                authenticated=token is None,
                raise_exc=False,
                redirect=False,
                log=False,  # it would log the token
            )
            if answer.status_code in _REFUSALS:
                return None
            shown = answer.json() if answer.status_code == HTTPStatus.OK else {}
            if shown.get("id") == image_id:
                return _image(shown) if shown.get("status") == "active" else None
        except Exception:  # noqa: BLE001 - of keystoneauth, of what it reads, of the network
            raise _away() from None
        raise _away()

    def _root(self, asked: session.Session) -> str:
        found = asked.get_endpoint(
            service_type="image",
            interface=self._settings.interface.removesuffix("URL"),
            region_name=self._settings.region_name,
        )
        return str(found or "").rstrip("/").removesuffix("/v2")

    def close(self) -> None:
        if self._session is not None:
            self._session.session.close()


def _image(shown: dict[str, Any]) -> Image:
    """The limits that Cinder's check_image_metadata compares with a volume."""
    size = max(int(shown.get(name) or 0) for name in ("size", "virtual_size"))
    return Image(room_gb=max(-(-size // GIB), int(shown.get("min_disk") or 0)))


def _away() -> PortError:
    text = "Whether the image may be used is not known: Glance, or Keystone, does not answer."
    return PortError(ErrorKind.RETRYABLE, "glance_unavailable", text)
