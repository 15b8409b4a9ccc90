"""What of a file can be changed so that a test should fail: its tables and its conditions.

Pure.  In Python: an undo, a step, a term of `and` or `or`, a member of a set or a guard (an `if`
that returns or raises) is left out; another member of an enumeration is taken.  In SQL: a condition
is left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

_ENUM = re.compile(r"[A-Z]\w*\.[A-Z][A-Z_]+\Z")
#: `AND` or `WHERE` and what follows it in its line, if brackets are closed there.
_CONDITION = re.compile(
    r"\b(?:AND|WHERE) (?:BETWEEN \S+ AND |[^()\n;]|\([^()\n]*\))+?"
    r"(?= (?:AND|OR|ORDER|GROUP|LIMIT|UNION|FOR)\b|;?$)",
    re.MULTILINE,
)
_FILTER = re.compile(r" FILTER \(WHERE (?:[^()\n]|\([^()\n]*\))+\)")


class Change(NamedTuple):
    """In `path`, what is from `start` to `end` (in characters) becomes `new`."""

    path: str
    line: int
    start: int
    end: int
    new: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.what}"


def changes(path: str, text: str) -> list[Change]:
    """All of a file, in its order."""
    found = _of_sql(text) if path.endswith(".sql") else _of_python(text)
    return [
        Change(path, text.count("\n", 0, start) + 1, start, end, new, " ".join(what.split()))
        for start, end, new, what in sorted(found)
    ]


Found = tuple[int, int, str, str]


def _of_sql(text: str) -> Iterator[Found]:
    for match in _CONDITION.finditer(text):
        new = "WHERE true" if match[0].startswith("WHERE") else ""
        if "--" not in text[text.rfind("\n", 0, match.start()) + 1 : match.start()]:
            yield match.start(), match.end(), new, f"without {match[0]}"
    for match in _FILTER.finditer(text):
        yield match.start(), match.end(), "", f"without {match[0]}"


def _of_python(text: str) -> Iterator[Found]:
    tree, source = ast.parse(text), _Source(text)
    enums = sorted({said for node in ast.walk(tree) if _ENUM.match(said := source.text(node))})
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="Step"), keywords=[ast.keyword(arg="undo"), *_]):
                yield *source.without(node.keywords[0]), f"{source.text(node)} without its undo"
            case ast.BoolOp(op=op, values=terms):
                neutral = str(isinstance(op, ast.And))
                for each in (term for term in terms if not isinstance(term, ast.Constant)):
                    yield *source.span(each), neutral, f"without {source.text(each)}"
            case ast.Set() | ast.Tuple() if isinstance(node, ast.Set) or _calls("Step", *node.elts):
                yield from _each_left_out(source, node.elts)
            case ast.Attribute() if (said := source.text(node)) in enums:
                if (other := _another(said, enums)) is not None:
                    yield *source.span(node), other, f"{said} -> {other}"
            case ast.If(body=[ast.Return() | ast.Raise()], orelse=[]):
                yield *source.span(node.test), "False", f"without if {source.text(node.test)}"


def _calls(name: str, *nodes: ast.expr) -> bool:
    return all(isinstance(n, ast.Call) and ast.unparse(n.func) == name for n in nodes)


def _another(member: str, enums: list[str]) -> str | None:
    """The next one of its kind that the file names."""
    kin = [each for each in enums if each.partition(".")[0] == member.partition(".")[0]]
    return kin[(kin.index(member) + 1) % len(kin)] if len(kin) > 1 else None


def _each_left_out(source: _Source, several: list[ast.expr]) -> Iterator[Found]:
    """With the comma between it and its neighbour; one alone stays."""
    spans = [source.span(each) for each in several]
    for number, (start, _) in enumerate(spans[:-1]):
        yield start, spans[number + 1][0], "", f"without {source.text(several[number])}"
    if len(spans) > 1:
        yield spans[-2][1], spans[-1][1], "", f"without {source.text(several[-1])}"


class _Source:
    """Where a node stands in the text; `ast` counts lines, and bytes in them."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = text.splitlines(keepends=True)
        self._begins = [0]
        for line in self._lines:
            self._begins.append(self._begins[-1] + len(line))

    def span(self, node: ast.AST) -> tuple[int, int]:
        at = [getattr(node, name) for name in ("lineno", "col_offset", "end_lineno")]
        return self._at(at[0], at[1]), self._at(at[2], node.end_col_offset)  # type: ignore[attr-defined]

    def _at(self, line: int, column: int) -> int:
        return self._begins[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def text(self, node: ast.AST) -> str:
        if not hasattr(node, "end_col_offset"):
            return ""
        start, end = self.span(node)
        return self._text[start:end]

    def without(self, keyword: ast.keyword) -> tuple[int, int, str]:
        start, end = self.span(keyword)
        return self._text.rindex(",", 0, start), end, ""
