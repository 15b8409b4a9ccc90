"""`server list|show|create|delete`: the servers that the ledger knows."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from ledger.cli.base import Lister, ShowOne, add_limit, listed, said
from ledger.cli.errors import ExitCode
from ledger.cli.naming import named
from ledger.cli.operations.operating import Beginning, OfServer

#: What `--block-device` may say, as OpenStack's client has it, and what the ledger calls it.
DISK_KEYS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "boot_index": ("boot_index", int),
    "device_name": ("device", str),
    "tag": ("tag", str),
    "delete_on_termination": ("delete_on_termination", lambda text: text.lower() == "true"),
}
CREATE_KEYS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "volume_size": ("size_gb", int),
    "volume_type": ("volume_type", str),
}
#: What `uuid` is, by `source_type`.
SOURCES = {"volume": "volume_id", "image": "image_id", "snapshot": "snapshot_id", "blank": None}

COLUMNS: dict[str, Any] = {
    "ID": "id",
    "Name": "name",
    "Status": "status",
    "Task": "OS-EXT-STS:task_state",
    "Host": lambda server: server.get("OS-EXT-SRV-ATTR:host"),
    "Volumes": lambda server: len(server["os-extended-volumes:volumes_attached"]),
}


class ListServers(Lister):
    """List servers: their hosts, their states, and their operations in progress."""

    every_cell = True
    empty = "No servers (operators: --all-projects shows those of all projects)."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--name", metavar="REGEX")
        add("--status", metavar="STATUS", help="e.g. ACTIVE, SHUTOFF, ERROR, SHELVED_OFFLOADED")
        add("--host", metavar="NAME")
        add("--all-projects", action="store_true", help="servers of all projects; for operators")
        add_limit(parser, "at most N servers")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        asked = said(parsed_args, "name", "status", "host")
        asked["all_tenants"] = 1 if parsed_args.all_projects else None
        path, limit = "/servers/detail", parsed_args.limit
        return listed(COLUMNS, self.client.nova_items(path, "servers", limit, **asked))


class ShowServer(ShowOne):
    """Show a server: its host, its state, its volumes, and why it is in ERROR."""

    about = "server"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from ledger.cli.operations.plan import Lines

        path = f"/servers/{parsed_args.server}"
        server = self.client.nova(path)["server"]
        volumes = self.client.nova(f"{path}/os-volume_attachments")["volumeAttachments"]
        return self.dict2columns(
            {
                "id": server["id"],
                "name": server["name"],
                "status": server["status"],
                "vm_state": server["OS-EXT-STS:vm_state"],
                "task": server["OS-EXT-STS:task_state"],
                "fault": server.get("fault", {}).get("message"),
                "locked": server.get("locked_reason") or server.get("locked"),
                "host": server.get("OS-EXT-SRV-ATTR:host"),
                "flavor": server["flavor"]["original_name"],
                "project": server["tenant_id"],
                "volumes": Lines(volumes, map(_volume, volumes)),
                "created": server["created"],
                "updated": server["updated"],
            }
        )


def _volume(mapping: dict[str, Any]) -> str:
    words = [mapping["device"] or "-", mapping["volumeId"]]
    words += ["root"] if mapping["boot_index"] == 0 else []
    words += [f"tag {mapping['tag']}"] if mapping["tag"] else []
    words += ["deleted with the server"] if mapping["delete_on_termination"] else []
    return "  ".join([*words, f"attachment {mapping['attachment_id']}"])


class CreateServer(Beginning):
    """Create a server; its volumes are attached before it starts."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        add = parser.add_argument
        add("name", metavar="<name>")
        add("--vcpus", type=int, default=1, metavar="N", help="default 1")
        add("--memory", type=int, default=512, metavar="MIB", help="default 512")
        add("--firmware", choices=("bios", "uefi"), default="bios", help="default bios")
        add(
            "--kernel",
            metavar="PATH",
            help="boot this kernel, a file of the host, instead of a disk",
        )
        add("--initrd", metavar="PATH", help="the initrd of that kernel, a file of the host")
        add("--cmdline", metavar="TEXT", help="the command line of that kernel")
        add("--volume", metavar="ID", type=named("volume"), help="the root volume")
        add(
            "--block-device",
            action="append",
            default=[],
            type=disk,
            metavar="KEY=VALUE,...",
            help="another volume; may be repeated: uuid, source_type (volume, image, snapshot or "
            "blank), volume_size, volume_type, boot_index, device_name, tag, "
            "delete_on_termination",
        )
        add("--host", metavar="NAME", help="the host (default: the ledger chooses)")

    def begin(self, parsed_args: argparse.Namespace) -> str:
        root = [{"volume_id": parsed_args.volume, "boot_index": 0}] if parsed_args.volume else []
        wanted = {
            "name": parsed_args.name,
            "vcpus": parsed_args.vcpus,
            "memory_mb": parsed_args.memory,
            "firmware": parsed_args.firmware,
            "kernel": parsed_args.kernel,
            "initrd": parsed_args.initrd,
            "cmdline": parsed_args.cmdline,
            "disks": root + parsed_args.block_device,
            "host": parsed_args.host,
        }
        given = {name: value for name, value in wanted.items() if value is not None}
        return self.client.begin("POST", "/v1/servers", given)


def disk(text: str) -> dict[str, Any]:
    """A volume of a new server from "key=value,..."."""
    given = dict(pair.partition("=")[::2] for pair in text.split(","))
    source = given.pop("source_type", "volume")
    if unknown := given.keys() - DISK_KEYS.keys() - CREATE_KEYS.keys() - {"uuid"}:
        raise argparse.ArgumentTypeError(f"{text!r}: unknown key {', '.join(sorted(unknown))}")
    if source not in SOURCES:
        raise argparse.ArgumentTypeError(f"{text!r}: source_type is one of {', '.join(SOURCES)}")
    wanted = {name: read(given[key]) for key, (name, read) in DISK_KEYS.items() if key in given}
    made = {name: read(given[key]) for key, (name, read) in CREATE_KEYS.items() if key in given}
    if source == "volume":
        return {**wanted, "volume_id": given.get("uuid")}
    of = {SOURCES[source]: given["uuid"]} if "uuid" in given else {}
    return {**wanted, "create": {**made, **of}}


class DeleteServer(OfServer):
    """Delete a server; the operation ends when everything that it had is released.

    It first waits for the operation in progress on the server.  From the request on the server is
    in no list, and `server show` shows it as deleting.
    """

    def begin(self, parsed_args: argparse.Namespace) -> str:
        return self.client.begin("DELETE", f"/v2.1/servers/{parsed_args.server}")

    def under_way(self, operation_id: str, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """What is at work on the server comes first: until then there is no operation."""
        from ledger.cli.operations import waiting

        asked_at, limit_s = time.monotonic(), parsed_args.timeout if parsed_args.wait else 0.0
        if not waiting.begun(self.client, operation_id, limit_s):
            self.exit_code = ExitCode.TIMED_OUT if parsed_args.wait else ExitCode.OK
            return ("server_id", "task_state"), (parsed_args.server, "deleting")
        parsed_args.timeout = max(0.0, parsed_args.timeout - (time.monotonic() - asked_at))
        return super().under_way(operation_id, parsed_args)
