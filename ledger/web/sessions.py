"""Who is logged in at the console: a token that only this process has, by a cookie.

The browser holds a random name, and no token: scripts cannot read it, other sites' requests do not
carry it (SameSite=Strict), and it is worth nothing elsewhere.  Here it is known by its hash alone.
The token is proven again with every request, as if it had been sent, so that what ends it ends the
session.  Sessions are of one process: behind several, a browser has to come back to the same.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

#: A session that nobody uses ends after so many seconds, and any after so many.
IDLE_S, AGE_S = 1_800.0, 28_800.0
#: Sessions of a process; of more the one unused for longest ends.
SESSIONS_MAX = 1_000


@dataclass
class _Session:
    token: str = field(repr=False)
    ends: float  # whatever happens
    used: float


class Sessions:
    """By the hash of what the cookie says, the one unused for longest first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()

    def begin(self, token: str) -> str:
        """A session with a token that is proven; what its cookie is to say."""
        name, now = secrets.token_urlsafe(32), self._clock()
        self._sessions[_hash(name)] = _Session(token, now + AGE_S, now)
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return name

    def token(self, name: str) -> str | None:
        """The token of the session that a cookie names; None if there is none any more."""
        key, now = _hash(name), self._clock()
        session = self._sessions.get(key)
        if session is None:
            return None
        if now >= min(session.ends, session.used + IDLE_S):
            del self._sessions[key]
            return None
        session.used = now
        self._sessions.move_to_end(key)
        return session.token

    def end(self, name: str) -> None:
        """Log out."""
        self._sessions.pop(_hash(name), None)


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
