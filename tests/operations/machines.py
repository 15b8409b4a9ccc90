"""Bare machines of Debian 12 in one network: systemd-nspawn boots them, each with its own disk.

All have one base of mmdebstrap, from this machine's mirror, which they reach through this machine.
Nobody is at their consoles: commands are typed by root or by the user `ops`.  Root, Debian 12.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.stack import eventually

NET, BRIDGE = "10.93.0", "operations0"
#: This machine, as the others see it.
OUTSIDE = f"{NET}.1"
HOME = Path("/var/tmp/attachment-ledger-operations")
#: Where everything is typed.
DESK = "/srv"
#: Until systemd has started what it starts; until an installation is over.
BOOT_S, LINE_S = 180.0, 1800.0
_SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
#: As small as it can be and boot: what else a command needs, the page has to install.
_INCLUDED = "systemd-sysv,iproute2"
#: Nobody is there to say yes, and what is only recommended is not there.
_APT = 'APT::Get::Assume-Yes "true"; APT::Install-Recommends "false";'
_MADE = (
    f"echo '{_APT}' > \"$1/etc/apt/apt.conf.d/90unattended\"",
    'chroot "$1" systemctl enable systemd-networkd',
    'chroot "$1" useradd --create-home --shell /bin/bash ops',
    f'chroot "$1" install -d -o ops {DESK}',
)
_OUT = (
    "table ip operations { chain out { type nat hook postrouting priority 100; "
    f"ip saddr {NET}.0/24 ip daddr != {NET}.0/24 masquerade; }}; }}"
)
_WIRE = """\
[Match]
Name=host0
[Link]
MTUBytes={mtu}
[Network]
Address={address}/24
Gateway={gateway}
"""
_FORWARDS = Path("/proc/sys/net/ipv4/ip_forward")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Machine:
    """What is typed there, and its power."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.address = name, f"{NET}.{number}"
        self._home = HOME / name
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def desk(self) -> Path:
        return self._home / "root" / DESK[1:]

    def make(self, hosts: str) -> None:
        """Its disk, over the base."""
        root = self._home / "root"
        for name in ("root", "upper", "work"):
            (self._home / name).mkdir(parents=True)
        layers = f"lowerdir={HOME}/base,upperdir={self._home}/upper,workdir={self._home}/work"
        run("mount", "-t", "overlay", self.name, "-o", layers, str(root))
        (root / "etc/hostname").write_text(f"{self.name}\n")
        (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        (root / "etc/resolv.conf").write_text(Path("/etc/resolv.conf").read_text())
        wire = _WIRE.format(address=self.address, gateway=OUTSIDE, mtu=_mtu())
        (root / "etc/systemd/network/10-host0.network").write_text(wire)

    def begin(self) -> None:
        """Its power is on."""
        words = ["--quiet", "--boot", "--keep-unit", "--register=no", "--console=read-only"]
        words += ("--resolv-conf=off", "--timezone=off", "--link-journal=no")
        with (self._home / "console.log").open("ab") as console:
            self._process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig=TERM", "systemd-nspawn"),
                    *(*words, f"--network-bridge={BRIDGE}"),
                    *("--machine", self.name, "--directory", str(self._home / "root")),
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Until it is up."""
        eventually(self._is_up, f"{self.name} is up: {self._home}/console.log", BOOT_S)

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"{self.name} does not boot"
        told = self._typed("systemctl is-system-running", "root", "")  # there is no 1 at first
        return told.stdout.strip() in {"running", "degraded"}

    @property
    def _init(self) -> str:
        """The number of its process 1 here."""
        if self._process is None:
            return ""
        pid = self._process.pid
        with suppress(FileNotFoundError):
            return Path(f"/proc/{pid}/task/{pid}/children").read_text().strip()
        return ""

    def type(self, line: str, user: str = "root", answers: str = "", earlier: str = "") -> str:
        """What is printed; `earlier`: what this shell was told before, `answers`: what it asks."""
        done = self._typed(f"cd {DESK}\n{earlier}\n{line}", user, answers)
        assert done.returncode == 0, f"{self.name}: {line}\n{done.stdout[-6000:]}"
        return done.stdout

    def _typed(self, lines: str, user: str, answers: str) -> subprocess.CompletedProcess[str]:
        home = "/root" if user == "root" else f"/home/{user}"
        within = ["nsenter", "--target", self._init, "--all", "env", "-i"]
        within += [f"PATH={_PATH}", f"HOME={home}"]
        within += () if user == "root" else ("runuser", "-u", user, "--")
        return subprocess.run(
            [*within, "bash", "-eo", "pipefail", "-c", lines],
            input=answers,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=LINE_S,
            start_new_session=True,  # without a terminal, programs read what they ask from stdin
        )

    def off(self) -> None:
        """Its power is off."""
        if self._process is not None:
            with suppress(ProcessLookupError, ValueError):
                os.kill(int(self._init), signal.SIGKILL)
            self._process.wait(BOOT_S)
            self._process = None

    def remove(self) -> None:
        self.off()
        with suppress(AssertionError):
            run("umount", "--lazy", str(self._home / "root"))
        run("rm", "-rf", str(self._home))


def run(*command: str, told: str = "") -> None:
    done = subprocess.run(command, check=False, capture_output=True, input=told, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[-4000:]}"


def _mtu() -> str:
    """Of the way to Debian's mirror."""
    routes = (line.split() for line in Path("/proc/net/route").read_text().splitlines())
    outward = next(name for name, to, *_ in routes if to == "00000000")
    return Path(f"/sys/class/net/{outward}/mtu").read_text().strip()


def _make_base() -> None:
    """Kept by LAB_KEEP."""
    if not (HOME / "base").exists():
        hooks = [f"--customize-hook={each}" for each in _MADE]
        run("rm", "-rf", str(HOME / "base.new"))  # of a run that was killed
        sources = next(path for path in _SOURCES if path.exists())
        kept = "--skip=cleanup/apt/lists"
        what = ("--variant=minbase", f"--include={_INCLUDED}", kept, *hooks, "bookworm")
        run("mmdebstrap", "--quiet", *what, str(HOME / "base.new"), str(sources))
        (HOME / "base.new").rename(HOME / "base")


@contextmanager
def _network() -> Iterator[None]:
    """A bridge, and a way out to Debian's mirror."""
    forwards = _FORWARDS.read_text()
    _take_down()  # of a run that was killed
    try:
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "address", "add", f"{OUTSIDE}/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        run("nft", "-f", "-", told=_OUT)
        _FORWARDS.write_text("1")
        yield
    finally:
        _FORWARDS.write_text(forwards)
        _take_down()


def _take_down() -> None:
    for command in ("nft delete table ip operations", f"ip link delete {BRIDGE}"):
        with suppress(AssertionError):
            run(*command.split())


@contextmanager
def running(*machines: Machine, hosts: str) -> Iterator[None]:
    """Booted; `hosts`: lines of /etc/hosts, which all of them have."""
    HOME.mkdir(exist_ok=True)
    for machine in machines:
        machine.remove()  # of a run that was killed
    _make_base()
    with _network():
        try:
            for machine in machines:
                machine.make(hosts)
                machine.begin()
            for machine in machines:
                machine.wait()
            yield
        finally:
            for machine in machines:
                if os.environ.get("LAB_KEEP"):
                    machine.off()
                else:
                    machine.remove()
            if not os.environ.get("LAB_KEEP"):
                run("rm", "-rf", str(HOME))
