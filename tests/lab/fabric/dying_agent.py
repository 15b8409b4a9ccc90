"""The project's agent, which ends itself (SIGKILL) where a file of a test tells it to, once.

The file says "before" or "after", and of which call.  In the VM.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from os_brick.initiator.connectors.iscsi import ISCSIConnector
from os_brick.initiator.connectors.nvmeof import NVMeOFConnector
from os_brick.initiator.linuxscsi import LinuxSCSI

from host_agent.__main__ import main
from host_agent.shared.faults import kill_self
from host_agent.storage.brick import OsBrick

TOLD = Path("/run/die")
POINTS = {
    "connect": (OsBrick, "connect"),
    "disconnect": (OsBrick, "disconnect"),
    "login": (ISCSIConnector, "_connect_to_iscsi_portal"),  # of one of the portals
    "remove": (LinuxSCSI, "remove_connection"),  # map and disks, before the logout
    "nvme-connect": (NVMeOFConnector, "_connect_target"),
}


def _die(when: str, point: str) -> None:
    if TOLD.exists() and TOLD.read_text().split() == [when, point]:
        TOLD.unlink()
        kill_self()


def _dying(point: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def dying(*args: Any, **options: Any) -> Any:
        _die("before", point)
        answer = call(*args, **options)
        _die("after", point)
        return answer

    return dying


if __name__ == "__main__":
    for point, (owner, name) in POINTS.items():
        setattr(owner, name, _dying(point, getattr(owner, name)))
    sys.exit(main())
