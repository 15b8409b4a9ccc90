"""The agent's line to the ledger: registers, subscribes to commands, delivers reports.

Theory of operation.  These go over the line, each retried for as long as it takes, with
bounded exponential back-off and jitter:

- the registration (`PUT /v1/hosts/{host}`): who we are and the whole inventory, at
  the start, after a lost connection, when the ledger says our epoch is stale, and
  whenever the inventory changed.  Only one task sends it, so that an older inventory
  never overtakes a newer one; an inventory that could not be read is not sent, for a
  guest that is missing from it counts as gone.  The answer may name leftovers (D7):
  they are cleared, and shown to be, before any command is asked for.
- the subscription (`GET .../commands`, long poll): the cursor is the highest position
  seen.  After every loss it goes back to 0 and the ledger tells all that is
  unfinished; what is already under way is recognised by the executor.
- the reports (`POST .../reports`), and the question who else uses a volume on this host
  (`GET .../volumes/{id}/users`), from worker threads, which wait for the answer.

Progress (`POST .../progress`) is told once and may get lost.

The memory used does not depend on how long the ledger is away: nothing is polled
while the executor's queue is full, and each worker holds one report.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from host_agent.context import Stopping
from host_agent.contract import (
    Command,
    ErrorKind,
    Registration,
    Report,
    StepError,
    WireError,
)
from host_agent.executor import Verdict
from host_agent.ledger_client import (
    REQUEST_S,
    Backoff,
    LedgerClient,
    LinkError,
    LinkSettings,
)
from host_agent.leftovers import Release
from host_agent.ports import PortError

#: A changed inventory is sent at most this often.
INVENTORY_PAUSE_S = 0.2
#: An unchanged one is sent again after so long: what the ledger made of it may have
#: changed meanwhile (a guest that came here while its former host still showed it).
REGISTER_AGAIN_S = 300.0

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


class StaleEpochError(Exception):
    """The ledger says that our epoch is old: register again."""


class Runner(Protocol):
    """What takes commands: the executor."""

    def submit(self, command: Command) -> bool: ...
    def forget_queued(self) -> None: ...


class Link:
    """One ledger, one host.  `run` until cancelled; `report`, `wake` from any thread."""

    def __init__(
        self,
        settings: LinkSettings,
        describe: Callable[[], Registration],
    ) -> None:
        self._settings = settings
        self._describe = describe
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ledger: LedgerClient | None = None
        self._runner: Runner | None = None
        self._epoch: int | None = None
        self._registered = asyncio.Event()
        self._wanted = asyncio.Event()  # the inventory may have changed
        self._closing = asyncio.Event()
        self._after = 0
        self._polling: asyncio.Task[None] | None = None
        self._resync_backoff = self._backoff()

    # --- for other threads --------------------------------------------------------------

    def is_current(self, epoch: int) -> bool:
        return epoch == self._epoch

    def wake(self) -> None:
        """The inventory may have changed."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wanted.set)

    def resync(self) -> None:
        """Ask again for everything unfinished: a run was dropped without its end known."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lose_later)

    def report(self, report: Report) -> Verdict:
        """Deliver a report and return what the ledger says to it; raises Stopping."""
        return self._wait_for(self._deliver, report)

    def others(self, volume_id: str, attachment_id: str) -> list[str]:
        """Who else uses the volume on this host (ports.Users); raises Stopping."""
        return self._wait_for(self._ask_users, volume_id, attachment_id)

    def progress(self, command: Command, done_bytes: int, total_bytes: int) -> None:
        """Tell how far a long step is, without waiting for it to arrive."""
        if self._loop is not None and not self._loop.is_closed():
            told = self._tell_progress(command, done_bytes, total_bytes)
            asyncio.run_coroutine_threadsafe(told, self._loop)

    def _wait_for(self, ask: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        if self._loop is None or self._loop.is_closed():
            raise Stopping
        future = asyncio.run_coroutine_threadsafe(ask(*args), self._loop)
        try:
            return future.result()
        except (asyncio.CancelledError, TimeoutError):
            raise Stopping from None

    # --- life -----------------------------------------------------------------------------

    async def run(self, runner: Runner, clear: Callable[[Release], None]) -> None:
        """Hold the line until cancelled or closed; `runner` and `clear` do what comes over it."""
        self._loop = asyncio.get_running_loop()
        self._runner = runner
        client = LedgerClient(self._settings)
        async with client as self._ledger, asyncio.TaskGroup() as tasks:
            lines = [
                tasks.create_task(self._keep_registered(clear), name="register"),
                tasks.create_task(self._take_commands(), name="commands"),
            ]
            await self._closing.wait()
            for line in lines:
                line.cancel()

    def close(self) -> None:
        """End `run`; reports still undelivered raise Stopping in their threads."""
        self._closing.set()

    # --- registration -----------------------------------------------------------------------

    async def _keep_registered(self, clear: Callable[[Release], None]) -> None:
        backoff = self._backoff()
        sent: Registration | None = None
        again_at = 0.0
        clock = asyncio.get_running_loop().time
        while True:
            self._wanted.clear()
            try:
                registration = await asyncio.to_thread(self._describe)
                known = registration == sent and self._registered.is_set()
                if not known or clock() >= again_at:
                    if release := await self._register(registration):
                        await asyncio.to_thread(clear, release)
                        await asyncio.sleep(backoff.next_s())  # then show what is left
                        continue
                    sent, again_at = registration, clock() + REGISTER_AGAIN_S
                backoff.reset()
            except PortError as error:
                _LOG.error("inventory not read, or leftovers not cleared: %s", error.message)
                await asyncio.sleep(backoff.next_s())
                continue
            except Stopping:
                return
            except LinkError as error:
                await self._pause(error, backoff)
                continue
            await self._until_wanted()

    async def _until_wanted(self) -> None:
        try:
            async with asyncio.timeout(self._settings.inventory_interval_s):
                await self._wanted.wait()
            await asyncio.sleep(INVENTORY_PAUSE_S)  # a burst of events is one change
        except TimeoutError:
            pass

    async def _register(self, registration: Registration) -> Release:
        """What is to be cleared before this host is registered; nothing: it is."""
        _, answer = await self._call("PUT", "", registration.to_wire())
        epoch, fenced = answer.get("epoch"), answer.get("fenced")
        if not isinstance(epoch, int) or not isinstance(fenced, bool):
            raise LinkError("the ledger's answer to the registration has no epoch or fenced")
        if self._epoch != epoch:
            self._epoch = epoch
            self._runs().forget_queued()  # given under another epoch
        if fenced:
            _LOG.warning(
                "host %s is fenced: it gets no new work until an operator unfences it",
                self._settings.host,
            )
        if release := Release.from_wire(answer.get("release")):
            self._lost()
        elif not self._registered.is_set():
            self._after = 0
            self._registered.set()
            host, guests = self._settings.host, len(registration.guests)
            _LOG.info("registered as %s, epoch %d, %d guests", host, epoch, guests)
        return release

    def _lost(self) -> None:
        """Register again before anything else; a poll under way is of no use any more."""
        self._registered.clear()
        self._wanted.set()
        if self._polling is not None:
            self._polling.cancel()

    def _lose_later(self) -> None:
        # With growing pauses: a command that is dropped each time must not spin.
        asyncio.get_running_loop().call_later(self._resync_backoff.next_s(), self._lost)

    # --- commands -----------------------------------------------------------------------------

    async def _take_commands(self) -> None:
        backoff = self._backoff()
        while True:
            await self._registered.wait()
            self._polling = asyncio.create_task(self._poll(), name="poll")
            try:
                await self._polling
                backoff.reset()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise  # it is us who are cancelled, not only the poll
            except StaleEpochError:
                _LOG.warning("the ledger raised this host's epoch: registering again")
                self._lost()
                await asyncio.sleep(backoff.next_s())
            except LinkError as error:
                self._lost()
                await self._pause(error, backoff)

    async def _poll(self) -> None:
        wait_s = self._settings.wait_s
        query = f"/commands?after={self._after}&epoch={self._epoch}&wait_s={wait_s:g}"
        status, answer = await self._call("GET", query, timeout_s=wait_s + REQUEST_S)
        if status == HTTPStatus.CONFLICT:
            raise StaleEpochError
        commands, after = answer.get("commands"), answer.get("after")
        if not isinstance(commands, list) or not isinstance(after, int):
            raise LinkError("the ledger's answer to the poll has no commands or after")
        for data in commands:
            await self._accept(data)
        self._after = after

    async def _accept(self, data: Any) -> None:
        try:
            command = _command(data)
        except WireError as error:
            _LOG.error("a command of the ledger is not understood: %s", error)
            await self._decline(data, str(error))
            return
        if not self.is_current(command.epoch):
            _LOG.warning("command %s of epoch %d ignored", command.id, command.epoch)
            return
        await asyncio.to_thread(self._runs().submit, command)

    async def _decline(self, data: Any, why: str) -> None:
        """Say so, if it can be made out whom to tell; else there is only the log."""
        try:
            report = Report.from_wire(
                {
                    **data,
                    "step": data["steps"][0]["name"],
                    "took_ms": 0,
                    "outputs": {},
                    "error": StepError(
                        kind=ErrorKind.FINAL, code="not_understood", message=why
                    ).to_wire(),
                }
            )
        except (WireError, TypeError, KeyError, IndexError):
            return
        await self._deliver(report)

    # --- reports --------------------------------------------------------------------------------

    async def _deliver(self, report: Report) -> Verdict:
        backoff = self._backoff()
        while not self._closing.is_set():
            try:
                status, answer = await self._call("POST", "/reports", report.to_wire())
            except LinkError as error:
                await self._pause(error, backoff)
                continue
            if status == HTTPStatus.OK and isinstance(answer.get("continue"), bool):
                self._resync_backoff.reset()
                return Verdict.CONTINUE if answer["continue"] else Verdict.STOP
            if answer.get("code") == "stale_epoch":
                self._lost()
            elif status != HTTPStatus.CONFLICT:
                _LOG.error(
                    "the ledger does not take report %s/%d %s (HTTP %d %s): run dropped",
                    report.operation_id,
                    report.run,
                    report.step,
                    status,
                    answer.get("code"),
                )
            return Verdict.STALE
        raise TimeoutError

    # --- questions and progress -----------------------------------------------------------------

    async def _ask_users(self, volume_id: str, attachment_id: str) -> list[str]:
        path = f"/volumes/{quote(volume_id)}/users?attachment_id={quote(attachment_id)}"
        backoff = self._backoff()
        while not self._closing.is_set():
            try:
                status, answer = await self._call("GET", path)
            except LinkError as error:
                await self._pause(error, backoff)
                continue
            servers = answer.get("servers")
            if status == HTTPStatus.OK and isinstance(servers, list):
                return servers
            raise PortError(
                ErrorKind.RETRYABLE,
                "users_unknown",
                f"The ledger does not say who else uses volume {volume_id} on this host "
                f"(HTTP {status} {answer.get('code')}): is it of this agent's version?",
            )
        raise TimeoutError

    async def _tell_progress(self, command: Command, done_bytes: int, total_bytes: int) -> None:
        body = {
            "operation_id": command.operation_id,
            "run": command.run,
            "done_bytes": done_bytes,
            "total_bytes": total_bytes,
        }
        with suppress(LinkError, TimeoutError):
            await self._call("POST", "/progress", body)

    # --- shared ---------------------------------------------------------------------------

    async def _call(
        self, method: str, path: str, body: Any = None, timeout_s: float = REQUEST_S
    ) -> tuple[int, dict[str, Any]]:
        assert self._ledger is not None, "run() has been started"
        if self._ledger.closed:
            raise TimeoutError("the agent stops")
        return await self._ledger.call(method, path, body, timeout_s)

    def _runs(self) -> Runner:
        assert self._runner is not None, "run() has been started"
        return self._runner

    def _backoff(self) -> Backoff:
        return Backoff(self._settings.backoff_first_s, self._settings.backoff_max_s)

    async def _pause(self, error: LinkError, backoff: Backoff) -> None:
        wait_s = self._settings.denied_retry_s if error.denied else backoff.next_s()
        _LOG.warning("%s; next try in %.1f s", error, wait_s)
        await asyncio.sleep(wait_s)


def _command(data: Any) -> Command:
    command = Command.from_wire(data)
    if not command.steps:
        raise WireError("'steps' is empty")
    return command
