"""The loader of named queries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import sql

GROUPS = sorted(path.stem for path in (sql.HERE / "queries").glob("*.sql"))


def test_parse_gives_name_description_and_text() -> None:
    parsed = sql.parse(
        "-- preamble\n-- name: one\n-- Says\n-- what.\nSELECT 1;\n\n-- name: two\n-- b\nSELECT 2;"
    )
    assert parsed["one"] == sql.Query("one", "Says what.", "SELECT 1;")
    assert parsed["two"].text == "SELECT 2;"


@pytest.mark.parametrize(
    "source",
    ["-- name: one\nSELECT 1;", "-- name: one\n-- a\nSELECT 1;\n-- name: one\n-- b\nSELECT 2;"],
)
def test_a_query_without_description_or_defined_twice_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="'one'"):
        sql.parse(source)


@pytest.mark.parametrize("group", GROUPS)
def test_every_query_of_the_ledger_has_a_description_and_a_text(group: str) -> None:
    for query in sql.queries(group).values():
        assert query.description.endswith(".")
        assert query.text.endswith(";")


def test_each_index_is_named_by_a_query_that_uses_it() -> None:
    """The rest is written by each append or batch, and read by nobody: the next `.contract` is to
    drop it.  By itself it is not worth one, for the version before would refuse the database.
    """
    made = re.findall(r"^CREATE (?:UNIQUE )?INDEX (\w+)", _texts("migrations"), re.MULTILINE)
    told = re.findall(r"\w+", _texts("queries"))
    assert set(made) - set(told) == {"events_by_time", "remnants_by_position"}


def _texts(room: str) -> str:
    return "\n".join(path.read_text() for path in (sql.HERE / room).glob("*.sql"))


def test_includes_are_relative_to_the_including_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.sql").write_text("B\n\\ir c.sql\n")
    (tmp_path / "sub" / "c.sql").write_text("C")
    (tmp_path / "a.sql").write_text("A\n\\ir sub/b.sql\nZ")
    assert sql.read(tmp_path / "a.sql") == "A\nB\nC\n\nZ"
