"""The lab's guests: domain definitions, a console to work in the guest, and what is true.

Theory of operation.  A guest is a persistent libvirt domain named "lab-...", its UUID is
the server id.  It is on one of two hosts, and what is asked of it is asked there; who has
it moved says so (`moved_to`).  The tiny Linux in it (guest.sh) runs one command per line
of its serial port.  `Console` reads that port through a non-blocking stream pumped by
libvirt's event loop, on a connection of its own: a thread blocked in `recv()` makes other
calls on the same connection stall until its next keep-alive.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from xml.etree import ElementTree as ET

import libvirt

from tests.lab.people import person
from tests.lab.settings import ENV, LAB_DIR, LOG_DIR

#: Name of each host, as the ledger and Cinder know it, to its libvirt.
HOSTS = {
    ENV["LAB_HOST"]: ENV["LAB_LIBVIRT_URI"],
    ENV["LAB_HOST_2"]: ENV["LAB_LIBVIRT_URI_2"],
}
BOOT_S = 180  # 4 s on an idle machine
COMMAND_S = 60
#: Root ports are where virtio disks are plugged in; each takes one device.
ROOT_PORTS = 6
MEMORY_MIB = 160
FAST_MIB_S = 1000

_started = threading.Lock()


def start_event_loop() -> None:
    """Run libvirt's event loop in a thread; needed before the first connection."""
    if not _started.acquire(blocking=False):
        return
    libvirt.virEventRegisterDefaultImpl()
    libvirt.registerErrorHandler(lambda _context, _error: None, None)

    def loop() -> None:
        while True:
            libvirt.virEventRunDefaultImpl()

    threading.Thread(target=loop, name="libvirt-events", daemon=True).start()


_connections: dict[str, libvirt.virConnect] = {}


def libvirt_of(host: str) -> libvirt.virConnect:
    """A living connection to the host's libvirtd: the one before may be gone with the host."""
    start_event_loop()
    known = _connections.get(host)
    if known is None or not known.isAlive():
        known = _connections[host] = libvirt.open(HOSTS[host])
    return known


def wait_until(
    condition: Callable[[], Any], what: str, deadline_s: float, poll_s: float = 0.05
) -> Any:
    """The first true answer of `condition`; TimeoutError naming `what` after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while not (answer := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {deadline_s} s: {what}")
        time.sleep(poll_s)
    return answer


def console_log(name: str) -> Path:
    return LOG_DIR / f"{name}.console"


def domain_xml(name: str, server_id: str, *, with_system: bool, root_ports: int) -> str:
    """A q35 machine with free root ports and a virtio-scsi controller.

    Without a system it boots from its first disk, if that has one (`Cloud.make_bootable`);
    otherwise nobody in the guest answers an unplug request.
    The metadata are Nova's: whose server it is.
    """
    owner = person("member")
    system = f"""<kernel>{LAB_DIR}/guest/vmlinux</kernel>
      <initrd>{LAB_DIR}/guest/initramfs.cpio</initrd>
      <cmdline>console=ttyS0 quiet nokaslr mitigations=off no_timer_check panic=-1</cmdline>"""
    return f"""<domain type='qemu'>
  <name>{name}</name><uuid>{server_id}</uuid>
  <metadata><nova:instance xmlns:nova='http://openstack.org/xmlns/libvirt/nova/1.1'>
    <nova:name>{name}</nova:name>
    <nova:owner><nova:user uuid='{owner.user_id}'>lab</nova:user>
      <nova:project uuid='{owner.project_id}'>lab</nova:project></nova:owner>
  </nova:instance></metadata>
  <memory unit='MiB'>{MEMORY_MIB}</memory><vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type>{system if with_system else ""}</os>
  <features><acpi/></features>
  <devices>
    <controller type='pci' model='pcie-root'/>
    {"<controller type='pci' model='pcie-root-port'/>" * root_ports}
    <controller type='usb' model='none'/>
    <controller type='scsi' index='0' model='virtio-scsi'/>
    <serial type='pty'><log file='{console_log(name)}' append='on'/><target port='0'/></serial>
    <memballoon model='none'/>
  </devices>
