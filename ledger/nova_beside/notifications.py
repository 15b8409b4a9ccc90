"""What Nova tells of its servers: a reason to look at one of them, and who asked for what is seen.

Theory of operation
-------------------
* oslo.messaging brings Nova's versioned notifications from a queue of our own, and takes nothing
  from others'.  It keeps a connection, and makes it again, in threads of its own: a bus that is
  away, or hangs, stops no look.
* They come late, twice, out of order, or never, and whoever may write to the bus may lie.  So one
  is read by its types, and kept until a look at everything that began after it has ended.
* Of each server that was told of there is one entry, however often it was; and there is a bound.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import structlog
from prometheus_client import Counter

from aggregates.base import NovaTold
from handlers.results.observed import Notice
from host_agent.shared.platform.settings import ConfigError

#: As Nova names them (its settings notifications.versioned_notifications_topics, control_exchange).
TOPIC, EXCHANGE = "versioned_notifications", "nova"
#: Servers that wait for a look at once; of others the next look at everything knows.
SERVERS_MAX = 20_000
#: What is kept of a server; an attach and its detach are four.
NOTICES_MAX = 16
#: How long after the listener has failed another one begins.
PAUSE_S = 5.0
#: How long its end is waited for.
STOP_S = 2.0
#: Told of each server every hour or so, and not because something became of it.
_EXISTS = "instance.exists"

_log = structlog.get_logger(__name__)

_Uuid = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")]
_Name = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{1,255}\Z")]


class _Device(msgspec.Struct):
    volume_id: _Uuid | None = None
    boot_index: int | None = None


class _DeviceObject(msgspec.Struct):
    data: _Device = msgspec.field(name="nova_object.data")


_Devices = Annotated[list[_DeviceObject], msgspec.Meta(max_length=1000)]


class _Server(msgspec.Struct):
    """What we read of InstancePayload, and of InstanceActionVolumePayload."""

    uuid: _Uuid
    volume_id: _Uuid | None = None
    action_initiator_user: _Name | None = None
    action_initiator_project: _Name | None = None
    request_id: _Name | None = None
    block_devices: _Devices | None = None


class _Payload(msgspec.Struct):
    data: _Server = msgspec.field(name="nova_object.data")


class _Notification(msgspec.Struct):
    event: _Name
    at: Annotated[str, msgspec.Meta(max_length=64)]
    payload: _Payload


def read(event: str, at: Any, payload: Any) -> tuple[str, Notice]:
    """The server's id, and what is told of it.  Raises ValueError for what Nova does not send."""
    message = {"event": event, "at": at, "payload": payload}
    told = msgspec.convert(message, _Notification)
    server = told.payload.data
    of = {each.data.volume_id: each.data.boot_index for each in server.block_devices or ()}
    return server.uuid, Notice(
        told=NovaTold(
            event=told.event,
            at=_moment(told.at),
            user_id=server.action_initiator_user,
            project_id=server.action_initiator_project,
            request_id=server.request_id,
        ),
        volume_id=server.volume_id,
        boot_indexes={id_: index for id_, index in of.items() if id_ and index and index > 0},
    )


def _moment(text: str) -> str:
    """oslo.messaging writes UTC, and does not say so."""
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    except OverflowError as error:
        raise ValueError(str(error)) from None


@dataclass
class _Heard:
    """`number`: of the last that was told of the server.  `due`: nobody has looked since."""

    number: int
    due: bool = True
    notices: deque[Notice] = field(default_factory=lambda: deque(maxlen=NOTICES_MAX))


