"""Attach, detach, swap, refresh, convert: what is done to a server's attachments."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

from ledger.cli.base import Lister, complain
from ledger.cli.errors import ExitCode
from ledger.cli.naming import add_filters, add_thing, named
from ledger.cli.operations.operating import OfServer

OF_MANY_COLUMNS = ("Server", "Operation", "State", "Why not")
PAGE_SERVERS = 100

Begun = dict[str, Any]


class _OfVolume(OfServer):
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "volume", metavar="<volume>", type=named("volume"), help="the id of the volume"
        )

    def path(self, parsed_args: argparse.Namespace) -> str:
        server, volume = parsed_args.server, parsed_args.volume
        return f"/v2.1/servers/{server}/os-volume_attachments/{volume}"


class AddServerVolume(_OfVolume):
    """Attach a volume to a server."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        add = parser.add_argument
        add("--device", metavar="NAME", help="e.g. /dev/vdc (default: the next free one)")
        add("--tag", metavar="TAG", help="the tag by which the guest identifies the disk")
        add(
            "--delete-on-termination", action="store_true", help="delete the volume with the server"
        )
        add(
            "--root",
            action="store_true",
            help="in place of the detached root volume of a stopped or shelved server",
        )

    def begin(self, parsed_args: argparse.Namespace) -> str:
        wanted = {
            "volumeId": parsed_args.volume,
            "device": parsed_args.device,
            "tag": parsed_args.tag,
            "delete_on_termination": parsed_args.delete_on_termination,
            "is_root": parsed_args.root,
        }
        given = {name: value for name, value in wanted.items() if value not in {None, False}}
        path = f"/v2.1/servers/{parsed_args.server}/os-volume_attachments"
        return self.client.begin("POST", path, {"volumeAttachment": given})


class RemoveServerVolume(_OfVolume):
    """Detach a volume from a server; a root volume while it is stopped or shelved."""

    def begin(self, parsed_args: argparse.Namespace) -> str:
        return self.client.begin("DELETE", self.path(parsed_args))


class SwapServerVolume(_OfVolume):
    """Copy a volume to another volume, and switch the disk of the running guest to the copy.

    Users may do this only if the settings allow it (swap_by_users).
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "new_volume",
            metavar="<new volume>",
            type=named("volume"),
            help="the new volume: available, and at least as large",
        )

    def begin(self, parsed_args: argparse.Namespace) -> str:
        body = {"volumeAttachment": {"volumeId": parsed_args.new_volume}}
        return self.client.begin("PUT", self.path(parsed_args), body)


class OfMany(Lister):
    """Begun for a server, or for all of a host or of the fleet, page by page."""

    act: str
    which: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        from ledger.cli.operations.waiting import add_wait

        self.add_whose(parser.add_mutually_exclusive_group(required=True))
        add_wait(parser)

    def add_whose(self, whose: argparse._MutuallyExclusiveGroup) -> None:
        self.add_server(whose)
        whose.add_argument("--host", metavar="NAME", help=f"all servers with {self.which} there")
        whose.add_argument("--all", action="store_true", help=f"all servers with {self.which}")

    def add_server(self, whose: argparse._MutuallyExclusiveGroup) -> None:
        add_filters(whose, "server")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        begun = list(self.begun(parsed_args))
        end = time.monotonic() + parsed_args.timeout
        rows = [self.row(each, end if parsed_args.wait else None) for each in begun]
        return OF_MANY_COLUMNS, rows

    def begun(self, parsed_args: argparse.Namespace) -> Iterator[Begun]:
        if parsed_args.server:
            yield self._ask(f"/v1/servers/{parsed_args.server}/{self.act}", {})
            return
        yield from self.pages({"host": parsed_args.host})

    def pages(self, body: dict[str, Any]) -> Iterator[Begun]:
        """What becomes of each server, asked for page by page; what was begun before a page that
        has no answer is told.
        """
        from ledger.cli.client import ClientError

        after: dict[str, Any] = {}
        while True:
            try:
                page = self._ask(f"/v1/{self.act}", {**body, "limit": PAGE_SERVERS, **after})
            except ClientError as error:
                if not after:
                    raise
                complain(f"these are not all servers: {error}", error.hint)
                self.exit_code = ExitCode.PARTIAL
                return
            yield from page["servers"]
            if page["next"] is None:
                return
            after = {"after": page["next"]}

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        from ledger.cli.client import BEGIN_TIMEOUT_S

        return self.client.send("POST", path, body=body, timeout_s=BEGIN_TIMEOUT_S)

    def row(self, begun: Begun, end: float | None) -> tuple[Any, ...]:
        """The exit code is the worst of all: refused, failed, parked, not over."""
        from ledger.cli.operations import plan, waiting

        operation_id, refused = begun.get("operation_id"), begun.get("refused")
        state, why = None, refused
        if operation_id is None:
            self.exit_code = max(self.exit_code, ExitCode.REFUSED)
        elif end is not None:
            left_s = max(0.0, end - time.monotonic())
            operation = waiting.wait(self.client, operation_id, left_s)
            state, why = plan.standing(operation), operation["why"]
            self.exit_code = max(self.exit_code, plan.exit_code(operation))
        return begun["server_id"], operation_id, state, why


class RefreshAttachments(OfMany):
    """Get the connection information from Cinder again, after the storage has changed.

    For example its portals or monitors.  One row per server; the exit code is the worst of all.
    """

    act, which = "refresh", "volumes"


class ConvertAttachments(OfMany):
    """Convert attachments of Cinder's old calls to the new kind; guests do not notice.

    One row per server; the exit code is the worst of all.  A resized server is converted on both of
    its hosts.
    """

    act, which = "convert", "volumes attached by the old calls"

    def add_server(self, whose: argparse._MutuallyExclusiveGroup) -> None:
        add_thing(whose, "server", nargs="?")
