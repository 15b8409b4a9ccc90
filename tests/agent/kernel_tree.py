"""A made-up sysfs, procfs and /dev, in the form that the kernel and udev give them."""

from __future__ import annotations

import os
from pathlib import Path

HEAD = "22 1 0:21 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n"


class Kernel:
    """Below `root`; each method adds something."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._numbers = 0
        for name in ("sys/class/block", "proc/self", "dev/disk/by-path", "dev/mapper"):
            (root / name).mkdir(parents=True)
        self._mounts = [HEAD, "28 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"]
        self.mount()

    def put(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def disk(self, name: str, *, state: str | None = None, wwid: str | None = None) -> str:
        """A device, and its name in /dev."""
        self._numbers += 1
        self.put(f"sys/class/block/{name}/dev", f"259:{self._numbers}")
        self.put(f"dev/{name}", "")
        if state:
            self.put(f"sys/class/block/{name}/device/state", state)
        if wwid:
            self.put(f"sys/class/block/{name}/device/wwid", wwid)
        return f"/dev/{name}"

    def number(self, name: str) -> str:
        return (self.root / "sys/class/block" / name / "dev").read_text().strip()

    def partition(self, disk: str, name: str) -> None:
        self.disk(name)
        self.put(f"sys/class/block/{disk}/{name}/partition", "1")

    def link(self, path: str, name: str) -> str:
        """Another name of a device, as udev makes it: relative."""
        at = self.root / path[1:]
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(os.path.relpath(self.root / "dev" / name, at.parent))
        return path

    def over(self, name: str, *below: str, uuid: str = "LVM-x") -> str:
        """A device mapper's device over others."""
        path = self.disk(name)
        self.put(f"sys/class/block/{name}/dm/uuid", uuid)
        for each in below:
            self.put(f"sys/class/block/{name}/slaves/{each}", "")
            self.put(f"sys/class/block/{each}/holders/{name}", "")
        return path

    def map(self, name: str, wwid: str, *paths: str) -> str:
        return self.over(name, *paths, uuid=f"mpath-{wwid}")

    def namespace(self, name: str, **told: str) -> str:
        """Of NVMe, with what identifies it: uuid, nguid, wwid."""
        for attribute, text in told.items():
            self.put(f"sys/class/block/{name}/{attribute}", text)
        return self.disk(name)

    def session(self, number: int, target: str, *disks: str, state: str = "LOGGED_IN") -> None:
        at = f"sys/class/iscsi_session/session{number}"
        self.put(f"{at}/targetname", target)
        self.put(f"{at}/state", state)
        for lun, disk in enumerate(disks):
            self.put(f"{at}/device/target{number}:0:0/{number}:0:0:{lun}/block/{disk}/ro", "0")

    def subsystem(self, number: int, nqn: str, *disks: str, **controller: str) -> None:
        at = f"sys/class/nvme-subsystem/nvme-subsys{number}"
        self.put(f"{at}/subsysnqn", nqn)
        for name, text in {"transport": "tcp", "state": "live", **controller}.items():
            self.put(f"{at}/nvme{number}/{name}", text)
        for disk in disks:
            self.put(f"{at}/{disk}/nsid", "1")

    def loop(self, name: str, file: str) -> str:
        path = self.disk(name)
        self.put(f"sys/class/block/{name}/loop/backing_file", file)
        return path

    def mount(
        self, at: str = "", source: str = "", kind: str = "nfs4", number: str = "0:50"
    ) -> None:
        if at:
            self._mounts.append(f"90 28 {number} / {at} rw shared:9 - {kind} {source} rw,vers=4\n")
        (self.root / "proc/self/mountinfo").write_text("".join(self._mounts))