class Notices:
    """What was told, by server.  Any thread puts, one takes.

    `counted`: by outcome, taken, refused, dropped (too many servers wait), other (of no server).
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[str, _Heard] = {}
        self._number = 0
        self._closed = False
        self.counted = Counter(
            "ledger_nova_notifications",
            "Notifications of Nova that came; outcome: taken, refused, dropped, other",
            ["outcome"],
            registry=None,
        )

    def hear(self, event: Any, at: Any, payload: Any) -> None:
        """Whatever it is: one that Nova does not send is refused, and told in the log."""
        if isinstance(event, str) and (not event.startswith("instance.") or event == _EXISTS):
            outcome = "other"
        else:
            try:
                outcome = "taken" if self._put(*read(event, at, payload)) else "dropped"
            except ValueError as error:
                outcome = "refused"
                _log.warning("notification_refused", why=str(error)[:200])
        self.counted.labels(outcome).inc()

    def _put(self, server_id: str, notice: Notice) -> bool:
        with self._changed:
            known = self._waiting.get(server_id)
            if known is None and len(self._waiting) >= SERVERS_MAX:
                return False
            self._number += 1
            waiting = self._waiting.setdefault(server_id, _Heard(self._number))
            waiting.number, waiting.due = self._number, True
            waiting.notices.append(notice)
            self._changed.notify()
            return True

    def take(self, wait_s: float) -> str | None:
        """A server to look at, the one that has waited longest first.  None: none came in time, or
        it is over (`close`).
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._due() is not None, wait_s)
            if (due := None if self._closed else self._due()) is not None:
                # It comes after all others when it is told of again.
                self._waiting[due] = waiting = self._waiting.pop(due)
                waiting.due = False
            return due

    def _due(self) -> str | None:
        return next((id_ for id_, each in self._waiting.items() if each.due), None)

    def of(self, server_id: str) -> list[Notice]:
        with self._changed:
            waiting = self._waiting.get(server_id)
            return list(waiting.notices) if waiting else []

    def close(self) -> None:
        """Nobody takes any more; who waits, or is about to, gets nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def mark(self) -> int:
        """Where we are; for `forget`."""
        with self._changed:
            return self._number

    def forget(self, mark: int, but: Collection[str]) -> None:
        """A look at everything has begun after that, and could tell of all servers `but` these."""
        with self._changed:
            for id_ in [id_ for id_, each in self._waiting.items() if each.number <= mark]:
                if id_ not in but:
                    del self._waiting[id_]


class Bus:
    """Where Nova tells it.  Raises ConfigError for a URL that oslo.messaging does not know."""

    def __init__(self, url: str, pool: str, hear: Callable[[Any, Any, Any], None]) -> None:
        try:
            with warnings.catch_warnings():
                # oslo.utils drags eventlet in, which nobody uses, and which complains at import.
                warnings.simplefilter("ignore")
                import oslo_messaging
            from oslo_config import cfg
        except ImportError:
            text = (
                "observe.notifications needs oslo.messaging: pip install '.[service,notifications]'"
            )
            raise ConfigError(text) from None
        self._messaging, self._url, self._pool, self._hear = oslo_messaging, url, pool, hear
        self._conf = cfg.ConfigOpts()
        self._conf([], default_config_files=[], default_config_dirs=[])  # nobody's but the URL
        self._heard = False
        try:
            self._transport()
        except (oslo_messaging.InvalidTransportURL, oslo_messaging.DriverLoadFailure, ValueError):
            text = "observe.notifications is no transport URL that oslo.messaging knows"
            raise ConfigError(text) from None

    def _transport(self) -> Any:
        return self._messaging.get_notification_transport(self._conf, self._url)

    @property
    def trouble(self) -> str | None:
        if self._heard:
            return None
        return "The bus of observe.notifications does not answer: looks alone see what Nova does"

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """For its length.  Whatever hangs is left to end by itself, and then hears nothing more."""
        ended = threading.Event()
        thread = threading.Thread(
            target=self._listen, args=(ended,), name="notifications", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(STOP_S)

    def _listen(self, ended: threading.Event) -> None:
        while not ended.is_set():
            try:
                self._listen_once(ended)
            except Exception as error:  # noqa: BLE001 - oslo.messaging names no class of them
                _log.warning("notifications_put_off", wait_s=PAUSE_S, why=type(error).__name__)
                ended.wait(PAUSE_S)

    def _listen_once(self, ended: threading.Event) -> None:
        target = self._messaging.Target(topic=TOPIC, exchange=EXCHANGE)
        transport = self._transport()
        listener = self._messaging.get_notification_listener(
            transport, [target], [_Endpoint(self._hear)], executor="threading", pool=self._pool
        )
        try:
            listener.start(override_pool_size=1)  # waits for as long as the bus is away
            self._heard = True
            ended.wait()
        finally:
            self._heard = False
            listener.stop()
            listener.wait()
            transport.cleanup()


class _Endpoint:
    """Whom oslo.messaging calls, by the priority of what came."""

    def __init__(self, hear: Callable[[Any, Any, Any], None]) -> None:
        self._hear = hear

    def info(self, _context: Any, _publisher: Any, event: Any, payload: Any, about: Any) -> None:
        self._hear(event, about.get("timestamp"), payload)

    error = info
