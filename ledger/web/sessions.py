"""Who is logged in at the console: a token that only this process has, by a cookie.

The browser holds a random name, and no token: scripts cannot read it, other sites' requests do not
carry it (SameSite=Strict), and it is worth nothing elsewhere.  Here it is known by its hash alone.
The token is proven again with every request, as if it had been sent, so that what ends it ends the
session.  Sessions are of one process: behind several, a browser has to come back to the same.

There are so many, and each user has a share of them: whoever logs in often ends sessions of its
own.  When all together are too many, one ends of whoever has most.

A form that does something is of a session, too: its name is in it, nobody else knows it, and what
it stands for is done once, however often it is sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

#: A session that nobody uses ends after so many seconds, and any after so many.
IDLE_S = 1_800.0
AGE_S = 28_800.0
#: Sessions of a process; of more one ends of who has most, the one unused for longest.
SESSIONS_MAX = 1_000
#: Of these, a user's; of more the one of its own that is unused for longest ends.
SESSIONS_OF_USER_MAX = 50
#: Forms of a session that can be sent; of more the one shown first is no good any more.
FORMS_MAX = 50


@dataclass
class Form:
    """One that was shown.  `led_to`: where its sender went, once what it is for was done."""

    path: str
    doing: asyncio.Lock = field(default_factory=asyncio.Lock)
    led_to: str | None = None


@dataclass
class _WebSession:
    token: str = field(repr=False)
    owner: str = field(repr=False)
    ends: float  # whatever happens
    used: float
    forms: OrderedDict[str, Form] = field(default_factory=OrderedDict, repr=False)


class Sessions:
    """By the hash of what the cookie says, the one unused for longest first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: OrderedDict[bytes, _WebSession] = OrderedDict()

    def begin(self, token: str, owner: str) -> str:
        """A session with a token that is proven; what its cookie is to say.

        Without a token, "", it is for forms alone: who asks shows otherwise who it is.  `owner`: as
        what the user is counted.
        """
        self._make_room(owner)
        name, now = secrets.token_urlsafe(32), self._clock()
        self._sessions[_hash(name)] = _WebSession(token, owner, now + AGE_S, now)
        return name

    def token(self, name: str, *, used: bool = True) -> str | None:
        """The token of the session that a cookie names; None if there is none any more.

        `used`: by somebody, and not by a page that is left open.
        """
        session = self._live(name, used=used)
        return session.token if session else None

    def shown(self, name: str, path: str) -> str | None:
        """The name of a new form, which is to be sent to this path; None without a session."""
        session = self._live(name)
        if session is None:
            return None
        form = secrets.token_urlsafe(32)
        session.forms[form] = Form(path)
        while len(session.forms) > FORMS_MAX:
            session.forms.popitem(last=False)
        return form

    def sent(self, name: str, form: str, path: str) -> Form | None:
        """The form of this session and path that is called so; None: it is nobody's."""
        session = self._live(name)
        found = session.forms.get(form) if session else None
        return found if found and found.path == path else None

    def end(self, name: str) -> None:
        """Log out."""
        self._sessions.pop(_hash(name), None)

    def _make_room(self, owner: str) -> None:
        counts = Counter(session.owner for session in self._sessions.values())
        if counts[owner] < SESSIONS_OF_USER_MAX:
            if len(self._sessions) < SESSIONS_MAX:
                return
            [(owner, _)] = counts.most_common(1)
        oldest = next(key for key, each in self._sessions.items() if each.owner == owner)
        del self._sessions[oldest]

    def _live(self, name: str, *, used: bool = True) -> _WebSession | None:
        key, now = _hash(name), self._clock()
        session = self._sessions.get(key)
        if session is None:
            return None
        if now >= min(session.ends, session.used + IDLE_S):
            del self._sessions[key]
            return None
        if used:
            session.used = now
            self._sessions.move_to_end(key)
        return session


def _hash(name: str) -> bytes:
    """A cookie may say any bytes, which are no text then (PEP 383)."""
    return hashlib.sha256(name.encode(errors="surrogateescape")).digest()
