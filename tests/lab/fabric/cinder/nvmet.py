"""What Cinder's nvmet target uses of the library of that name, which is in no registry of packages.

Over configfs, of the machine that is asked (hands.py), and as small as Cinder allows: the names are
the library's.  Beside Cinder.
"""

from __future__ import annotations

import json
import os
import socket
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path("/sys/kernel/config/nvmet")


def ask(call: str, *words: str) -> Any:
    """What the other machine's `call` answers; raises OSError as it does there."""
    with (
        socket.create_connection(("127.0.0.1", int(os.environ["FAB_HANDS_PORT"]))) as line,
        line.makefile("rw") as both,
    ):
        both.write(json.dumps([call, words]) + "\n")
        both.flush()
        told = json.loads(both.readline())
    if "error" in told:
        raise OSError(told["errno"], told["error"])
    return told["answer"]


class Files:
    """For Cinder's own part of this, in place of `os`."""

    path = os.path

    @staticmethod
    def listdir(path: str) -> list[str]:
        return list(ask("listdir", path))


class CFSNotFound(Exception):  # noqa: N818 - the library's
    """There is none of this name."""


nvme = types.SimpleNamespace(CFSNotFound=CFSNotFound)


class _Node:
    """A directory of configfs; with the mode "any" it is made if it is missing."""

    path: str

    def _open(self, path: Path, mode: str) -> None:
        self.path = str(path)
        if ask("exists", self.path):
            return
        if mode == "lookup":
            raise CFSNotFound(self.path)
        ask("mkdir", self.path)

    def get_attr(self, group: str, name: str) -> str:
        return str(ask("read", f"{self.path}/{group}_{name}")).strip()

    def set_attr(self, group: str, name: str, value: Any) -> None:
        ask("write", f"{self.path}/{group}_{name}", str(value))

    def delete(self) -> None:
        ask("rmdir", self.path)


class Root(_Node):
    def __init__(self) -> None:
        self._open(ROOT, "lookup")


class Subsystem(_Node):
    def __init__(self, nqn: str, mode: str = "any") -> None:
        self.nqn = nqn
        self._open(ROOT / "subsystems" / nqn, mode)

    @property
    def namespaces(self) -> Iterator[Namespace]:
        for name in Files.listdir(f"{self.path}/namespaces"):
            yield Namespace(self, name)

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
        ask("write", f"{self.path}/enable", str(value))

    def delete(self) -> None:
        self._enable(0)
        super().delete()


class Port(_Node):
    def __init__(self, portid: int | str, mode: str = "any") -> None:
        self.portid = int(portid)
        self._open(ROOT / "ports" / str(self.portid), mode)

    @property
    def subsystems(self) -> list[str]:
        return Files.listdir(f"{self.path}/subsystems")

    def add_subsystem(self, nqn: str) -> None:
        ask("symlink", f"{ROOT}/subsystems/{nqn}", f"{self.path}/subsystems/{nqn}")

    def remove_subsystem(self, nqn: str) -> None:
        ask("unlink", f"{self.path}/subsystems/{nqn}")

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
