"""`history sql|import`: mappings that ended in Nova's database before the ledger observed it."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from ledger.cli.base import PlainCommand, ShowOne
from ledger.cli.errors import ExitCode, usage

#: Longer than any row can be: a text of Nova's has 255 characters at most.
LINE_BYTES_MAX = 16_384
PAGE_ROWS = 100
END = {"end": "of the rows"}
_HOW = "Run what 'history sql' prints in the database of Nova's cell, and give its output as it is."

#: The number of a line, and what it has.
Line = tuple[int, Any]


class PrintSql(PlainCommand):
    """Print the SQL that reads ended mappings in Nova's database; it changes nothing there."""

    def take_action(self, _parsed_args: argparse.Namespace) -> int:
        from ledger.nova_beside.script import read_deleted

        self.app.stdout.write(f"{read_deleted()}\n")
        return 0


class ImportHistory(ShowOne):
    """Import mappings that ended in Nova's database before the ledger observed it.

    The file is the output of the SQL that 'history sql' prints.  A mapping that the log has is not
    recorded again.  A line that is refused does not stop the others; the exit code is then 4.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.counts: Counter[str] = Counter()
        self.oldest: list[str] = []
        self.refused: list[dict[str, Any]] = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", metavar="<file>", help="'-': standard input")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from ledger.cli.operations.plan import Lines

        name = parsed_args.file
        try:
            with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file:
                self._import(file)
        except OSError as error:
            raise usage(f"{name} cannot be read: {error.strerror}.") from None
        if self.refused:
            self.exit_code = ExitCode.REFUSED
        self.refused.sort(key=lambda each: each["line"])
        told = (f"line {each['line']}: {each['why']}" for each in self.refused)
        refused = Lines(self.refused, told)
        oldest = min(self.oldest, key=datetime.fromisoformat, default=None)
        names = ("recorded", "known", "oldest", "refused")
        return names, (self.counts["recorded"], self.counts["known"], oldest, refused)

    def _import(self, file: BinaryIO) -> None:
        """Raises OSError, and CliError if it does not begin as the SQL's output does."""
        lines = self._lines(file)
        number, head = next(lines, (0, {}))
        if number != 1 or head.keys() != {"revision", "read_at"}:
            raise usage("the first line is no revision of Nova's schema with its time.", _HOW)
        self._send(head, [])
        while page := list(islice(lines, PAGE_ROWS)):
            self._send(head, page)

    def _lines(self, file: BinaryIO) -> Iterator[Line]:
        number, row = 0, None
        while line := file.readline(LINE_BYTES_MAX):
            number += 1
            long, end = len(line) == LINE_BYTES_MAX, line
            while end and not end.endswith(b"\n"):
                end = file.readline(LINE_BYTES_MAX)
            try:
                if not long and _is_flat(row := json.loads(line)):
                    if row != END:
                        yield number, row
                    continue
                why = f"It has {LINE_BYTES_MAX} bytes or more." if long else "It is no flat object."
            except (ValueError, RecursionError) as error:
                why = f"It is no line of JSON: {error}."
            self._refuse(number, why)
        if row != END:
            self._refuse(
                number + 1, "It is missing: the file ends before what the SQL prints does."
            )

    def _send(self, head: dict[str, Any], page: list[Line]) -> None:
        """One by one in the end, if something in the page cannot be sent at all."""
        from ledger.cli.client import ServiceError

        body = {**head, "rows": [row for _, row in page]}
        try:
            answer = self.client.post("/v1/history/import", body)
        except ServiceError as error:
            if not page or error.status not in {400, 413}:
                raise
            if len(page) == 1:
                self._refuse(page[0][0], str(error))
                return
            half = len(page) // 2
            self._send(head, page[:half])
            self._send(head, page[half:])
            return
        self.counts.update(recorded=answer["recorded"], known=answer["known"])
        self.oldest += [answer["oldest"]] if answer["oldest"] else []
        for each in answer["refused"]:
            self._refuse(page[each["row"]][0], each["why"])

    def _refuse(self, number: int, why: str) -> None:
        self.refused.append({"line": number, "why": why})


def _is_flat(row: Any) -> bool:
    """What is nested can be too deep to be sent."""
    return isinstance(row, dict) and not any(isinstance(v, dict | list) for v in row.values())
