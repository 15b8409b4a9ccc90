"""`survey` over a large cloud that agrees: python -m tests.benchmarks.survey [VOLUMES].

Nova and Cinder are answers from memory, page by page, as JSON of the form that the real ones send;
so the figures are of the survey's own work, and none of the network's or of the services'.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from handlers.drift.beside_nova import found
from ledger.nova_beside.reads import CloudReader

VOLUMES, PER_SERVER = 100_000, 4
AT = "2026-11-24T11:45:00.000000"
HEADERS = {"Date": "Tue, 24 Nov 2026 12:00:00 GMT"}


class Played:
    """Lists from memory; nothing is asked for by its id, for all agrees."""

    def __init__(self, lists: dict[str, tuple[str, Sequence[dict[str, Any]]]]) -> None:
        self._lists = lists
        self._at = {
            path: {row["id"]: n for n, row in enumerate(rows)} for path, (_, rows) in lists.items()
        }
        access = SimpleNamespace(role_names=("admin",), project_id="p")
        self.session = SimpleNamespace(auth=SimpleNamespace(get_access=lambda _session: access))

    def get(self, path: str, params: dict[str, Any], headers: dict[str, str]) -> Any:
        name, rows = self._lists[path]
        marker = params.get("marker")
        begin = self._at[path][marker] + 1 if marker else 0
        text = json.dumps({name: rows[begin : begin + params["limit"]]})
        return SimpleNamespace(headers=HEADERS, json=lambda: json.loads(text))


def id_of(kind: int, number: int) -> str:
    return str(UUID(int=(kind << 64) + number))


def clouds(volumes: int) -> tuple[Played, Played]:
    """Nova and Cinder with so many volumes, each of which a server has."""
    attachments = [
        {
            "id": id_of(2, number),
            "status": "attached",
            "instance": id_of(3, number // PER_SERVER),
            "volume_id": id_of(1, number),
        }
        for number in range(volumes)
    ]
    details = [
        {
            "id": id_of(1, number),
            "status": "in-use",
            "size": 10,
            "updated_at": AT,
            "os-vol-tenant-attr:tenant_id": "q",
            "attachments": [
                {
                    "attachment_id": id_of(2, number),
                    "server_id": id_of(3, number // PER_SERVER),
                    "host_name": f"h{number // PER_SERVER % 500}",
                    "attached_at": AT,
                }
            ],
        }
        for number in range(volumes)
    ]
    servers = [
        {
            "id": id_of(3, number),
            "OS-EXT-SRV-ATTR:host": f"h{number % 500}",
            "OS-EXT-STS:vm_state": "active",
            "OS-EXT-STS:task_state": None,
            "os-extended-volumes:volumes_attached": [
                {"id": id_of(1, number * PER_SERVER + n), "delete_on_termination": False}
                for n in range(PER_SERVER)
            ],
        }
        for number in range(volumes // PER_SERVER)
    ]
    cinder = Played(
        {"/attachments": ("attachments", attachments), "/volumes/detail": ("volumes", details)}
    )
    return Played({"/servers/detail": ("servers", servers)}), cinder


def main(volumes: int) -> None:
    nova, cinder = clouds(volumes)
    reader = CloudReader(nova, cinder, time.time)  # type: ignore[arg-type]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    cloud = reader.cloud({})
    read = time.process_time()
    differs = found(cloud, timedelta(minutes=15))
    judged = time.process_time()
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    sys.stdout.write(
        f"{volumes} volumes, {len(cloud.servers)} servers: {reader.requests} requests, "
        f"read in {read - began:.1f} s of CPU, judged in {judged - read:.1f} s, "
        f"{more // 1024} MiB more, {len(differs)} findings\n"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else VOLUMES)
