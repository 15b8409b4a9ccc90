"""The fabric as its tests see it: two virtual machines, Cinder in one, and our service here."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from xml.etree import ElementTree as ET

import requests

from host_agent.shared.contract.messages import AGENT_HEADER

T = TypeVar("T")
SRC = Path(__file__).parent
SETTLE_S = 900  # for anything, under emulation on a busy machine
PROJECT = "11111111111111111111111111111111"
HOSTS = (1, 2)
OUTSIDE_S = 0.2  # how often our service and Cinder are asked, where nothing is emulated
BUSY = 503  # the service, of a Cinder that is slow under emulation
#: Without an operating system: on virtio-scsi QEMU lets go of a disk without asking the guest.
XML = f"""<domain type='qemu'><name>{{name}}</name><uuid>{{id}}</uuid>
  <metadata><nova:instance xmlns:nova='http://openstack.org/xmlns/libvirt/nova/1.1'>
    <nova:name>{{name}}</nova:name>
    <nova:owner><nova:user uuid='operator'>o</nova:user>
      <nova:project uuid='{PROJECT}'>p</nova:project></nova:owner>
  </nova:instance></metadata>
  <memory unit='MiB'>32</memory><vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features>
  <devices><controller type='pci' model='pcie-root'/>
    <controller type='pci' model='pcie-root-port'/><controller type='pci' model='pcie-root-port'/>
    <controller type='usb' model='none'/><controller type='scsi' index='0' model='virtio-scsi'/>
    <memballoon model='none'/></devices></domain>"""


def wait_until(condition: Callable[[], Any], what: str, every_s: float = 2.0) -> Any:
    """The first true answer; TimeoutError after SETTLE_S.

    Asked every 2 s: a question to a virtual machine costs the processor that it waits for.
    """
    end = time.monotonic() + SETTLE_S
    while not (answer := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {SETTLE_S} s: {what}")
        time.sleep(every_s)
    return answer


def settings() -> dict[str, str]:
    shown = subprocess.run(
        ["bash", "-c", f". '{SRC}/env.sh' && env -0"], check=True, capture_output=True, text=True
    )
    return dict(line.split("=", 1) for line in shown.stdout.split("\0") if "=" in line)


ENV = settings()
LEDGER = ENV["LEDGER_URL"]
CINDER = f"http://127.0.0.1:{ENV['LAB_CINDER_PORT']}/v3/{PROJECT}"


def host_name(number: int) -> str:
    return f"fabric-{number}"


def script(name: str, *words: str, on: int = 1) -> None:
    done = subprocess.run(
        [str(SRC / name), *words], env=ENV | {"FAB_VM": str(on)}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{name} {' '.join(words)}: {done.stdout} {done.stderr}"


def vm(command: str, text: str | None = None, *, on: int = 1, check: bool = True) -> str:
    """What a command in a virtual machine prints."""
    done = subprocess.run(
        [str(SRC / "vm.sh"), "run", command], env=ENV | {"FAB_VM": str(on)}, input=text or "",
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 or not check, f"{command}: {done.stdout} {done.stderr}"
    return done.stdout.strip()


def cinder(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    headers = {"X-Auth-Token": f"ledger:{PROJECT}", "OpenStack-API-Version": "volume 3.71"}
    return _asked(method, CINDER + path, headers, body)


def ledger(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    headers = {
        "X-Auth-Token": ENV["LAB_OPERATOR_TOKEN"],
        "OpenStack-API-Version": "compute 2.95",
    }
    return _asked(method, LEDGER + path, headers, body)


def _asked(method: str, url: str, headers: dict[str, str], body: dict[str, Any] | None) -> Any:
    def asked() -> list[requests.Response]:
        answer = requests.request(method, url, json=body, headers=headers, timeout=300)
        return [answer] if answer.status_code != BUSY else []  # nothing was begun: ask again

    [answer] = wait_until(asked, f"{method} {url} to be answered")
    assert answer.ok, f"{method} {url}: {answer.status_code} {answer.text}"
    return answer.json() if answer.text else {}


def register_old(number: int) -> None:
    """As an agent of before Cinder's attachments, whose host has no guests.

    It is where the agent was that has ended: a stranger waits until that one was silent for long.
    """
    place = vm(
        "/opt/agent/bin/python -c 'from pathlib import Path; from host_agent.locks import Locks; "
        'print(Locks(Path("/var/lib/agent/locks")).place())\'',
        on=number,
    )
    registration: dict[str, Any] = {"service_version": 0, "capabilities": {}, "guests": []}
    headers = {"X-Auth-Token": ENV["LAB_AGENT_TOKEN_2"], AGENT_HEADER: place}
    url = f"{LEDGER}/v1/hosts/{host_name(number)}"
    requests.put(url, json=registration, headers=headers, timeout=300).raise_for_status()


def volumes() -> dict[str, str]:
    """The status of each."""
    return {each["id"]: each["status"] for each in cinder("GET", "/volumes/detail")["volumes"]}


def backend(volume: str) -> str:
    found = cinder("GET", f"/volumes/{volume}")["volume"]
    return str(found["os-vol-host-attr:host"]).split("@")[1].split("#")[0]


def latest() -> list[Any]:
    return list(ledger("GET", "/v1/operations?limit=20")["operations"])


def operations() -> list[Any]:
    """Those that are under way, or parked."""
    return [each for each in latest() if each["state"] != "finished"]


def settled() -> None:
    wait_until(lambda: not operations(), "the operations to end", OUTSIDE_S)


def command(*words: str, code: int = 0) -> str:
    """Our own command line, as an operator; it ends with `code`."""
    program = f"{ENV['LAB_VENV']}/bin/attachment-ledger"
    done = subprocess.run([program, *words], env=ENV, check=False, capture_output=True, text=True)
    assert done.returncode == code, f"{' '.join(words)}: {done.stdout} {done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Server:
    """A server of the service, and its guest in a virtual machine."""

    name: str
    id: str

    @property
    def shown(self) -> Any:
        return ledger("GET", f"/v2.1/servers/{self.id}")["server"]

    @property
    def status(self) -> str:
        return str(self.shown["status"])

    @property
    def host(self) -> int:
        """The number of the virtual machine where the service has it."""
        return int(self.shown["OS-EXT-SRV-ATTR:host"][-1])

    def define(self, on: int = 1) -> None:
        """As a guest that somebody has defined there."""
        if self.name not in guests(on):
            xml = XML.format(**vars(self))
            vm("cat >/tmp/guest.xml; virsh -q define /tmp/guest.xml", xml, on=on)

    def start(self) -> None:
        """On the first, and paused all the time."""
        self.define()
        if "paused" not in vm(f"virsh domstate {self.name}"):
            vm(f"virsh -q start --paused {self.name}")

    def act(self, name: str, body: dict[str, Any] | None = None) -> None:
        ledger("POST", f"/v2.1/servers/{self.id}/action", {name: body})

    def wait_status(self, status: str) -> None:
        wait_until(lambda: self.status == status, f"{self.name} to be {status}", OUTSIDE_S)

    def attachments(self) -> list[str]:
        """The volumes of the server, by the service."""
        found = ledger("GET", f"/v2.1/servers/{self.id}/os-volume_attachments")
        return [each["volumeId"] for each in found["volumeAttachments"]]

    def ask_attach(self, volume: str) -> None:
        body = {"volumeAttachment": {"volumeId": volume, "device": self._free()}}
        ledger("POST", f"/v2.1/servers/{self.id}/os-volume_attachments", body)

    def ask_detach(self, volume: str) -> None:
        ledger("DELETE", f"/v2.1/servers/{self.id}/os-volume_attachments/{volume}")

    def sources(self, *, inactive: bool = False) -> dict[str, str]:
        """Of the guest's disks: the device, by the serial, which is the first volume's id."""
        found = {}
        for disk in self._xml("--inactive" if inactive else "").iterfind("devices/disk"):
            source = disk.find("source")
            if source is not None:
                found[str(disk.findtext("serial"))] = source.attrib["dev"]
        return found

    def size(self, serial: str) -> int:
        """Bytes, as the guest has it."""
        told = self._vm(f"virsh -q domblkinfo {self.name} {self._target(serial)}")
        return int(next(line.split()[1] for line in told.splitlines() if "Capacity" in line))

    def write(self, serial: str, pattern: int) -> None:
        """The second MiB of a disk, by QEMU's own way: what a guest that runs would write."""
        self._io(serial, f"write -P {pattern} 1M 1M")

    def reads(self, serial: str, pattern: int) -> bool:
        """Whether the guest reads there what it wrote."""
        return "Pattern verification failed" not in self._io(serial, f"read -P {pattern} 1M 1M")

    def _io(self, serial: str, command: str) -> str:
        # QEMU prints the answer itself, and so to its log.
        log = f"/var/log/libvirt/qemu/{self.name}.log"
        device = f"ua-{serial}"
        if self._target(serial).startswith("vd"):  # the device of PCI has it in one of its own
            device = f"/machine/peripheral/{device}/virtio-backend"
        asked = f"qemu-io -d {device} {json.dumps(command)}"
        send = f"virsh qemu-monitor-command {self.name} --hmp '{asked}'"
        told = self._vm(f"at=$(stat -c %s {log}); {send}; tail -c +$((at + 1)) {log}")
        assert "1 MiB, 1 ops" in told, told
        return told

    def _target(self, serial: str) -> str:
        targets = {
            disk.findtext("serial"): disk.find("target")
            for disk in self._xml().iterfind("devices/disk")
        }
        target = targets[serial]
        assert target is not None
        return target.attrib["dev"]

    def _free(self) -> str:
        taken = {each.attrib["dev"] for each in self._xml().iterfind("devices/disk/target")}
        return next(f"/dev/sd{letter}" for letter in "bcdefg" if f"sd{letter}" not in taken)

    def _xml(self, options: str = "") -> ET.Element:
        return ET.fromstring(self._vm(f"virsh -q dumpxml {self.name} {options}"))

    def _vm(self, command: str) -> str:
        return vm(command, on=self.host)


