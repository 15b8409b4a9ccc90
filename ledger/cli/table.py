"""Tables for people: they fit a terminal, never break an id, and say how long ago.

Only what goes to a terminal is made short: there ids are cut to what tells them apart in this
table (the service takes such beginnings, decision 0068), moments are told as an age, states
have a colour, and texts are wrapped between words.  In a pipe a table has whole ids and moments.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

from cliff.columns import FormattableColumn
from cliff.formatters.shell import ShellFormatter
from cliff.formatters.table import TableFormatter

from host_agent.shared.platform.text import visible

ID_CHARS = (8, 13, 18, 23, 36)  # where the groups of an id end
#: A word that is longer than this, and no id, may be broken if there is no room for it.
WORD_CHARS = 20
_GAP = "  "
#: What a shell obeys between double quotes (POSIX, 2.2.3); cliff sees to the quotes alone.
_OBEYED = re.compile(r"[\\$`]")

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_ID = re.compile(rf"(?<![\w-]){_UUID}(?![\w-])")
#: What other programs are told, commands and SQL, and want whole; and else each id.
_CUT = re.compile(rf"`[^`]*`|'{_UUID}'|{_ID.pattern}")
#: What is never broken: ids, and those of requests, which are not cut either.
_WHOLE = re.compile(rf"(?:req-)?{_UUID}")
#: Nova's own moments are UTC, and do not say so.
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?\Z")
#: In a line of words in columns, where the last one begins.
_LAST_COLUMN = re.compile(r"(?=.*\S {2,}\S)(.*\S {2,})\S")

#: A command to be copied, to the end of its line.
_COMMAND = re.compile(r"attachment-ledger( \S+)+$", re.MULTILINE)
_NO_BREAK = "\0"

_COLOUR = re.compile(r"\x1b\[\d*m")
_RED, _YELLOW, _GREEN = "31", "33", "32"
_STATES = ("state", "status", "severity", "outcome")
_COLOURS = {
    **dict.fromkeys(("parked", "failed", "down", "fenced", "critical", "error"), _RED),
    **dict.fromkeys(
        ("running", "unwinding", "suspect", "unvouched", "suspected", "warning"), _YELLOW
    ),
    **dict.fromkeys(("confirmed", "retrying", "open"), _YELLOW),
    **dict.fromkeys(("completed", "up", "active", "attached", "acknowledged", "over"), _GREEN),
}


def colours(stream: TextIO) -> bool:
    """Whether colours are wanted there (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def now() -> datetime:
    """This machine's time: for how long ago something was, and for no decision."""
    return datetime.now(UTC)


def age(then: datetime, now: datetime) -> str:
    """How long ago, as `span` has it; a moment still to come is now."""
    return span((now - then).total_seconds())


def span(seconds: float) -> str:
    """A time in the largest unit of which there are two: "90 s", "3 min", "5 h", "12 d"."""
    whole = max(0, int(seconds))
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if whole >= 2 * size:
            return f"{whole // size} {unit}"
    return f"{whole} s"


def plain(value: Any) -> str:
    """A value in words: no braces, no None."""
    match value:
        case FormattableColumn():
            return plain(value.human_readable())
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case dict():
            return "\n".join(f"{key}: {inline(item)}" for key, item in value.items())
        case list() | tuple():
            return ", ".join(map(inline, value))
    return str(value)


def inline(value: Any) -> str:
    """The same in one line."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {inline(item)}" for key, item in value.items())
    return plain(value)


class NamedId(FormattableColumn[str]):
    """An id, for people with the name of what has it."""

    def __init__(self, value: str, name: str | None) -> None:
        super().__init__(value)
        self._name = name

    def human_readable(self) -> str:
        return f"{self._name} {self._value}" if self._name else str(self._value)


class TerminalTable(TableFormatter):
    """cliff's tables in a pipe; our own on a terminal."""

    def emit_list(
        self,
        column_names: Sequence[str],
        data: Iterable[Sequence[Any]],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        rows = [list(row) for row in data]
        if _is_plain_table(stdout, parsed_args):
            kept = [[_plain_cell(value) for value in row] for row in rows]
            super().emit_list(column_names, kept, stdout, parsed_args)
            return
        names = list(column_names)
        if brief := [names.index(name) for name in parsed_args.brief if name in names]:
            names, rows = [names[at] for at in brief], [[row[at] for at in brief] for row in rows]
        whole = bool(parsed_args.columns)
        write_lines(
            list_lines(names, rows, shutil.get_terminal_size().columns, now(), whole=whole),
            stdout,
        )

    def emit_one(
        self,
        column_names: Sequence[str],
        data: Sequence[Any],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        if _is_plain_table(stdout, parsed_args):
            super().emit_one(
                column_names, [_plain_cell(value) for value in data], stdout, parsed_args
            )
            return
        fields = zip(column_names, data, strict=True)
        write_lines(field_lines(fields, shutil.get_terminal_size().columns, now()), stdout)


class QuotedShell(ShellFormatter):
    """cliff's lines for `eval`, of which a shell obeys none: names and reasons are tenants'."""

    def emit_one(
        self,
        column_names: Sequence[str],
        data: Sequence[Any],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        texts = [
            str(value.machine_readable() if isinstance(value, FormattableColumn) else value)
            for value in data
        ]
        quoted = [_OBEYED.sub(r"\\\g<0>", text) for text in texts]
        super().emit_one(column_names, quoted, stdout, parsed_args)


def _is_plain_table(stdout: TextIO, parsed_args: argparse.Namespace) -> bool:
    return not stdout.isatty() or parsed_args.max_width > 0 or parsed_args.fit_width


def _plain_cell(value: Any) -> Any:
    """Numbers as they are, for they stand to the right."""
    return value if type(value) in {int, float} else plain(value)


def write_lines(lines: Iterable[str], stdout: TextIO) -> None:
    """Lines whose texts are visible, and whose colours are ours: past the guard of the stream."""
    unescaped(stdout).writelines(f"{line}\n" for line in painted(lines, stdout))


def painted(lines: Iterable[str], stream: TextIO) -> Iterator[str]:
    """The lines, without colours where none are wanted."""
    wanted = colours(stream)
    return (line if wanted else _COLOUR.sub("", line) for line in lines)


def unescaped(stream: TextIO) -> TextIO:
    """The stream that `EscapingStream` guards."""
    return getattr(stream, "unescaped", stream)


# --------------------------------------------------------------------------------- lists


def list_lines(
    names: Sequence[str],
    rows: Sequence[Sequence[Any]],
    width: int,
    now: datetime,
    *,
    whole: bool = False,
) -> Iterator[str]:
    """A heading and the rows, in so many columns of a terminal; `whole`: ids are not cut."""
    texts = [[_clean(plain(value)) for value in row] for row in rows]
    cut = (lambda text: text) if whole else shortener(texts)
    cells = [[cut(_moment(text, now)) for text in row] for row in texts]
    widths = _widths([list(names), *cells], width)
    yield _joined([(name, wide, "") for name, wide in zip(names, widths, strict=True)])
    for row in cells:
        wrapped = [wrap(text, wide) for text, wide in zip(row, widths, strict=True)]
        for number in range(max(map(len, wrapped))):
            line = [part[number] if number < len(part) else "" for part in wrapped]
            cut_line = zip(line, widths, map(_colour, names, row), strict=True)
            yield _joined(list(cut_line))


def shortener(texts: Iterable[Iterable[str]]) -> Callable[[str], str]:
    """Cuts ids to the groups that tell all of these texts apart, but not for other programs."""
    ids = {found for row in texts for text in row for found in _ID.findall(text)}
    enough = (chars for chars in ID_CHARS if len({each[:chars] for each in ids}) == len(ids))
    chars = next(enough)

    def cut(found: re.Match[str]) -> str:
        return found[0] if found[0][0] in "`'" else found[0][:chars]

    return lambda text: _CUT.sub(cut, text)


def _widths(cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """Of each column what it wants; the widest give way, as far as their words allow."""
    columns = list(zip(*cells, strict=True))
    wanted = [max(_longest(text, str.splitlines) for text in column) for column in columns]
    least = [max(_longest(text, _unbroken) for text in column) for column in columns]
    room = width - len(_GAP) * (len(wanted) - 1)
    while sum(wanted) > room:
        spare = [wide if wide > least[at] else 0 for at, wide in enumerate(wanted)]
        if not any(spare):
            break
        wanted[spare.index(max(spare))] -= 1
    return wanted


def _longest(text: str, split: Callable[[str], list[str]]) -> int:
    return max(map(len, split(text)), default=0)


def _unbroken(text: str) -> list[str]:
    """Of each word what has to stand in one line."""
    return [word if _WHOLE.search(word) else word[:WORD_CHARS] for word in text.split()]


def wrap(text: str, width: int) -> list[str]:
    """The lines of a text, broken between words; what goes on stands below the last column."""
    lines: list[str] = []
    for line in text.splitlines():
        hang = _hang(line, width)
        lines += textwrap.wrap(
            line,
            max(width, len(hang) + 1),
            subsequent_indent=hang,
            break_on_hyphens=False,
            drop_whitespace=True,
            break_long_words=not _WHOLE.search(line),
        ) or [""]
    return lines or [""]


def for_reader(lines: Iterable[str], stream: TextIO) -> Iterator[str]:
    """Lines of words in columns: on a terminal they fit, and their ids are short."""
    if not stream.isatty():
        yield from lines
        return
    width, whole = shutil.get_terminal_size().columns, list(lines)
    cut = shortener([whole])
    for line in whole:
        yield from wrap(cut(line), width)


def _hang(line: str, width: int) -> str:
    """What stands before a line that goes on: blanks, as far as its last column leaves room."""
    indent = line[: len(line) - len(line.lstrip())]
    columns = _LAST_COLUMN.match(line)
    if columns and len(columns[1]) <= width // 2:
        return " " * len(columns[1])
    return indent + _GAP if indent or columns else ""


def fitted(text: str, stream: TextIO) -> str:
    """A message for people: on a terminal it is broken between words; commands stay whole."""
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    kept = _COMMAND.sub(lambda found: found[0].replace(" ", _NO_BREAK), text)
    return "\n".join(wrap(kept, width)).replace(_NO_BREAK, " ")


def _joined(cells: list[tuple[str, int, str]]) -> str:
    parts = [paint(f"{text:<{wide}}", colour) for text, wide, colour in cells[:-1]]
    text, _, colour = cells[-1]
    return _GAP.join([*parts, paint(text, colour)]).rstrip()


# ---------------------------------------------------------------------------- one thing


def field_lines(fields: Iterable[tuple[str, Any]], width: int, now: datetime) -> Iterator[str]:
    """What is known, a field a line; an id that stands alone is whole, others are short."""
    known = [(name, _clean(plain(value))) for name, value in fields]
    known = [(name, text) for name, text in known if text]
    cut = shortener([[text for _, text in known]])
    left = max((len(name) for name, _ in known), default=0)
    for name, text in known:
        shown = text if _ID.fullmatch(text) else cut(_moment(text, now, whole=True))
        colour = _colour(name, text)
        for number, line in enumerate(wrap(shown, width - left - len(_GAP))):
            yield f"{'' if number else name:<{left}}{_GAP}{paint(line, colour)}".rstrip()


# ------------------------------------------------------------------------------- a cell


def _clean(text: str) -> str:
    return visible(text.replace("\r\n", "\n").replace("\r", " ").expandtabs(4))


def _moment(text: str, now: datetime, *, whole: bool = False) -> str:
    """A moment as an age; `whole`: both."""
    if not _MOMENT.fullmatch(text):
        return text
    then = datetime.fromisoformat(text)
    then = then.astimezone(UTC) if then.tzinfo else then.replace(tzinfo=UTC)
    ago = f"{age(then, now)} ago"
    return f"{then:%Y-%m-%d %H:%M:%S}Z, {ago}" if whole else ago


def _colour(name: str, text: str) -> str:
    return _COLOURS.get(text.lower(), "") if name.lower() in _STATES else ""


def paint(text: str, colour: str) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and text.strip() else text