</domain>"""


class Console:
    """Runs one-line commands in the tiny guest, on the host it is on."""

    def __init__(self, server_id: str, host: str = ENV["LAB_HOST"]) -> None:
        start_event_loop()
        self._connection = libvirt.open(HOSTS[host])
        domain = self._connection.lookupByUUIDString(server_id)
        self._buffer = b""
        self._arrived = threading.Condition()
        self._stream = self._connection.newStream(libvirt.VIR_STREAM_NONBLOCK)
        domain.openConsole(None, self._stream, libvirt.VIR_DOMAIN_CONSOLE_FORCE)
        events = (
            libvirt.VIR_STREAM_EVENT_READABLE
            | libvirt.VIR_STREAM_EVENT_HANGUP
            | libvirt.VIR_STREAM_EVENT_ERROR
        )
        self._stream.eventAddCallback(events, self._pump, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for end in (self._stream.eventRemoveCallback, self._stream.abort, self._connection.close):
            with contextlib.suppress(libvirt.libvirtError):
                end()

    def _pump(self, stream: Any, _events: int, _opaque: object) -> None:
        try:
            data = stream.recv(4096)
        except libvirt.libvirtError:
            data = b""
        if data == -2:  # nothing there after all
            return
        if not data:
            with contextlib.suppress(libvirt.libvirtError):
                stream.eventRemoveCallback()
            return
        with self._arrived:
            self._buffer += data
            self._arrived.notify_all()

    def wait_booted(self) -> None:
        """Until the system answers; what it was asked before that is lost, or answered late."""
        asked = itertools.count()

        def answers() -> bool:
            mark = f"booted-{next(asked)}"
            self._stream.send(f"echo {mark}\n".encode())
            answer = re.compile(mark.encode() + rb"\r?\n#rc=0")
            with self._arrived:
                return self._arrived.wait_for(lambda: bool(answer.search(self._buffer)), 2)

        wait_until(answers, "the guest's system to answer", BOOT_S)

    def run(self, command: str, deadline_s: float = COMMAND_S) -> str:
        """The output of the command; RuntimeError if it fails, TimeoutError if silent."""
        with self._arrived:
            self._buffer = b""
        self._stream.send(command.encode() + b"\n")
        with self._arrived:
            done = self._arrived.wait_for(
                lambda: re.search(rb"#rc=(\d+)\r?\n", self._buffer), deadline_s
            )
            text = self._buffer.decode(errors="replace").replace("\r", "")
        if not done:
            raise TimeoutError(f"the guest did not answer {command!r}: {text[-200:]!r}")
        output, _, status = text.partition("#rc=")
        if int(status.split()[0]):
            raise RuntimeError(f"{command!r} in the guest: {output}")
        return output.strip()


class LabGuest:
    """One domain.  Disks are looked up by serial, which is the volume's id."""

    def __init__(
        self, name: str, server_id: str, host: str = ENV["LAB_HOST"], *, with_system: bool = False
    ) -> None:
        self.name, self.id, self.host = name, server_id, host
        self._log = console_log(name)
        self._with_system = with_system

    @classmethod
    def define(
        cls,
        name: str,
        *,
        host: str = ENV["LAB_HOST"],
        with_system: bool = True,
        root_ports: int = ROOT_PORTS,
    ) -> Self:
        """A new one, made past the service, as one that was there before it."""
        guest = cls(f"lab-{name}", str(uuid.uuid4()), host, with_system=with_system)
        guest._log.unlink(missing_ok=True)
        libvirt_of(host).defineXML(
            domain_xml(guest.name, guest.id, with_system=with_system, root_ports=root_ports)
        )
        return guest

    @property
    def domain(self) -> libvirt.virDomain:
        return libvirt_of(self.host).lookupByUUIDString(self.id)

    def start(self) -> None:
        before = self._boots()
        self.domain.create()
        if self._with_system:
            self.wait_booted(before + 1)

    def wait_booted(self, times: int = 1) -> None:
        """Until its system, whoever started it, has come up so many times.

        Where an agent has defined it anew its console is in no log (such a path is not taken over
        from another host): there it is asked.
        """
        if "<log " in self.domain.XMLDesc():
            wait_until(lambda: self._boots() >= times, f"the guest {self.name} to boot", BOOT_S)
        else:
            wait_until(self._has_console, f"the guest {self.name} to start", BOOT_S)
            with self.console() as console:
                console.wait_booted()

    def _has_console(self) -> bool:
        """Not before it runs."""
        with contextlib.suppress(libvirt.libvirtError), self.console():
            return True
        return False

    def _boots(self) -> int:
        return self._log.read_bytes().count(b"GUEST-READY") if self._log.exists() else 0

    def moved_to(self, host: str) -> None:
        """From now on it is looked for there."""
        self.host = host

    def running_on(self) -> list[str]:
        """The hosts on which it runs: never more than one, whatever happens."""
        return self._where(lambda domain: domain.state()[0] == libvirt.VIR_DOMAIN_RUNNING)

    def defined_on(self) -> list[str]:
        return self._where(lambda domain: bool(domain.isPersistent()))

    def _where(self, holds: Callable[[libvirt.virDomain], bool]) -> list[str]:
        found = []
        for host in HOSTS:
            with contextlib.suppress(libvirt.libvirtError):
                if holds(libvirt_of(host).lookupByUUIDString(self.id)):
                    found.append(host)
        return found

    def hold_migration(self) -> None:
        """From now on its live migrations take longer than any test, until let go."""
        self.domain.migrateSetMaxSpeed(1)

    def let_migration_go(self) -> None:
        self.domain.migrateSetMaxSpeed(FAST_MIB_S)

    def wait_migrating(self) -> None:
        def moving() -> bool:
            return bool(self.domain.jobInfo()[0] != libvirt.VIR_DOMAIN_JOB_NONE)

        wait_until(moving, f"the migration of {self.name} to begin", BOOT_S)

    def hold_copy(self, target: str) -> None:
        """Catch the copy of the disk when it begins; it then takes longer than any test."""
        wait_until(
            lambda: self.domain.blockJobInfo(target), f"{target} to be copied", BOOT_S, poll_s=0.01
        )
        self.domain.blockJobSetSpeed(target, 1)

    def let_copy_go(self, target: str) -> None:
        self.domain.blockJobSetSpeed(target, 0)

    def console(self) -> Console:
        return Console(self.id, self.host)

    def remove(self) -> None:
        """Wherever it is."""
        for host in HOSTS:
            for end in ("destroy", "undefine"):
                with contextlib.suppress(libvirt.libvirtError):
                    getattr(libvirt_of(host).lookupByUUIDString(self.id), end)()

    def disk(self, volume_id: str, *, persistent: bool = False) -> str | None:
        """Target name of the volume's disk in the live (or persistent) definition now."""
        return self._of_disk(volume_id, "target", "dev", persistent=persistent)

    def source(self, volume_id: str, *, persistent: bool = False) -> str | None:
        """The file behind it."""
        return self._of_disk(volume_id, "source", "file", persistent=persistent)

    def _of_disk(self, volume_id: str, part: str, word: str, *, persistent: bool) -> str | None:
        if not persistent and not self.domain.isActive():
            return None
        flags = libvirt.VIR_DOMAIN_XML_INACTIVE if persistent else 0
        tree = ET.fromstring(self.domain.XMLDesc(flags))
        for disk in tree.iterfind("devices/disk"):
            if disk.findtext("serial") == volume_id:
                found = disk.find(part)
                return None if found is None else found.get(word)
        return None

    def take_away(self, volume_id: str) -> None:
        """Remove the disk from the stopped guest's definition, behind the ledger's back."""
        self.domain.detachDeviceAlias(f"ua-{volume_id}", libvirt.VIR_DOMAIN_AFFECT_CONFIG)

    def read_only(self, volume_id: str) -> tuple[bool, bool]:
        """Whether the volume's disk is read-only: live, and in the definition."""
        found = []
        for flags in (0, libvirt.VIR_DOMAIN_XML_INACTIVE):
            tree = ET.fromstring(self.domain.XMLDesc(flags))
            disks = tree.iterfind("devices/disk")
            [disk] = [disk for disk in disks if disk.findtext("serial") == volume_id]
            found.append(disk.find("readonly") is not None)
        return found[0], found[1]

    def disks(self) -> tuple[int, int]:
        """Numbers of disks, live and persistent."""
        live = self.domain.XMLDesc(0).count("<disk ") if self.domain.isActive() else 0
        return live, self.domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE).count("<disk ")


