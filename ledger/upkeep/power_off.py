"""Powers a host off by Redfish, and makes sure of it: a program to be run after a fence.

    python3 -m ledger.upkeep.power_off BMCS.toml < {"host": "compute-1"}

The file has a table for each host: `system`, the URL of its ComputerSystem resource (DSP0266),
which is https; `user`, `password_file`, and `ca_file`, if the machine's own authorities do not do.
A host is off if its BMC was told `ForceOff` and has then said `Off` twice, PAUSE_S apart, and
nothing else between.  A BMC that answers otherwise is asked, and told, again until DEADLINE_S are
over.  One that refuses our word, sends us elsewhere, or cannot prove who it is, is not asked again.

Exit codes: 0 off, 1 not seen off, 2 wrong settings.
"""

from __future__ import annotations

import json
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import requests
import urllib3
from requests.auth import HTTPBasicAuth

#: Between the two looks that have to see it off.
PAUSE_S = 5.0
#: All of it has to end before the service ends it (fencing.hook_s, 60 by default).
DEADLINE_S = 50.0
#: How long a connection, and an answer, may take; and how long between a failure and the next try.
CONNECT_S, ANSWER_S, AGAIN_S = 5.0, 10.0, 1.0
#: After so long a host that is still on is told again.
TOLD_S = 15.0
ANSWER_MAX = 1024 * 1024

_RESET = "#ComputerSystem.Reset"


class BmcRefusedError(Exception):
    """The BMC will not do it, however often it is asked; the message says why."""


class UnclearError(Exception):
    """The BMC gave no usable answer this time."""


@dataclass(frozen=True, kw_only=True)
class Bmc:
    """Who can power a host off."""

    system: str
    user: str
    password_file: str
    ca_file: str | None = None

    def __post_init__(self) -> None:
        if not self.system.startswith("https://"):
            raise ValueError("'system' is the URL of a ComputerSystem, and begins with https://")


class Redfish:
    """One BMC's calls.  They raise BmcRefusedError and UnclearError."""

    def __init__(self, bmc: Bmc) -> None:
        self._system = bmc.system.rstrip("/")
        self._session = requests.Session()
        self._session.trust_env = False  # neither a proxy nor a .netrc is asked
        password = Path(bmc.password_file).read_text().strip()
        self._session.auth = HTTPBasicAuth(bmc.user.encode(), password.encode())  # RFC 7617, 2.1
        self._session.verify = bmc.ca_file or True

    def power_state(self) -> str:
        """What it says: "On", "Off", "PoweringOff", ..."""
        return str(self._shown().get("PowerState"))

    def force_off(self) -> None:
        """Tell it to.  One that is off already may say that this is wrong, which says nothing."""
        actions = self._shown().get("Actions")
        action = actions.get(_RESET) if isinstance(actions, dict) else None
        target = action.get("target") if isinstance(action, dict) else None
        path = f"{self._system}/Actions/ComputerSystem.Reset"
        if isinstance(target, str) and target.startswith("/") and not target.startswith("//"):
            path = urljoin(self._system, target)  # never another machine's
        self._answer("POST", path, json={"ResetType": "ForceOff"})

    def _shown(self) -> dict[str, Any]:
        status, body = self._answer("GET", self._system)
        try:
            shown = json.loads(body)
        except ValueError:
            shown = None
        if status != HTTPStatus.OK or not isinstance(shown, dict):
            raise UnclearError(f"it answers {status}, and shows no system")
        return shown

    def _answer(self, method: str, url: str, **sent: Any) -> tuple[int, bytes]:
        timeouts = (CONNECT_S, ANSWER_S)
        try:
            with self._session.request(
                method, url, timeout=timeouts, allow_redirects=False, stream=True, **sent
            ) as answer:
                body = answer.raw.read(ANSWER_MAX, decode_content=True)
        except requests.exceptions.SSLError as error:
            raise BmcRefusedError(f"it cannot prove who it is: {error}") from error
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise UnclearError(f"no answer: {error}") from error
        if answer.is_redirect:
            raise BmcRefusedError(f"it answers {answer.status_code}, and sends us elsewhere")
        if answer.status_code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            raise BmcRefusedError(f"it answers {answer.status_code} to our user")
        return answer.status_code, body


def power_off(
    redfish: Redfish,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Power it off; what was seen.  Raises BmcRefusedError, and UnclearError at the deadline."""
    end, told_at, off_since, seen = clock() + DEADLINE_S, float("-inf"), None, "nothing"
    while clock() < end:
        try:
            if told_at == float("-inf") or (off_since is None and clock() - told_at > TOLD_S):
                redfish.force_off()
                told_at = clock()
            seen = redfish.power_state()
        except UnclearError as error:
            off_since, seen = None, str(error)
        if seen != "Off":
            off_since = None
            wait(AGAIN_S)
        elif off_since is None:
            off_since = clock()
            wait(PAUSE_S)
        elif clock() - off_since >= PAUSE_S:
            return f"the BMC was told ForceOff, and has said Off twice, {PAUSE_S:g} s apart"
    raise UnclearError(f"within {DEADLINE_S:g} s it was not seen off; last: {seen}")


def main(arguments: list[str]) -> int:
    """The host is named on the standard input.  The last line says what was seen, or why not."""
    try:
        [file] = arguments
        host = json.loads(sys.stdin.read())["host"]
        bmcs = tomllib.loads(Path(file).read_text())
        redfish = Redfish(Bmc(**bmcs[host]))
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        return _said(f"no BMC was asked, because the settings are wrong: {error!r}", 2)
    try:
        return _said(f"host {host}: {power_off(redfish)}", 0)
    except (BmcRefusedError, UnclearError) as error:
        return _said(f"host {host} was not seen off: {error}", 1)


def _said(text: str, code: int) -> int:
    sys.stdout.write(text + "\n")
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