SERVERS = [Server(f"guest-{n}", f"77777777-2222-4333-8444-00000000000{n}") for n in (1, 2)]


def guests(on: int, *, running: bool = False) -> list[str]:
    """The names of those that run there, or of all that are defined or run."""
    return vm(f"virsh -q list --name {'--state-running' if running else '--all'}", on=on).split()


def lv(volume: str) -> str:
    """Where its data is, past the fabric."""
    return f"/dev/fab/volume-{volume}"


def beginning(device: str, *, on: int = 1) -> str:
    """What a volume says of itself: `make` has written its id to it, past the fabric."""
    return vm(f"dd if={device} bs=512 count=1 iflag=direct status=none | tr -d '\\0'", on=on)


def let_write(volume: str) -> None:
    """A guest that boots from it writes to it all the time (writer.S)."""
    vm(f"dd if=/opt/writer of={lv(volume)} bs=512 oflag=direct status=none")


def written(volume: str) -> int:
    """How often it has written, as the storage has it."""
    read = f"dd if={lv(volume)} bs=512 skip=1 count=1 iflag=direct status=none"
    return int(vm(f"{read} | od -An -tu4 -N4"))


def wait_written(volume: str) -> int:
    before = written(volume)
    wait_until(lambda: written(volume) > before, f"a guest to write to {volume}")
    return before


