"""How settings are read, for both programs: sources, types, and what is said of wrong ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest

from host_agent.shared.platform import settings
from host_agent.shared.platform.settings import ConfigError, Must, Positive, Seconds, Source
from tests.tokens import write_private


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Inner:
    depth: Positive = 1


@dataclass(frozen=True, kw_only=True)
class Section:
    number: int = 1
    wait_s: Seconds = 2.0
    switch: bool = False
    options: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)
    inner: Inner = Inner()

    def __post_init__(self) -> None:
        if self.number > self.wait_s:
            raise ValueError("'number' is above 'wait_s'")


@dataclass(frozen=True, kw_only=True)
class Item:
    name: str
    colours: Annotated[tuple[Colour, ...], Must(bool, "that is not empty")] = (Colour.RED,)


@dataclass(frozen=True, kw_only=True)
class Tree:
    text: str | None = None
    colour: Colour = Colour.RED
    section: Section = Section()
    items: tuple[Item, ...] = ()


def load(path: Path, text: str | None, flags: Mapping[str, Any] | None = None, **env: str) -> Tree:
    source = Source("P_", path / "usual.toml")
    if text is not None:
        write_private(source.file, text)
    return settings.load(Tree, source, environ=env, flags=flags)


def refused(path: Path, text: str, flags: Mapping[str, Any] | None = None, **env: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        load(path, text, flags, **env)
    return str(raised.value).splitlines()


def test_with_nothing_given_the_defaults_are_in_force(tmp_path: Path) -> None:
    assert load(tmp_path, None) == load(tmp_path, "") == Tree()


def test_later_source_wins_key_by_key(tmp_path: Path) -> None:
    text = "text = 'file'\ncolour = 'blue'\n[section]\nnumber = -1\nwait_s = 5\nswitch = true"
    env = {"P_TEXT": "environment", "P_SECTION__NUMBER": "3"}
    flags = {"section.number": 4, "section.wait_s": None, "colour": None}
    read = load(tmp_path, text, flags, **env)
    assert (read.text, read.colour) == ("environment", Colour.BLUE)
    assert read.section == Section(number=4, wait_s=5.0, switch=True)
    assert load(tmp_path, text, None, **env).section.number == 3


def test_a_credential_is_over_the_file_and_under_the_variables(tmp_path: Path) -> None:
    directory = tmp_path / "credentials"
    directory.mkdir()
    write_private(directory / "P_TEXT", "secret\n")
    write_private(directory / "P_SECTION__NUMBER", "2")
    (directory / "another-program's").write_bytes(b"\xff")
    given: dict[str, Any] = {"CREDENTIALS_DIRECTORY": str(directory)}
    read = load(tmp_path, 'text = "file"\nsection.number = 0', **given)
    assert (read.text, read.section.number) == ("secret", 2)
    assert load(tmp_path, None, **given, P_TEXT="variable").text == "variable"
    write_private(directory / "P_SECTION__NUMBER", "two")
    with pytest.raises(ConfigError, match=r"credential P_SECTION__NUMBER: section.number"):
        load(tmp_path, None, **given)


def test_file_named_by_option_wins_over_the_variables_and_that_over_the_usual(
    tmp_path: Path,
) -> None:
    source = Source("P_", tmp_path / "usual")
    for name in ("option", "variable", "usual"):
        (tmp_path / name).write_text(f"text = '{name}'")
    env = {"P_CONFIG": str(tmp_path / "variable")}
    assert settings.load(Tree, source, tmp_path / "option", env).text == "option"
    assert settings.load(Tree, source, None, env).text == "variable"
    assert settings.load(Tree, source, None, {}).text == "usual"


@pytest.mark.parametrize("named", [{"P_CONFIG": "/nowhere/at/all"}, {}])
def test_named_file_that_is_missing_is_refused(tmp_path: Path, named: dict[str, str]) -> None:
    source = Source("P_", tmp_path / "usual")
    file = None if named else Path("/nowhere/at/all")
    with pytest.raises(ConfigError, match=r"^/nowhere/at/all: no such file$"):
        settings.load(Tree, source, file, named)


def test_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{tmp_path}: cannot be read: Is a directory$"):
        settings.load(Tree, Source("P_", tmp_path), None, {})
    (tmp_path / "latin").write_bytes(b"text = '\xe9'")
    with pytest.raises(ConfigError, match=r"latin: is no TOML: "):
        settings.load(Tree, Source("P_", tmp_path / "latin"), None, {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"text = {'[' * 5_000}", "is no TOML: it is nested too deeply"),
        (f"section.{'x.' * 5_000}x = 1", "is no TOML: it is nested too deeply"),
        (f"section.number = {'9' * 5_000}", "is no TOML: Exceeds the limit (4300 digits)"),
        (f"section.number = {2**63}", "section.number: expected a whole number of 64 bits"),
        (f"section.wait_s = {10**400}", "section.wait_s: expected a number of 64 bits"),
        (f"section.inner.depth = 0x{'f' * 5_000}", "section.inner.depth: expected a whole number"),
    ],
    ids=["brackets", "keys", "digits", "65 bits", "no float", "of base 16"],
)
def test_what_is_too_much_for_a_value_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (line,) = refused(tmp_path, text)
    assert line.startswith(f"{tmp_path / 'usual.toml'}: {says}")


@pytest.mark.parametrize("value", ["[" * 5_000, "9" * 5_000], ids=["brackets", "digits"])
def test_so_it_is_in_a_variable(tmp_path: Path, value: str) -> None:
    (line,) = refused(tmp_path, "", P_SECTION__NUMBER=value)
    assert line.endswith("section.number: expected a whole number, not a text")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("text", "5", Tree(text="5")),
        ("text", "", Tree(text="")),
        ("colour", "blue", Tree(colour=Colour.BLUE)),
        ("section.number", "-7", Tree(section=Section(number=-7))),
        ("section.wait_s", "5", Tree(section=Section(wait_s=5.0))),
        ("section.switch", "true", Tree(section=Section(switch=True))),
        ("section.inner.depth", "3", Tree(section=Section(inner=Inner(depth=3)))),
        ("section.inner", "{depth = 3}", Tree(section=Section(inner=Inner(depth=3)))),
        ("section.options", '{a = "x"}', Tree(section=Section(options={"a": "x"}))),
        ("section.options", "{a = [1]}", Tree(section=Section(options={"a": [1]}))),
        ("section.options.a", "1", Tree(section=Section(options={"a": "1"}))),
        ("items", '[{name = "a"}]', Tree(items=(Item(name="a"),))),
    ],
)
def test_variable_and_option_are_text_for_a_text_and_toml_otherwise(
    tmp_path: Path, key: str, value: str, expected: Tree
) -> None:
    variable = f"P_{key.replace('.', '__').upper()}"
    assert load(tmp_path, "", None, **{variable: value}) == expected
    assert load(tmp_path, "", {key: value}) == expected


def test_what_is_read_is_of_the_declared_type_alone(tmp_path: Path) -> None:
    read = load(tmp_path, "", P_TEXT="x", P_SECTION__WAIT_S="5", P_SECTION__OPTIONS__A="y")
    options = read.section.options
    assert options
    assert [type(each) for each in (read.text, read.section.wait_s, options["a"])] == [
        *(str, float, str)
    ]


def test_variable_enters_a_table_of_the_file_and_changes_that_key_alone(tmp_path: Path) -> None:
    text = "[section.options]\nuser = 'u'\npassword = 'p'\nmore = {a = 1}"
    read = load(tmp_path, text, P_SECTION__OPTIONS__PASSWORD="q", P_SECTION__OPTIONS__MORE__B="2")
    assert read.section.options == {"user": "u", "password": "q", "more": {"a": 1, "b": "2"}}
    assert {type(value) for value in read.section.options.values()} == {str, dict}


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602], ids=oct)
@pytest.mark.parametrize(
    "text",
    ["text = 'postgresql://u:hunter2@db'", "[section.options]\npassword = 'p'"],
    ids=["password in a URL", "password"],
)
def test_file_with_a_secret_that_all_may_read_or_change_is_refused(
    tmp_path: Path, text: str, mode: int
) -> None:
    file = write_private(tmp_path / "usual.toml", text)
    file.chmod(mode)
    [line] = refused(tmp_path, text)
    assert line.startswith(f"{file}: holds a secret")
    assert line.endswith(f"chmod o-rwx {file}")
    file.chmod(0o640)
    load(tmp_path, text)


def test_file_without_a_secret_may_be_read_by_all(tmp_path: Path) -> None:
    text = "text = 'postgresql://u@db'\n[section.options]\ntoken_file = '/t'\npassword = ''"
    write_private(tmp_path / "usual.toml", text).chmod(0o644)
    assert load(tmp_path, text).text == "postgresql://u@db"


def test_list_of_tables_is_read_in_order(tmp_path: Path) -> None:
    text = "[[items]]\nname = 'a'\n[[items]]\nname = 'b'\ncolours = ['blue', 'red']"
    b = Item(name="b", colours=(Colour.BLUE, Colour.RED))
    assert load(tmp_path, text).items == (Item(name="a"), b)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("text = 5", "text: expected a text, not a whole number"),
        ("text = 1979-05-27", "text: expected a text, not a date"),
        ("colour = 'green'", "colour: expected one of red, blue"),
        ("colour = 5", "colour: expected one of red, blue"),
        ("section = 5", "section: expected a table, not a whole number"),
        ("section = [5]", "section: expected a table, not a list"),
        ("[section]\nnumber = '5'", "section.number: expected a whole number, not a text"),
        ("[section]\nnumber = 5.0", "section.number: expected a whole number, not a number"),
        ("[section]\nnumber = true", "section.number: expected a whole number, not true or false"),
        ("[section]\nwait_s = true", "section.wait_s: expected a number, not true or false"),
        ("[section]\nwait_s = 0", "section.wait_s: is 0, expected a number above 0"),
        ("[section]\nwait_s = nan", "section.wait_s: is nan, expected a number above 0"),
        ("[section]\nswitch = 1", "section.switch: expected true or false, not a whole number"),
        ("[section]\noptions = 'x'", "section.options: expected a table, not a text"),
        (
            "[section.inner]\ndepth = -1",
            "section.inner.depth: is -1, expected a whole number above 0",
        ),
        ("[section]\nnumber = 3", "section: 'number' is above 'wait_s'"),
        ("txet = 'x'", "unknown key 'txet', did you mean 'text'?"),
        ("[sectoin]", "unknown key 'sectoin', did you mean 'section'?"),
        ("[section.inner]\nzzz = 1", "unknown key 'section.inner.zzz', known are depth"),
        ("[items]", "items: expected a list, not a table"),
        ("[[items]]", "items.0: 'name' is missing"),
        ("[[items]]\nname = 'a'\n[[items]]\nnmae = 'b'", None),
        (
            "[[items]]\nname = 'a'\ncolours = []",
            "items.0.colours: expected a list that is not empty",
        ),
        (
            "[[items]]\nname = 'a'\ncolours = ['red', 5]",
            "items.0.colours.1: expected one of red, blue",
        ),
    ],
)
def test_wrong_value_is_refused_naming_file_key_and_what_is_expected(
    tmp_path: Path, text: str, says: str | None
) -> None:
    lines = refused(tmp_path, text)
    where = f"{tmp_path / 'usual.toml'}: "
    both = ["unknown key 'items.1.nmae', did you mean 'name'?", "items.1: 'name' is missing"]
    assert lines == [where + line for line in ([says] if says else both)]


def test_wrong_variable_and_option_are_named(tmp_path: Path) -> None:
    env = {"P_SECTION__NUMBER": "many", "P_SECTION__INNER__PROT": "1", "P_TEXT__X": "1"}
    variable = "environment variable P_"
    assert set(refused(tmp_path, "text = 'x'", {"section.wait_s": "-1"}, **env)) == {
        f"{variable}SECTION__NUMBER: section.number: expected a whole number, not a text",
        f"{variable}SECTION__INNER__PROT: unknown key 'section.inner.prot', known are depth",
        f"{variable}TEXT__X: text: expected a text, not a table",
        "command line: section.wait_s: is -1, expected a number above 0",
    }


def test_what_contradicts_itself_names_all_that_gave_to_it(tmp_path: Path) -> None:
    flags = {"section.switch": "true", "section.inner.depth": "2"}
    env = {"P_TEXT": "x", "P_SECTION__WAIT_S": "1"}
    where = f"{tmp_path / 'usual.toml'}, environment variable P_SECTION__WAIT_S, command line"
    lines = refused(tmp_path, "[section]\nnumber = 2", flags, **env)
    assert lines == [f"{where}: section: 'number' is above 'wait_s'"]


def test_variable_with_too_few_underscores_is_refused(tmp_path: Path) -> None:
    (line,) = refused(tmp_path, "", P_SECTION_INNER_DEPTH="3")
    assert line.endswith("INNER_DEPTH: two underscores enter a section: P_SECTION__INNER__DEPTH")


def test_other_programs_variables_are_none_of_ours(tmp_path: Path) -> None:
    others = {"P_URL": "x", "P_CONFIG": "", "PATH__X": "y", "SECTION__NUMBER": "3"}
    assert load(tmp_path, "", None, **others) == Tree()


def test_all_that_is_wrong_is_told_at_once_and_no_text_is_repeated(tmp_path: Path) -> None:
    text = "colour = 's3cret'\n[section]\nnumber = 's3cret'\n[section.inner]\ndepth = 0"
    lines = refused(tmp_path, text, P_SECTION__SWITCH="s3cret", P_SECTION__OPTIONS="s3cret")
    assert len(lines) == 5
    assert "s3cret" not in " ".join(lines)
