"""libvirt as a Hypervisor: one connection, kept alive and opened again when it breaks.

Theory of operation.  libvirt's event loop runs in its own thread, from before the first connection.
All worker threads share one connection, which libvirt allows.  A call on a broken connection fails
(with LOST if it was to change something, because that may have happened).  The next call opens a
new connection and registers the event callbacks again.  Events only wake waiting threads: the state
is read from XML.

No streams are used: a thread that blocks in a stream stalls the other calls of the same connection
until its next keep-alive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import libvirt
import structlog

from host_agent.libvirt import disk_xml, flags, processes, secrets, sizes
from host_agent.libvirt.hypervisor import Domain, HypervisorError, Job, MigrationRoute, Trouble
from host_agent.shared.contract.messages import PowerState

#: A daemon without an answer for interval x count seconds counts as dead.
KEEPALIVE_S, KEEPALIVE_COUNT = 5, 4
#: A guest may start or stop while it is being read.
READS_MAX = 5

_LOG = structlog.get_logger(__name__)

_POWER = {
    libvirt.VIR_DOMAIN_NOSTATE: PowerState.NOSTATE,
    libvirt.VIR_DOMAIN_RUNNING: PowerState.RUNNING,
    libvirt.VIR_DOMAIN_BLOCKED: PowerState.RUNNING,
    libvirt.VIR_DOMAIN_PAUSED: PowerState.PAUSED,
    libvirt.VIR_DOMAIN_SHUTDOWN: PowerState.RUNNING,  # going down, not down yet
    libvirt.VIR_DOMAIN_SHUTOFF: PowerState.SHUTDOWN,
    libvirt.VIR_DOMAIN_CRASHED: PowerState.CRASHED,
    libvirt.VIR_DOMAIN_PMSUSPENDED: PowerState.PAUSED,
}
_HELD_BY_MIGRATION = (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION)
_TROUBLES = {
    libvirt.VIR_ERR_NO_DOMAIN: Trouble.DOMAIN_MISSING,
    libvirt.VIR_ERR_DEVICE_MISSING: Trouble.DEVICE_MISSING,
    libvirt.VIR_ERR_NO_SECRET: Trouble.SECRET_MISSING,
    libvirt.VIR_ERR_BLOCK_COPY_ACTIVE: Trouble.BUSY,
    libvirt.VIR_ERR_OPERATION_TIMEOUT: Trouble.BUSY,  # another job has the domain
}
#: If libvirt has no specific code, its text decides (checked with libvirt 6 to 11).
_TEXTS = (
    ("domain is not running", Trouble.DOMAIN_INACTIVE),
    ("domain is no longer running", Trouble.DOMAIN_INACTIVE),
    ("from qemu monitor", Trouble.DOMAIN_INACTIVE),  # it died during the request
    ("guest unexpectedly quit", Trouble.DOMAIN_INACTIVE),
    ("no target device", Trouble.DEVICE_MISSING),
    ("not found", Trouble.DEVICE_MISSING),
    ("already exists", Trouble.TARGET_TAKEN),
    ("already running", Trouble.DOMAIN_ACTIVE),
    ("block job", Trouble.BUSY),
    ("No more available PCI", Trouble.NO_FREE_PORT),
    ("in the process of unplug", Trouble.UNPLUGGING),
)
_HINTS = {
    Trouble.NO_FREE_PORT: " The guest has no free PCI port for another virtio disk: use an sdX "
    "name (virtio-scsi), or give the machine more pcie-root-port controllers.",
}


class Libvirt:
    """The Hypervisor behind `uri`.  Connects at the first call, and again when needed.

    `reads`: by libvirt's read-only connection, which changes nothing, whoever asks.
    """

    def __init__(self, uri: str, *, reads: bool = False) -> None:
        self._uri, self._reads = uri, reads
        self._lock = threading.Lock()
        self._connection: Any = None
        self._watchers: set[Watcher] = set()
        self._subscribers: list[Callable[[], None]] = []
        _start_event_loop()

    # --- Hypervisor -----------------------------------------------------------------------

    def domains(self) -> list[Domain]:
        with self._reading() as connection:
            found = [_read(domain) for domain in connection.listAllDomains(0)]
        return [domain for domain in found if domain is not None]

    def domain(self, server_id: str) -> Domain | None:
        with self._reading() as connection:
            return _found(connection, server_id)

    def process(self, server_id: str) -> bool:
        return processes.runs(server_id)

    def domain_at(self, uri: str, server_id: str) -> Domain | None:
        try:
            connection = libvirt.openReadOnly(uri)
        except libvirt.libvirtError as error:
            raise _translated(error, Trouble.UNREACHABLE) from error
        try:
            return _found(connection, server_id)
        except libvirt.libvirtError as error:
            raise _translated(error, Trouble.UNREACHABLE) from error
        finally:
            with suppress(libvirt.libvirtError):
                connection.close()

    def attach(self, server_id: str, disk: str, *, live: bool, persistent: bool) -> None:
        with self._changing(server_id) as domain:
            domain.attachDeviceFlags(disk, flags.affecting(live=live, persistent=persistent))

    def detach(self, server_id: str, disk: str, *, live: bool, persistent: bool) -> None:
        with self._changing(server_id) as domain:
            domain.detachDeviceFlags(disk, flags.affecting(live=live, persistent=persistent))

    @contextmanager
    def removal(self, server_id: str, alias: str | None) -> Iterator[Watcher]:
        watcher = Watcher(server_id, alias)
        with self._lock:
            self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            with self._lock:
                self._watchers.discard(watcher)

    def update(self, server_id: str, disk: str) -> None:
        with self._changing(server_id) as domain:
            domain.updateDeviceFlags(disk, libvirt.VIR_DOMAIN_AFFECT_CONFIG)

    def size(self, server_id: str, target: str) -> int:
        with self._changing(server_id) as domain:
            return int(domain.blockInfo(target, 0)[0])

    def sizes(self) -> dict[tuple[str, str], int]:
        with self._reading() as connection:
            return sizes.of_disks(connection)

    def resize(self, server_id: str, target: str, size: int) -> None:
        with self._changing(server_id) as domain:
            domain.blockResize(target, size, libvirt.VIR_DOMAIN_BLOCK_RESIZE_BYTES)

    def keep_secret(self, volume_id: str, passphrase: str) -> str:
        with self._asking() as connection:
            return secrets.keep(connection, volume_id, passphrase)

    def drop_secret(self, volume_id: str) -> None:
        with self._asking() as connection:
            secrets.drop(connection, volume_id)

    def secrets(self) -> list[str]:
        with self._reading() as connection:
            return secrets.ours(connection)

    def define(self, domain: str) -> None:
        with self._asking() as connection:
            connection.defineXML(domain)

    def undefine(self, server_id: str) -> None:
        with self._changing(server_id) as domain:
            domain.undefineFlags(flags.WITH_ALL)

    def start(self, server_id: str) -> None:
        with self._changing(server_id) as domain:
            domain.create()

    def shutdown(self, server_id: str) -> None:
        with self._changing(server_id) as domain:
            domain.shutdown()

    def destroy(self, server_id: str) -> None:
        with self._changing(server_id) as domain:
            domain.destroy()

    def suspend(self, server_id: str) -> None:
        with self._changing(server_id) as domain:
            domain.suspend()

    def resume(self, server_id: str) -> None:
        with self._changing(server_id) as domain:
            domain.resume()

    def migratable(self, server_id: str) -> tuple[str, str | None]:
        with self._changing(server_id) as domain:
            live = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE | flags.PASSWORDS_TOO)
            inactive = libvirt.VIR_DOMAIN_XML_INACTIVE | flags.PASSWORDS_TOO
            return live, domain.XMLDesc(inactive) if domain.isPersistent() else None

    def migrate(
        self, server_id: str, route: MigrationRoute, live: str, persistent: str | None
    ) -> None:
        parameters = {libvirt.VIR_MIGRATE_PARAM_DEST_XML: live}
        if persistent:
            parameters[libvirt.VIR_MIGRATE_PARAM_PERSIST_XML] = persistent
        if route.address:
            host = f"[{route.address}]" if ":" in route.address else route.address
            parameters[libvirt.VIR_MIGRATE_PARAM_URI] = f"tcp://{host}"
        known = libvirt.VIR_MIGRATE_UNSAFE if route.shared else 0
        with self._changing(server_id) as domain:
            domain.migrateToURI3(route.uri, parameters, flags.MIGRATE | known)

    def migration(self, server_id: str) -> Job | None:
        with self._reading() as connection:
            try:
                stats = connection.lookupByUUIDString(server_id).jobStats()
            except libvirt.libvirtError as error:
                off = error.get_error_code() == libvirt.VIR_ERR_OPERATION_INVALID
                if off or _is_gone(error):
                    return None
                raise
        outgoing = libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT
        if stats.get("type", 0) == 0 or stats.get(libvirt.VIR_DOMAIN_JOB_OPERATION) != outgoing:
            return None
        return Job(
            stats.get(libvirt.VIR_DOMAIN_JOB_DATA_PROCESSED, 0),
            stats.get(libvirt.VIR_DOMAIN_JOB_DATA_TOTAL, 0),
        )

    def abort_migration(self, server_id: str) -> None:
        with self._changing(server_id) as domain:
            domain.abortJob()

    def copy(self, server_id: str, target: str, disk: str) -> None:
        with self._changing(server_id) as domain:
            domain.blockCopy(target, disk, {}, flags.COPY)

    def copying(self, server_id: str, target: str) -> Job | None:
        with self._changing(server_id) as domain:
            info = domain.blockJobInfo(target, 0)
        return Job(info["cur"], info["end"]) if info else None

    def end_copy(self, server_id: str, target: str, *, switch: bool) -> None:
        with self._changing(server_id) as domain:
            domain.blockJobAbort(target, libvirt.VIR_DOMAIN_BLOCK_JOB_ABORT_PIVOT if switch else 0)

    def snapshot(self, server_id: str, target: str, path: str) -> None:
        with self._changing(server_id) as domain:
            wanted = disk_xml.snapshot_of(domain.XMLDesc(0), target, path)
            domain.snapshotCreateXML(wanted, flags.SNAPSHOT)

    def pull(self, server_id: str, target: str, base: str | None) -> None:
        with self._changing(server_id) as domain:
            how = flags.PULL if base else 0
            domain.blockRebase(target, base and f"{target}[{base}]", 0, how)

    def commit(self, server_id: str, target: str, top: str | None, base: str) -> None:
        how = flags.COMMIT if top else flags.COMMIT_FIRST
        with self._changing(server_id) as domain:
            domain.blockCommit(target, f"{target}[{base}]", top and f"{target}[{top}]", 0, how)

    def subscribe(self, callback: Callable[[], None]) -> None:
        self._subscribers.append(callback)

    # --- connection -----------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        connection = self._open()
        try:
            yield connection
        except libvirt.libvirtError as error:
            broken = self._drop_if_broken(connection, error)
            raise _translated(error, Trouble.UNREACHABLE if broken else None) from error

    @contextmanager
    def _asking(self) -> Iterator[Any]:
        connection = self._open()
        try:
            yield connection
        except libvirt.libvirtError as error:
            broken = self._drop_if_broken(connection, error)
            raise _translated(error, Trouble.LOST if broken else None) from error

    @contextmanager
    def _changing(self, server_id: str) -> Iterator[Any]:
        with self._reading() as connection:
            domain = connection.lookupByUUIDString(server_id)
        with self._asking():
            yield domain

    def _open(self) -> Any:
        with self._lock:
            if self._connection is None:
                try:
                    self._connection = self._connect()
                except libvirt.libvirtError as error:
                    raise HypervisorError(
                        Trouble.UNREACHABLE,
                        f"libvirt at {self._uri} cannot be reached: {error.get_error_message()}",
                    ) from error
            return self._connection

    def _connect(self) -> Any:
        connection = (libvirt.openReadOnly if self._reads else libvirt.open)(self._uri)
        connection.setKeepAlive(KEEPALIVE_S, KEEPALIVE_COUNT)
        connection.registerCloseCallback(self._on_close, None)
        for event, callback in (
            (libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._on_lifecycle),
            (libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED, self._on_removed),
            (libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVAL_FAILED, self._on_removal_failed),
            (libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED, lambda *_: self._wake()),
        ):
            connection.domainEventRegisterAny(None, event, callback, None)
        _LOG.info("libvirt_connected", uri=self._uri)
        return connection

    def _drop_if_broken(self, connection: Any, error: Any) -> bool:
        """Drop the connection if it is dead; whether it was."""
        alive = False
        with suppress(libvirt.libvirtError):
            alive = connection.isAlive() == 1
        rpc = error.get_error_domain() in (libvirt.VIR_FROM_RPC, libvirt.VIR_FROM_REMOTE)
        if alive and not rpc:
            return False
        self._forget(connection)
        return True

    def _forget(self, connection: Any) -> None:
        with self._lock:
            if self._connection is not connection:
                return
            self._connection = None
        _LOG.warning("libvirt_connection_lost", uri=self._uri)
        with suppress(libvirt.libvirtError):
            connection.close()

    # --- events, from libvirt's loop --------------------------------------------------------

    def _on_close(self, connection: Any, _reason: int, _opaque: Any) -> None:
        # Not in this thread: close() waits for callbacks, and this is one.
        threading.Thread(target=self._forget, args=(connection,), daemon=True).start()
        self._tell(None, None, removed=None)

    def _on_lifecycle(self, _c: Any, domain: Any, event: int, _detail: int, _o: Any) -> None:
        if event == libvirt.VIR_DOMAIN_EVENT_STOPPED:
            self._tell(domain.UUIDString(), None, removed=None)
        self._wake()

    def _on_removed(self, _c: Any, domain: Any, alias: str, _o: Any) -> None:
        self._tell(domain.UUIDString(), alias, removed=True)
        self._wake()

    def _on_removal_failed(self, _c: Any, domain: Any, alias: str, _o: Any) -> None:
        self._tell(domain.UUIDString(), alias, removed=False)

    def _tell(self, server_id: str | None, alias: str | None, *, removed: bool | None) -> None:
        with self._lock:
            watchers = [w for w in self._watchers if w.concerns(server_id, alias)]
        for watcher in watchers:
            watcher.tell(removed)

    def _wake(self) -> None:
        for callback in self._subscribers:
            callback()


class Watcher:
    """Waits for the end of one device's removal."""

    def __init__(self, server_id: str, alias: str | None) -> None:
        self._server_id, self._alias = server_id, alias
        self._ended = threading.Event()
        self._removed: bool | None = None

    def concerns(self, server_id: str | None, alias: str | None) -> bool:
        """None matches all: the connection is lost, or the guest stopped."""
        same_guest = server_id in (None, self._server_id)
        return same_guest and (alias is None or self._alias in (None, alias))

    def tell(self, removed: bool | None) -> None:
        self._removed = removed
        self._ended.set()

    def wait(self, timeout_s: float) -> bool | None:
        """See Removal.  Also ends, with None, if the guest stops or the connection breaks."""
        self._ended.wait(timeout_s)
        return self._removed