def node_of(console: Console, volume_id: str) -> str | None:
    """Name of the volume's disk in the guest ("vda"), found by its serial; None if not there.

    virtio-blk shows the first 20 characters of the serial, scsi has it in a VPD page.
    """
    command = (
        "for d in /sys/block/*; do"
        " s=$(cat $d/serial 2>/dev/null; cat $d/device/vpd_pg80 2>/dev/null | tr -cd 0-9a-f-);"
        ' echo "$(basename $d) $s"; done'
    )
    for line in console.run(command).splitlines():
        name, _, serial = line.partition(" ")
        if serial and (volume_id.startswith(serial) or volume_id in serial):
            return name
    return None


def wait_node(console: Console, volume_id: str) -> str:
    return wait_until(lambda: node_of(console, volume_id), "the guest to see the disk", COMMAND_S)  # type: ignore[no-any-return]


def ignore_unplug(console: Console) -> None:
    """Make the guest deaf to requests to unplug PCI devices (ACPI's general purpose event 1)."""
    console.run("echo disable > /sys/firmware/acpi/interrupts/gpe01")


def was_asked_to_unplug(console: Console) -> bool:
    """Whether a request came that the guest ignored: the event stands unhandled."""
    return "STS" in console.run("cat /sys/firmware/acpi/interrupts/gpe01")


def heed_unplug(console: Console) -> None:
    """Listen again; what was asked meanwhile is forgotten, it does not happen late."""
    console.run("cd /sys/firmware/acpi/interrupts; echo clear > gpe01; echo enable > gpe01")
