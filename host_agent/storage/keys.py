"""The `Keys` port: Barbican, and the fixed key of Cinder's ConfKeyManager.

Barbican's keys are read with a Keystone token of this host's user, because a host acts long after
the token of the volume's user has expired (nova LP 1905701).  The keys belong to the volumes'
projects, so Barbican's policy must let this user read them.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from uuid import UUID

from keystoneauth1 import exceptions as keystone_exceptions
from keystoneauth1 import noauth, session

from host_agent.shared.cinder.session import load_auth
from host_agent.shared.cinder.settings import CinderSettings
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import Keys, PortError
from host_agent.shared.platform import masking
from host_agent.shared.platform.settings import ConfigError

#: The id of ConfKeyManager's only key; a Cinder that now has Barbican may have used it before.
FIXED_KEY_ID = "00000000-0000-0000-0000-000000000000"

_HTTP_LOG = logging.getLogger(__name__ + ".http")
_HTTP_LOG.setLevel(logging.INFO)  # at DEBUG keystoneauth would log answers


class KeyManagers:
    """Both key managers, as far as they are configured."""

    def __init__(self, fixed_key: str = "", barbican: Keys | None = None) -> None:
        """`fixed_key` in hexadecimal, as in cinder.conf; ConfigError if it is not."""
        try:
            self._fixed = bytes.fromhex(fixed_key).hex()
        except ValueError:
            raise ConfigError("[keys] fixed_key is not in hexadecimal digits") from None
        self._barbican = barbican
        masking.learn({"fixed_key": [self._fixed, fixed_key]})

    def passphrase(self, key_id: str) -> str:
        if key_id == FIXED_KEY_ID and self._fixed:
            return self._fixed
        if key_id != FIXED_KEY_ID and self._barbican is not None:
            return self._barbican.passphrase(key_id)
        setting = "fixed_key_file" if key_id == FIXED_KEY_ID else "barbican"
        raise PortError(
            ErrorKind.FINAL,
            "no_key_manager",
            f"This host has no key manager for key {key_id}: set [keys] {setting} as in Cinder's "
            "[key_manager].",
        )


NO_KEYS: Keys = KeyManagers()


class Barbican:
    """OpenStack's key manager, at `endpoint` ("": from Keystone's catalog).

    The user is that of `settings.auth`; without it, noauth.  Keys are only read, so every failure
    is safe to retry.
    """

    def __init__(self, settings: CinderSettings, endpoint: str = "") -> None:
        self._settings = settings
        self._endpoint = endpoint
        self._session = session.Session(
            auth=load_auth(settings.auth) if settings.auth else noauth.NoAuth(),
            verify=False if settings.insecure else settings.cacert or True,
            timeout=settings.read_timeout_s,
        )

    def passphrase(self, key_id: str) -> str:
        """The key's bytes in hexadecimal, as in Nova and Cinder."""
        try:
            url = f"{self._root()}/v1/secrets/{UUID(key_id)}/payload"
            headers = {"Accept": "application/octet-stream"}
            answer = self._session.get(url, headers=headers, raise_exc=False, logger=_HTTP_LOG)
        except ValueError:  # not a UUID, so not Barbican's
            raise _refused(key_id, HTTPStatus.NOT_FOUND) from None
        except keystone_exceptions.ClientException as error:
            raise _unavailable(type(error).__name__) from None
        if answer.status_code == HTTPStatus.OK and answer.content:
            return str(answer.content.hex())
        raise _refused(key_id, answer.status_code)

    def _root(self) -> str:
        found = self._endpoint or self._session.get_endpoint(
            service_type="key-manager",
            interface=self._settings.interface.removesuffix("URL"),
            region_name=self._settings.region_name,
        )
        if not found:
            raise _unavailable("the catalog has no key-manager endpoint")
        return str(found).rstrip("/").removesuffix("/v1")


def _refused(key_id: str, status: int) -> PortError:
    if status == HTTPStatus.NOT_FOUND:
        text = f"Barbican has no key {key_id}: without it no host can read the volume."
        return PortError(ErrorKind.FINAL, "no_key", text)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        text = (
            f"Barbican does not let this host read key {key_id}: its policy must allow the user of "
            "[keys] auth to read the keys of volumes."
        )
        return PortError(ErrorKind.FINAL, "key_forbidden", text)
    return _unavailable(f"HTTP {status}")


def _unavailable(why: str) -> PortError:
    text = f"The key manager cannot be asked ({why}): see whether Barbican is up."
    return PortError(ErrorKind.RETRYABLE, "key_manager_unavailable", text)
