"""What Cinder's nvmet target uses of the library of that name, which is in no registry of packages.

Over configfs, and as small as Cinder allows: the names are the library's.  Installed beside Cinder.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path("/sys/kernel/config/nvmet")


class CFSNotFound(Exception):  # noqa: N818 - the library's
    """There is none of this name."""


nvme = types.SimpleNamespace(CFSNotFound=CFSNotFound)


class _Node:
    """A directory of configfs; with the mode "any" it is made if it is missing."""

    path: str

    def _open(self, path: Path, mode: str) -> None:
        self.path = str(path)
        if mode != "lookup":
            path.mkdir(exist_ok=True)
        elif not path.is_dir():
            raise CFSNotFound(self.path)

    def get_attr(self, group: str, name: str) -> str:
        return Path(self.path, f"{group}_{name}").read_text().strip()

    def set_attr(self, group: str, name: str, value: Any) -> None:
        Path(self.path, f"{group}_{name}").write_text(str(value))

    def delete(self) -> None:
        Path(self.path).rmdir()


class Root(_Node):
    def __init__(self) -> None:
        self._open(ROOT, "lookup")


class Subsystem(_Node):
    def __init__(self, nqn: str, mode: str = "any") -> None:
        self.nqn = nqn
        self._open(ROOT / "subsystems" / nqn, mode)

    @property
    def namespaces(self) -> Iterator[Namespace]:
        for path in Path(self.path, "namespaces").iterdir():
            yield Namespace(self, path.name)

    @classmethod
    def setup(cls, t: Mapping[str, Any], err_func: Callable[[str], None]) -> None:
        made = cls(t["nqn"])
        for name, value in t.get("attr", {}).items():
            made.set_attr("attr", name, value)
        for each in t.get("namespaces", []):
            Namespace.setup(made, each, err_func)

    def delete(self) -> None:
        for each in self.namespaces:
            each.delete()
        super().delete()


class Namespace(_Node):
    MAX_NSID = 8192

    def __init__(self, subsystem: Subsystem, nsid: int | str, mode: str = "any") -> None:
        self.subsystem, self.nsid = subsystem, int(nsid)
        self._open(Path(subsystem.path, "namespaces", str(self.nsid)), mode)

    @classmethod
    def setup(
        cls, subsys: Subsystem, n: Mapping[str, Any], err_func: Callable[[str], None]
    ) -> None:
        made = cls(subsys, n["nsid"])
        for name, value in n.get("device", {}).items():
            made.set_attr("device", name, value)
        if n.get("enable"):
            made._enable(1)

    def _enable(self, value: int) -> None:
        Path(self.path, "enable").write_text(str(value))

    def delete(self) -> None:
        self._enable(0)
        super().delete()


class Port(_Node):
    def __init__(self, portid: int | str, mode: str = "any") -> None:
        self.portid = int(portid)
        self._open(ROOT / "ports" / str(self.portid), mode)

    @property
    def subsystems(self) -> list[str]:
        return [path.name for path in Path(self.path, "subsystems").iterdir()]

    def add_subsystem(self, nqn: str) -> None:
        Path(self.path, "subsystems", nqn).symlink_to(ROOT / "subsystems" / nqn)

    def remove_subsystem(self, nqn: str) -> None:
        Path(self.path, "subsystems", nqn).unlink()

    @classmethod
    def setup(cls, n: Mapping[str, Any], err_func: Callable[[str], None]) -> None:
        made = cls(n["portid"])
        for name, value in n["addr"].items():
            if name != "treq":
                made.set_attr("addr", name, value)
        for nqn in n.get("subsystems", []):
            made.add_subsystem(nqn)


class Host(_Node):
    """Cinder names these three, and makes none."""


class Referral(_Node): ...


class ANAGroup(_Node): ...
