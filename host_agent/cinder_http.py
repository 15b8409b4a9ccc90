"""What keystoneauth sends Cinder's calls with: requests, less what it does for browsers.

`requests.Session.request` reads the environment, the netrc and the cookies anew for each
call, and would follow redirects; that is most of what a call costs us.  Here the environment
(proxies, certificates) is read once for each origin.  There are no cookies, and no netrc:
Keystone's token says who we are.  Connections, their pool and their errors are requests'.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import requests

#: What keystoneauth asks of a session beside these it handles itself (redirects), or not at all.
_OF_THE_MESSAGE = ("headers", "data", "json", "params")


class Transport(requests.Session):
    """For keystoneauth's Session; may be shared by threads, as that is."""

    def __init__(self) -> None:
        super().__init__()
        self._environments: dict[tuple[str, str, Any, Any], dict[str, Any]] = {}

    def request(  # type: ignore[override]  # keystoneauth names all it gives
        self, method: str, url: str, **options: Any
    ) -> requests.Response:
        """Send and read the whole answer, whatever its status.  Raises requests' errors."""
        message = requests.PreparedRequest()
        message.prepare(method, url, **{k: options[k] for k in _OF_THE_MESSAGE if k in options})
        environment = self._environment(url, options.get("verify", True), options.get("cert"))
        answer = self.get_adapter(url).send(message, timeout=options.get("timeout"), **environment)
        answer.content  # noqa: B018 - reads it, and gives the connection back
        return answer

    def _environment(self, url: str, verify: Any, cert: Any) -> dict[str, Any]:
        origin = urlsplit(url)
        key = (origin.scheme, origin.netloc, verify, cert)
        if key not in self._environments:
            self._environments[key] = dict(
                self.merge_environment_settings(url, {}, False, verify, cert)
            )
        return self._environments[key]