def missing(volume: str) -> str:
    """The first of its counts that the storage does not have."""
    read = f"dd if={lv(volume)} bs=512 skip=2049 count={written(volume)} iflag=direct status=none"
    return vm(f"{read} | od -An -v -tu4 -w512 | awk '$1 != NR {{ print NR; exit }}'")


def on_each(act: Callable[[int], T], hosts: Iterable[int] = HOSTS) -> list[T]:
    """What it answers for each host, by their processors at once."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(act, hosts))


def connected(*hosts: int) -> str:
    """Sessions, SCSI disks, maps, namespaces and records of connections: all that may be left."""
    return "\n".join(filter(None, on_each(_connected, hosts or HOSTS)))


def _connected(on: int) -> str:
    return vm(
        "cd /sys/class; for at in iscsi_session/* block/sd* block/nvme*; do"
        " [ ! -e $at ] || echo $at; done;"
        "grep -ls mpath block/dm-*/dm/uuid; find /var/lib/agent -name '*.json'",
        on=on,
    )


def sessions(on: int = 1) -> list[str]:
    return vm("cat /sys/class/iscsi_session/*/targetname 2>/dev/null || true", on=on).split()


def dies(on: int = 1) -> None:
    """The agent, where `/run/die` told it to."""
    running = "pgrep -F /var/lib/agent/locks/agent.lock || true"
    wait_until(lambda: not vm(f"ls /run/die 2>/dev/null; {running}", on=on), "the agent to die")


def log_end(on: int) -> str:
    lines = vm("tail -n 400 /var/log/agent.log", on=on, check=False).splitlines()
    return "\n".join([line for line in lines if '"level": "debug"' not in line][-40:])


def as_json(found: Any) -> str:
    return json.dumps(found, indent=1)


assert os.environ.get("LAB_TIER") == "fabric", "LAB_TIER=fabric is not set"
