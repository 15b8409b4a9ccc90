"""attachment-ledger-agent: the agent on a hypervisor host, which does the host's steps."""

from __future__ import annotations

import argparse
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import structlog

from host_agent import config, metrics
from host_agent.clock import StopClock
from host_agent.config import AgentSettings
from host_agent.executor import Executor, Hooks
from host_agent.late_requests import FileMarks
from host_agent.leftovers import LeftoversRelease
from host_agent.libvirt import domain_xml
from host_agent.libvirt.guests import HypervisorGuests
from host_agent.line.client import LedgerClient, LinkError, credentials_of
from host_agent.line.link import Link
from host_agent.line.surveys import send
from host_agent.locks import BOOT_ID, AgentRunningError, Locks
from host_agent.metrics import LineState, Numbers
from host_agent.shared.cinder.client import CinderClient
from host_agent.shared.contract.messages import CONNECTOR_KEYS, SERVICE_VERSION, Registration
from host_agent.shared.contract.ports import Brick, Guests, PortError
from host_agent.shared.contract.survey import CAPABILITY, HostsWord
from host_agent.shared.faults import FaultError, Faults
from host_agent.shared.platform import logs, notify
from host_agent.shared.platform.clocks import FarClock
from host_agent.shared.platform.lines import open_calls
from host_agent.shared.platform.process import PrintBuild, answer_signals
from host_agent.shared.platform.settings import ConfigError, NotNowError
from host_agent.storage.kernel import KernelStorage
from host_agent.storage.port import Storage
from host_agent.storage.records import FileRecords
from host_agent.survey import Surveyor
from host_agent.verbs.context import Ports

EXIT_NOT_NOW = 1  # a full disk, for example: it may pass, so systemd restarts the agent
EXIT_CONFIG = 2  # it stays so until an operator fixes it, so systemd does not restart
EXIT_RUNNING = 3
#: Errors that last; also a `lock_path` that cannot be a directory.
_LASTING = (ConfigError, FaultError, FileExistsError, NotADirectoryError, PermissionError)

_SET = "any other setting"
_SEND = "send it to the ledger, instead; of a host that a Nova manages"
_SIMULATED = "simulate os-brick and libvirt, with the host's state in this JSON file"

_LOG = structlog.get_logger("host_agent")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        settings = config.load(arguments.config, flags=_flags(arguments))
        logs.set_up(settings.agent.log_level, settings.agent.log_format)
        if arguments.command == "survey":
            return _survey(settings, arguments)
        credentials_of(settings.link(), FarClock())  # os-brick takes seconds to load, in vain then
        locks = Locks(Path(settings.agent.lock_path))
        with locks.agent():
            return _serve(settings, locks, _host(settings, arguments))
    except (AgentRunningError, PortError, LinkError, OSError, *_LASTING) as error:
        print(f"attachment-ledger-agent: {error}", file=sys.stderr)
        return _exit_code(error)


