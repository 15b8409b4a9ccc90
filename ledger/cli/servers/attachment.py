"""`attachment list|show`: what is attached where and by which flow, now or at a moment."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from ledger.cli.base import (
    Lister,
    ShowOne,
    add_at,
    add_known_at,
    add_limit,
    known_at,
    listed,
    note,
    said,
)
from ledger.cli.errors import CliError, ExitCode, usage
from ledger.cli.log.archived import (
    NOW,
    HistorySubject,
    add_archive,
    archive_errors,
    history_of,
)
from ledger.cli.naming import add_filters
from ledger.cli.table import NamedId

HISTORY_EVENTS_MAX = 100_000
#: With --at: the API's largest page; such a list has only one.
SPANS_MAX = 1000

COLUMNS: dict[str, Any] = {
    "ID": "attachment_id",
    "Volume": "volume_id",
    "Server": lambda row: NamedId(row["server_id"], row.get("server_name")),
    "Host": "host",
    "State": "state",
    "Flow": "flow",
    "Operation": "operation_id",
    "Since": "created_at",
    "Until": "ended_at",
}
#: Of a moment.
THEN: dict[str, Any] = {
    **COLUMNS,
    "State": lambda span: "on host" if span["certain"] else "perhaps on host",
    "Operation": lambda _: None,
    "Since": "from_at",
    "Until": "to_at",
}
FLOWS = ("new", "old")


class ListAttachments(Lister):
    """List attachments: the open ones, or those that were on a host at a past moment."""

    every_cell = True
    brief = ("ID", "Volume", "Server", "Host", "State", "Operation", "Since")
    empty = "No attachments."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_filters(parser, "volume", "server", "host")
        parser.add_argument(
            "--flow",
            choices=FLOWS,
            help="new: made by Cinder's attachment API; old: by its volume actions",
        )
        parser.add_argument("--all", action="store_true", help="also attachments that have ended")
        add_at(
            parser,
            "attachments that were on a host at that time; needs --volume, --host or --flow old",
        )
        add_known_at(parser)
        add_limit(parser, "at most N attachments")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        asked = said(parsed_args, "volume", "server", "host", "flow")
        known = known_at(parsed_args)
        if parsed_args.at:
            return listed(THEN, self._then(parsed_args, {**asked, "known_at": known}))
        found = self.client.items(
            "/v1/attachments", "attachments", parsed_args.limit, open=not parsed_args.all, **asked
        )
        return listed(COLUMNS, found)

    def _then(self, parsed_args: argparse.Namespace, asked: dict[str, Any]) -> list[Any]:
        if not (parsed_args.volume or parsed_args.host or parsed_args.flow == "old"):
            raise usage("--at needs --volume, --host or --flow old: which attachments, then?")
        limit = parsed_args.limit
        asked = {**asked, "at": parsed_args.at, "limit": min(limit + 1, SPANS_MAX)}
        spans = list(self.client.get("/v1/attachments", **asked)["attachments"])
        if len(spans) > limit or len(spans) == SPANS_MAX:
            note(f"Only the first {min(limit, SPANS_MAX)} attachments are shown.")
        return spans[:limit]


class ShowAttachment(ShowOne):
    """Show an attachment, as it is or as it was at a past moment."""

    about = "attachment"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_at(parser, "the attachment as it was at that time")
        add_archive(parser, "with --at, also what is in an archive's files")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        path = f"/v1/attachments/{parsed_args.id}"
        if parsed_args.at:
            return self.dict2columns(
                self._then(parsed_args.id, parsed_args.at, parsed_args.archive)
            )
        return self.dict2columns(self.client.get(path))

    def _then(self, attachment_id: str, at: str, archive: Path | None) -> dict[str, Any]:
        """Its events up to then, put together by the aggregate's own rules."""
        from eventsourcing.utils import resolve_topic

        from aggregates.attachment import Attachment

        subject = HistorySubject("attachment", attachment_id)
        with archive_errors():
            events = history_of(self.client, subject, HISTORY_EVENTS_MAX, NOW, archive)[::-1]
        whole = [event for event in events if event["topic"].startswith(f"{Attachment.__name__}.")]
        moment = datetime.fromisoformat(at)
        own = [e for e in whole if datetime.fromisoformat(e["recorded_at"]) <= moment]
        if not own:
            raise CliError(f"there was no attachment {attachment_id} at {at}.", ExitCode.NOT_FOUND)
        if [event["version"] for event in whole] != list(range(1, len(whole) + 1)):
            raise CliError(
                f"what attachment {attachment_id} was at {at} is in the archive only.",
                ExitCode.REFUSED,
                "Say where it is: --archive DIRECTORY",
            )
        identity = UUID(attachment_id)
        if own == whole:  # nothing came after it: the moment may be to come, which is refused
            self.client.get(subject.path, at=at, limit=1)
        past = (
            resolve_topic(event["topic"])(
                originator_id=identity, originator_version=event["version"], **event["body"]
            )
            for event in own
        )
        then = Attachment.evolve(identity, past)
        return {
            "attachment_id": attachment_id,
            "at": at,
            "volume_id": then.volume_id,
            "server_id": then.server_id,
            "host": then.host,
            "access_mode": then.access_mode,
            "flow": "old" if then.legacy else "new",
            "state": str(then.state),
            "operation_id": own[-1]["operation_id"],
            "since": own[-1]["recorded_at"],
        }
