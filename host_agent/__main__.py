"""attachment-ledger-agent: the process on a hypervisor that does the host's part."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from host_agent import config, log
from host_agent.cinder import CinderClient
from host_agent.config import ConfigError, Settings
from host_agent.contract import SERVICE_VERSION, Registration
from host_agent.executor import Executor, Hooks, World
from host_agent.faults import FaultError, Faults
from host_agent.guests import HypervisorGuests
from host_agent.link import Link
from host_agent.locks import AgentRunningError, Locks
from host_agent.ports import Brick, PortError

EXIT_CONFIG = 2
EXIT_RUNNING = 3

_LOG = logging.getLogger("host_agent")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        settings = config.load(arguments.config, flags=_flags(arguments))
        log.set_up(settings.agent.log_level, settings.agent.log_format)
        locks = Locks(Path(settings.agent.lock_path))
        with locks.agent():
            brick, guests, drivers = _host(settings, arguments)
            return asyncio.run(_serve(settings, locks, brick, guests, drivers))
    except AgentRunningError as error:
        print(f"attachment-ledger-agent: {error}", file=sys.stderr)
        return EXIT_RUNNING
    except (ConfigError, FaultError, PortError, ValueError, OSError) as error:
        print(f"attachment-ledger-agent: {error}", file=sys.stderr)
        return EXIT_CONFIG


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="attachment-ledger-agent", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    run = commands.add_parser("run", help="serve this host until SIGTERM")
    run.add_argument("--config", type=Path, metavar="FILE", help="agent.toml")
    run.add_argument("--host", help="overrides [agent] host")
    run.add_argument("--lock-path", help="overrides [agent] lock_path")
    run.add_argument("--log-level", choices=["debug", "info", "warning", "error"])
    run.add_argument("--ledger-url", help="overrides [ledger] url")
    run.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="any other setting"
    )
    run.add_argument(
        "--simulated",
        type=Path,
        metavar="STATE",
        help="simulate os-brick and libvirt, with the host's state in this JSON file",
    )
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


def _host(
    settings: Settings, arguments: argparse.Namespace
) -> tuple[Brick, HypervisorGuests, list[str]]:
    """The adapters of this host.  The real ones load os-brick and libvirt, slowly."""
    if arguments.faults and not arguments.simulated:
        raise ConfigError("--faults needs --simulated")
    if arguments.simulated:
        from host_agent.simulated import SimulatedBrick, SimulatedGuests
        from host_agent.simulated_state import Store

        store = Store(arguments.simulated)
        counts = arguments.simulated.with_name(arguments.simulated.name + ".faults")
        faults = Faults.load(arguments.faults, counts) if arguments.faults else Faults()
        host = settings.agent.host
        brick = SimulatedBrick(store, faults, host)
        return brick, SimulatedGuests(store, faults, host), ["simulated"]
    from host_agent.brick import OsBrick
    from host_agent.libvirt_driver import Libvirt

    os_brick = OsBrick(settings.brick, settings.agent.host, Path(settings.agent.lock_path))
    guests = HypervisorGuests(Libvirt(settings.libvirt.uri), settings.patience())
    return os_brick, guests, os_brick.drivers()


async def _serve(
    settings: Settings, locks: Locks, brick: Brick, guests: HypervisorGuests, drivers: list[str]
) -> int:
    def describe() -> Registration:
        return Registration(
            service_version=SERVICE_VERSION,
            capabilities={"multiattach": True, "tag": True, "drivers": drivers},
            guests=tuple(sorted(guests.inventory(), key=lambda guest: guest.server_id)),
        )

    link = Link(settings.link(), describe)
    hooks = Hooks(
        report=link.report,
        is_current=link.is_current,
        disks_moved=link.wake,
        dropped=link.resync,
    )
    world = World(cinder=CinderClient(settings.cinder), brick=brick, guests=guests)
    executor = Executor(world, locks, hooks, limits=settings.limits(), waits=settings.waits())
    guests.subscribe(link.wake)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    executor.start()
    line = asyncio.create_task(link.run(executor))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({line, stopped}, return_when=asyncio.FIRST_COMPLETED)
    _LOG.info("stopping: running steps are finished, nothing new is begun")
    if not await asyncio.to_thread(executor.stop, settings.agent.stop_grace_s):
        _LOG.warning("some steps still run; the ledger hands their runs out again")
    link.close()
    await line
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.exit(code)