def _is_gone(error: Any) -> bool:
    """No such domain; or its id is not a UUID, so it is not a server's."""
    return error.get_error_code() in (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_INVALID_ARG)


def _found(connection: Any, server_id: str) -> Domain | None:
    try:
        return _read(connection.lookupByUUIDString(server_id))
    except libvirt.libvirtError as error:
        if _is_gone(error):
            return None
        raise


def _read(domain: Any) -> Domain | None:
    """The domain at one moment; None if it disappeared meanwhile."""
    try:
        for _ in range(READS_MAX):
            active, persistent = domain.isActive(), domain.isPersistent()
            state, reason = domain.state()
            seen = Domain(
                server_id=domain.UUIDString(),
                name=domain.name(),
                power_state=_POWER.get(state, PowerState.NOSTATE),
                stranded=(state, reason) == _HELD_BY_MIGRATION,
                live_xml=domain.XMLDesc(0) if active else None,
                persistent_xml=(
                    domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE) if persistent else None
                ),
            )
            # If the guest stopped meanwhile, its live XML would be its definition.
            if (active, persistent) == (domain.isActive(), domain.isPersistent()):
                return seen
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise
    raise HypervisorError(Trouble.BUSY, "The guest keeps starting and stopping.")


def _translated(error: Any, known: Trouble | None) -> HypervisorError:
    text = error.get_error_message() or "libvirt gave no reason"
    trouble = known or _TROUBLES.get(error.get_error_code())
    if trouble is None:
        trouble = next((kind for part, kind in _TEXTS if part in text), Trouble.OTHER)
    return HypervisorError(
        trouble, f"libvirt: {text} (code {error.get_error_code()}).{_HINTS.get(trouble, '')}"
    )


_loop_lock = threading.Lock()
_loop_started = False


def _start_event_loop() -> None:
    """Once per process, and before the first connection."""
    global _loop_started  # noqa: PLW0603 - libvirt's event loop is global itself
    with _loop_lock:
        if _loop_started:
            return
        libvirt.virEventRegisterDefaultImpl()
        libvirt.registerErrorHandler(lambda _context, _error: None, None)  # else to stderr
        threading.Thread(target=_loop, name="libvirt-events", daemon=True).start()
        _loop_started = True


def _loop() -> None:
    while True:
        libvirt.virEventRunDefaultImpl()
