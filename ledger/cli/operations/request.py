"""`request show`: what a request led to, or why it was refused."""

from __future__ import annotations

import argparse
from typing import Any

from ledger.cli.base import ShowOne
from ledger.cli.errors import CliError, ExitCode
from ledger.cli.naming import ambiguous


class ShowRequest(ShowOne):
    """Show what a request led to, or why it was refused; refusals are kept for at most a day.

    The id of a request is in the headers of its answer, in the logs of services, and in histories;
    four characters after "req-" are enough.  The id of another service's request finds what that
    service requested from the ledger.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("id", metavar="<request id>")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from ledger.cli.operations.plan import Lines

        asked = parsed_args.id if parsed_args.id.startswith("req-") else f"req-{parsed_args.id}"
        found = self.client.get("/v1/find", text=asked)["found"]
        refused = [thing["id"] for thing in found if thing["kind"] == "request"]
        if not found:
            raise CliError(
                f"nothing is known of a request {asked!r}.",
                ExitCode.NOT_FOUND,
                "What only read, or was refused longer ago than a day, has left nothing.",
            )
        if len(refused) == 1 == len(found):
            return self.dict2columns(self.client.get(f"/v1/requests/{refused[0]}"))
        if refused and asked in refused:
            return self.dict2columns(self.client.get(f"/v1/requests/{asked}"))
        if len(refused) > 1:
            raise ambiguous(asked, refused)
        led = [" ".join(filter(None, map(thing.get, ("kind", "id", "name")))) for thing in found]
        return ("request_id", "led_to"), (asked, Lines(found, led))
