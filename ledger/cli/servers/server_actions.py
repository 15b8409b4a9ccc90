"""`server start|stop|...`: what Nova calls the actions of a server, each an operation here."""

from __future__ import annotations

import argparse
from typing import Any, ClassVar

from ledger.cli.operations.operating import OfServer


class ServerAction(OfServer):
    """`body` is the request, if there is nothing to choose; else `asked` makes it."""

    body: ClassVar[dict[str, Any]] = {}

    def asked(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        del parsed_args
        return self.body

    def begin(self, parsed_args: argparse.Namespace) -> str:
        path = f"/v2.1/servers/{parsed_args.server}/action"
        return self.client.begin("POST", path, self.asked(parsed_args))


class StartServer(ServerAction):
    """Start a server; its volumes are connected again."""

    body: ClassVar = {"os-start": None}


class StopServer(ServerAction):
    """Shut a server down; a guest that does not shut down in time is powered off."""

    body: ClassVar = {"os-stop": None}


class PauseServer(ServerAction):
    """Pause a server."""

    body: ClassVar = {"pause": None}


class UnpauseServer(ServerAction):
    """Unpause a server."""

    body: ClassVar = {"unpause": None}


class ShelveServer(ServerAction):
    """Shelve a server: remove it from its host; its volumes stay reserved for it."""

    body: ClassVar = {"shelve": None}


class ConfirmResize(ServerAction):
    """Confirm a resize or cold migration: the former host releases the server."""

    body: ClassVar = {"confirmResize": None}


class RevertResize(ServerAction):
    """Revert a resize or cold migration: back to the former host."""

    body: ClassVar = {"revertResize": None}


class ResizeServer(ServerAction):
    """Resize a server, on another host; confirm or revert the resize afterwards."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        help_text = "the size: c2.m4096 is 2 vCPUs and 4096 MiB"
        parser.add_argument("--flavor", required=True, metavar="cN.mN", help=help_text)

    def asked(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        return {"resize": {"flavorRef": parsed_args.flavor}}


class RebuildServer(ServerAction):
    """Define the guest of a server again; its volumes are connected again."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        help_text = "write this image to its root volume: what that has is lost"
        parser.add_argument("--image", default="", metavar="ID", help=help_text)

    def asked(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        return {"rebuild": {"imageRef": parsed_args.image}}


class RebootServer(ServerAction):
    """Reboot a server; its volumes are connected again."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--hard", action="store_true", help="power the guest off without asking it"
        )

    def asked(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        return {"reboot": {"type": "HARD" if parsed_args.hard else "SOFT"}}


class _ToHost(ServerAction):
    """An action that takes the guest to a host."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        help_text = "the destination host (default: the ledger chooses)"
        parser.add_argument("--host", metavar="NAME", help=help_text)


class MigrateServer(_ToHost):
    """Move a server to another host, live, or cold and to be confirmed."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--live-migration", action="store_true", help="move the guest while it runs"
        )

    def asked(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        host = parsed_args.host
        if parsed_args.live_migration:
            return {"os-migrateLive": {"host": host, "block_migration": "auto"}}
        return {"migrate": {"host": host} if host else None}


class EvacuateServer(_ToHost):
    """Start a server of a fenced host on another host."""

    def asked(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        return {"evacuate": {"host": parsed_args.host} if parsed_args.host else {}}


class UnshelveServer(_ToHost):
    """Unshelve a server: start it on a host."""

    def asked(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        return {"unshelve": {"host": parsed_args.host} if parsed_args.host else None}