def _exit_code(error: Exception) -> int:
    if isinstance(error, AgentRunningError):
        return EXIT_RUNNING
    lasts = isinstance(error, _LASTING) and not isinstance(error, NotNowError)
    return EXIT_CONFIG if lasts else EXIT_NOT_NOW


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="attachment-ledger-agent", description=__doc__)
    parser.add_argument("--version", action=PrintBuild, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(required=True, metavar="command")
    run = commands.add_parser("run", help="serve this host until SIGTERM")
    look = commands.add_parser("survey", help="print what this host has, in JSON; change nothing")
    look.add_argument("--send", action="store_true", help=_SEND)
    for name, command in (("run", run), ("survey", look)):
        command.set_defaults(command=name)
        add = command.add_argument
        add("--config", type=Path, metavar="FILE", help="agent.toml")
        add("--host", help="overrides [agent] host")
        add("--lock-path", help="overrides [agent] lock_path")
        add("--log-level", choices=["debug", "info", "warning", "error"])
        add("--ledger-url", help="overrides [ledger] url")
        add("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help=_SET)
        add("--simulated", type=Path, metavar="STATE", help=_SIMULATED)
    run.add_argument("--faults", type=Path, metavar="FILE", help="fault rules, with --simulated")
    return parser


def _flags(arguments: argparse.Namespace) -> dict[str, str]:
    flags = {
        "agent.host": arguments.host,
        "agent.lock_path": arguments.lock_path,
        "agent.log_level": arguments.log_level,
        "ledger.url": arguments.ledger_url,
    }
    for item in arguments.set:
        key, equals, value = item.partition("=")
        if not equals or "." not in key:
            raise ConfigError(f"--set {item}: expected SECTION.KEY=VALUE")
        flags[key] = value
    return {key: value for key, value in flags.items() if value is not None}


@dataclass(frozen=True)
class _Host:
    """The adapters of this host; `migration`: how guests migrate to it, if they can."""

    brick: Brick
    guests: HypervisorGuests
    storage: Storage
    drivers: list[str]
    migration: dict[str, str] | None

    def capabilities(self) -> dict[str, Any]:
        able = {"multiattach": True, "tag": True, CAPABILITY: True, "drivers": self.drivers}
        return {**able, "migration": self.migration} if self.migration else able


def _host(settings: AgentSettings, arguments: argparse.Namespace) -> _Host:
    """Imports inside: os-brick and libvirt load slowly, and are not needed when simulated."""
    if arguments.faults and not arguments.simulated:
        raise ConfigError("--faults needs --simulated")
    if arguments.simulated:
        from host_agent.simulated.adapters import SimulatedBrick, SimulatedGuests, SimulatedStorage
        from host_agent.simulated.host_state import SCHEME, HostState

        store = HostState(arguments.simulated)
        counts = arguments.simulated.with_name(arguments.simulated.name + ".faults")
        faults = Faults.load(arguments.faults, counts) if arguments.faults else Faults()
        host = settings.agent.host
        brick = SimulatedBrick(store, faults, host)
        here = {"uri": f"{SCHEME}{arguments.simulated.absolute()}", "address": "127.0.0.1"}
        guests = SimulatedGuests(store, faults, host)
        storage = SimulatedStorage(store, faults, host)
        return _Host(brick, guests, storage, ["simulated"], settings.migration() or here)
    try:
        from host_agent.libvirt.driver import Libvirt
        from host_agent.storage.brick import OsBrick
    except ImportError as error:
        raise _lacking(error) from error

    os_brick = OsBrick(settings.brick, settings.agent.host, Path(settings.agent.lock_path))
    hypervisor = domain_xml.HostCapabilities(
        settings.libvirt.virt_type, settings.libvirt.kernel_dir
    )
    libvirt = HypervisorGuests(Libvirt(settings.libvirt.uri), settings.patience(), hypervisor)
    return _Host(os_brick, libvirt, KernelStorage(), os_brick.drivers(), settings.migration())


def _lacking(error: ImportError) -> ConfigError:
    return ConfigError(
        f"{error}: a real host needs the extra 'agent' "
        "(pip install 'attachment-ledger[agent]'); or try --simulated"
    )


def _ports(
    settings: AgentSettings, host: _Host, link: Link, records: FileRecords, numbers: Numbers
) -> Ports:
    return Ports(
        host=settings.agent.host,
        cinder=CinderClient(settings.cinder, calls=numbers.calls),
        brick=host.brick,
        guests=host.guests,
        users=link,
        storage=host.storage,
        keys=settings.key_managers(),
        records=records,
        sent=FileMarks(Path(settings.agent.lock_path) / "sent"),
        multiattach=host.capabilities()["multiattach"],
    )


@contextmanager
def _numbers_shown(settings: AgentSettings, numbers: Numbers, link: Link) -> Iterator[None]:
    """Serve the metrics page, if the settings say where."""

    def state() -> LineState:
        clock = link.ledger_clock.reading()
        return LineState(link.registered, clock and clock[1], link.credentials.ending())

    if not settings.metrics.port:
        yield
        return
    with metrics.serving(settings.metrics.host, settings.metrics.port, numbers.registry(state)):
        yield


def _survey(settings: AgentSettings, arguments: argparse.Namespace) -> int:
    """Print or send the host's survey, without a lock or a new file."""
    began = time.monotonic()
    guests: Guests
    storage: Storage
    if arguments.simulated:
        from host_agent.simulated.adapters import SimulatedGuests, SimulatedStorage
        from host_agent.simulated.host_state import HostState

        store, name = HostState(arguments.simulated), settings.agent.host
        guests = SimulatedGuests(store, Faults(), name)
        storage = SimulatedStorage(store, Faults(), name)
    else:
        try:
            from host_agent.libvirt.driver import Libvirt
        except ImportError as error:
            raise _lacking(error) from error
        libvirt, storage = Libvirt(settings.libvirt.uri, reads=True), KernelStorage()
        guests = HypervisorGuests(libvirt, settings.patience())
    kept = Path(settings.agent.lock_path) / "connections"
    records = FileRecords(kept) if kept.is_dir() else {}
    surveyor = Surveyor(guests, records, storage, BOOT_ID.read_text().strip())
    shown = surveyor.survey(epoch=0)
    if arguments.send:
        send(LedgerClient(settings.link()), shown, began)
    else:
        word = HostsWord(host=settings.agent.host, survey=shown)
        print(msgspec.json.encode(word).decode())
    return 0


def _serve(settings: AgentSettings, locks: Locks, host: _Host) -> int:
    answer_signals()
    records = FileRecords(Path(settings.agent.lock_path) / "connections")
    capabilities = host.capabilities()

    @cache
    def connector() -> dict[str, str]:
        connector = host.brick.connector()
        return {key: str(connector[key]) for key in CONNECTOR_KEYS if connector.get(key)}

    def describe() -> Registration:
        return Registration(
            service_version=SERVICE_VERSION,
            capabilities=capabilities,
            guests=tuple(sorted(host.guests.inventory(), key=lambda guest: guest.server_id)),
            connections=tuple(records),
            connector=connector(),
        )

    surveyor = Surveyor(host.guests, records, host.storage, BOOT_ID.read_text().strip())
    link = Link(
        replace(settings.link(), agent=locks.place()), describe, surveyor.survey, host.guests.guest
    )
    numbers = Numbers()
    ports = _ports(settings, host, link, records, numbers)
    hooks = Hooks(
        report=numbers.counting(link.report),
        is_current=link.is_current,
        progress=link.progress,
        guests_changed=link.wake,
        dropped=link.resync,
        occurred=link.occurred,
    )
    ending = threading.Event()
    leftovers = LeftoversRelease(ports, locks, StopClock(ending))
    executor = Executor(ports, locks, hooks, limits=settings.limits(), waits=settings.waits())
    host.guests.subscribe(link.wake)
    stop: SimpleQueue[None] = SimpleQueue()  # handlers of signals may put into it
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.put(None))
    executor.start()
    answer_signals(lambda: [*executor.state(), _standing(link), *open_calls()])
    with (
        _woken_by_signals() as (woken, wake),
        _numbers_shown(settings, numbers, link),
        ThreadPoolExecutor(1, thread_name_prefix="line") as threads,
    ):
        line = threads.submit(link.run, executor, leftovers.clear)
        line.add_done_callback(lambda _line: stop.put(None))
        line.add_done_callback(lambda _line: wake())
        notify.tell("READY=1")
        _watched(stop, woken)
        ending.set()
        _LOG.info("stopping", grace_s=settings.agent.stop_grace_s)
        notify.tell("STOPPING=1")
        if not executor.stop(settings.agent.stop_grace_s):
            _LOG.warning("steps_interrupted", hint="the ledger sends their commands again")
        link.close()
        line.result()
    return 0


def _standing(link: Link) -> str:
    return f"Ledger: {'' if link.registered else 'not '}in contact"


@contextmanager
def _woken_by_signals() -> Iterator[tuple[socket.socket, Callable[[], None]]]:
    """A socket that becomes readable at a signal, and a function that makes it readable.

    The kernel delivers a signal to any thread, but Python's handlers run only in the main thread,
    which would not wake up if it waited for a lock.
    """
    woken, waking = socket.socketpair()

    def wake() -> None:
        with suppress(BlockingIOError):  # full, so it is readable
            waking.send(b"\0")

    with woken, waking:
        for each in (woken, waking):
            each.setblocking(False)
        signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
        try:
            yield woken, wake
        finally:
            signal.set_wakeup_fd(-1)


def _watched(stop: SimpleQueue[None], woken: socket.socket) -> None:
    """Wait until stopped, and tell systemd's watchdog that the process still runs."""
    while stop.empty():
        notify.tell("WATCHDOG=1")
        select.select([woken], [], [], notify.watchdog_s())
        with suppress(BlockingIOError):
            woken.recv(4096)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.exit(code)
