"""What the service takes new while it runs: tokens of the settings, and TLS (ledger.auth.tls).

Files are looked at every few seconds and read when they have changed and are at rest.  What is in
them is taken whole or not at all.  Who may not ask any more loses his connections, and with them
the polls and streams that they hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple

import structlog

from host_agent.shared.platform.settings import ConfigError
from host_agent.shared.platform.tls import LOOK_S, Watched
from ledger.auth.reading import Reading
from ledger.auth.tls import service_tls
from ledger.auth.tokens import Identity, StaticTokens
from ledger.config import Settings

#: Ends the connections of those of whom that is true (ledger.http.limits.connections).
End = Callable[[Callable[[Identity], bool]], None]

_log = structlog.get_logger(__name__)


class SettingsReload(NamedTuple):
    """How the settings are read again.  `load` raises ConfigError."""

    file: Watched
    load: Callable[[], Settings]


class RenewedTokens:
    """[[tokens]] of the settings' file; all else in it counts from the next start on."""

    def __init__(self, settings: Settings, tokens: StaticTokens, again: SettingsReload) -> None:
        self._settings, self._tokens, self._again = settings, tokens, again
        self._trouble: str | None = None

    def look(self) -> frozenset[str]:
        """Take tokens that have changed; what those that are good no more were counted as."""
        if not self._again.file.changed():
            return frozenset()
        try:
            new = self._again.load()
        except ConfigError as error:
            self._trouble = "changed settings are not taken, the former go on; the log says why"
            _log.error("settings_not_taken", why=str(error), hint="the former ones go on")
            return frozenset()
        other = replace(new, tokens=self._settings.tokens) != self._settings
        in_more = "they have changed in more than [[tokens]]: restart for that"
        self._trouble = in_more if other else None
        gone = self._tokens.take(new.tokens)
        names = [token.name for token in new.tokens]
        _log.info("tokens_taken", names=names, gone=len(gone), restart_needed=other)
        return gone

    async def warning(self) -> str | None:
        """What is to be mended, for /readyz."""
        return self._trouble


class Renewal:
    """What is renewed of a service; `tls` None: it has no certificate."""

    def __init__(
        self, settings: Settings, clock: Callable[[], float], again: SettingsReload | None = None
    ) -> None:
        """`clock`: seconds since 1970; `again` None: there is no file.  Raises ConfigError."""
        self.tls = service_tls(settings.listen, clock)
        self.static = StaticTokens(settings)
        self._tokens = RenewedTokens(settings, self.static, again) if again else None
        self._reading = Reading()

    def warnings(self) -> dict[str, Callable[[], Awaitable[str | None]]]:
        """What is to be mended, by whom it concerns, for /readyz."""
        parts = {"tls": self.tls, "settings": self._tokens}
        own = {name: part.warning for name, part in parts.items() if part is not None}
        return {**own, "renewal": self._hangs}

    async def _hangs(self) -> str | None:
        hangs = self._reading.trouble()
        return hangs and f"the settings' file or those of TLS: {hangs}"

    async def run(self, end: End) -> None:
        """Look for what is new until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look(end)
            except Exception as error:  # noqa: BLE001 - the next look may be better
                _log.error("renewal_failed", exc_info=error)

    async def look(self, end: End) -> None:
        """Take what is new now."""
        if self.tls is not None and await self._reading.look(self.tls.look):
            end(lambda identity: identity.certified)
        if self._tokens is not None and (gone := await self._reading.look(self._tokens.look)):
            end(lambda identity: identity.counted_as in gone)
