"""Settings of a program: one frozen tree of dataclasses, read once.

Later sources win: defaults, the file (TOML), credentials, the environment, the command line.  The
file is the one named on the command line or by the variable <PREFIX>CONFIG, else the default one if
it exists.  A variable is the prefix and the key in upper case; two underscores enter a section:
LEDGER_LISTEN__PORT.  Its value is a plain text for a text, and TOML otherwise.  A credential is a
file named as a variable, in systemd's directory (LoadCredential=).

All problems are reported at once, one line each: the source, the key, what is expected.  The lines
repeat numbers, but no texts, which may be secrets.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from host_agent.shared.platform.files import regular_file
from host_agent.shared.platform.masking import holds_secret

S = TypeVar("S")


class ConfigError(ValueError):
    """Settings that cannot be used; one line for each problem."""


class NotNowError(ConfigError):
    """A file or a port that the settings name cannot be used now, but may be later: it is being
    replaced, or in use.  systemd restarts the program.
    """


class Must(NamedTuple):
    """For `Annotated`: a condition of a value, and its words after "expected a number"."""

    holds: Callable[[Any], bool]
    words: str


Positive = Annotated[int, Must(lambda value: value > 0, "above 0")]
Seconds = Annotated[float, Must(lambda value: value > 0, "above 0")]


class Source(NamedTuple):
    """The default sources of a program's settings."""

    prefix: str  # of environment variables
    file: Path


class _Node(NamedTuple):
    """A value with its source; the value of a table is a dict of nodes."""

    value: Any
    where: str


class _Text(str):
    """A text from a variable or an option, which may have to be parsed as TOML."""

    __slots__ = ()


def load(
    kind: type[S],
    source: Source,
    file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    flags: Mapping[str, Any] | None = None,
) -> S:
    """The settings, a dataclass.  `flags` by dotted key, None for "not given".

    Raises ConfigError.
    """
    problems: list[str] = []
    prefix, tree = source.prefix, _Node({}, "")
    for layer in (
        *_from_file(source, file, environ),
        *_from_names(kind, prefix, _credentials(prefix, environ), "credential", problems),
        *_from_names(kind, prefix, environ, "environment variable", problems),
        *(_at(key, value, "command line") for key, value in (flags or {}).items()),
    ):
        tree = _over(tree, layer)
    settings: S = _section(kind, tree, "", problems)
    if problems:
        raise ConfigError("\n".join(problems))
    return settings


# --- sources --------------------------------------------------------------------------------------


def file_of(
    source: Source, file: Path | None, environ: Mapping[str, str] = os.environ
) -> Path | None:
    """The file that `load` reads, if any."""
    named = file or environ.get(f"{source.prefix}CONFIG")
    if not named and not source.file.exists():
        return None
    return Path(named or source.file)


def _from_file(source: Source, file: Path | None, environ: Mapping[str, str]) -> Iterator[_Node]:
    path = file_of(source, file, environ)
    if path is None:
        return
    try:
        with regular_file(path) as same, same.open("rb") as opened:
            given, status = tomllib.load(opened), os.fstat(opened.fileno())
        secret, node = holds_secret(given), _node(given, str(path))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except RecursionError:
        raise ConfigError(f"{path}: is no TOML: it is nested too deeply") from None
    except ValueError as error:  # also of a number of too many digits
        raise ConfigError(f"{path}: is no TOML: {error}") from None
    if secret:
        refuse_readable(path, status)
    yield node


def refuse_readable(path: Path, status: os.stat_result) -> None:
    """Raises ConfigError if every user of this machine may read or change a file with a secret.

    The group may, because services often read root's files by their group.
    """
    if status.st_mode & (stat.S_IROTH | stat.S_IWOTH):
        raise ConfigError(
            f"{path}: holds a secret, and every user of this machine may read or change it: "
            f"chmod o-rwx {path}"
        )


def secret_in(path: Path) -> str:
    """The secret in a file.  Raises ConfigError."""
    try:
        with regular_file(path) as same, same.open() as opened:
            refuse_readable(path, os.fstat(opened.fileno()))
            secret = opened.read().strip()
    except OSError as error:
        raise NotNowError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: holds no text") from None
    if not secret:
        raise NotNowError(f"{path}: is empty")
    return secret


def _credentials(prefix: str, environ: Mapping[str, str]) -> dict[str, str]:
    """systemd's credentials (systemd.exec(5), CREDENTIALS_DIRECTORY)."""
    given = environ.get("CREDENTIALS_DIRECTORY")
    paths = sorted(Path(given).glob(f"{prefix}*")) if given else []
    return {path.name: secret_in(path) for path in paths}


def _from_names(
    kind: type, prefix: str, given: Mapping[str, str], what: str, problems: list[str]
) -> Iterator[_Node]:
    """Unknown names with the prefix belong to other programs, unless they look like a key."""
    top = get_type_hints(kind).keys()
    flat = {key.replace("__", "_"): key for key in _variables(kind)}
    for name, text in given.items():
        if not name.startswith(prefix):
            continue
        key = name.removeprefix(prefix).lower()
        where = f"{what} {name}"
        if "__" in key or key in top:
            yield _at(key.replace("__", "."), text, where)
        elif key in flat:
            meant = prefix + flat[key].upper()
            problems.append(f"{where}: two underscores enter a section: {meant}")


def _variables(kind: type, section: str = "") -> Iterator[str]:
    for name, hint in get_type_hints(kind).items():
        yield f"{section}{name}"
        if dataclasses.is_dataclass(hint):
            yield from _variables(hint, f"{section}{name}__")  # type: ignore[arg-type]


def _at(key: str, value: Any, where: str) -> _Node:
    """A tree with this value; an empty one for None."""
    if value is None:
        return _Node({}, where)
    node = _Node(_Text(value) if isinstance(value, str) else value, where)
    for name in reversed(key.split(".")):
        node = _Node({name: node}, where)
    return node


def _node(value: Any, where: str) -> _Node:
    if isinstance(value, dict):
        return _Node({key: _node(item, where) for key, item in value.items()}, where)
    return _Node(value, where)


def _over(old: _Node, new: _Node) -> _Node:
    """`new` wins; tables are merged key by key."""
    if not (isinstance(old.value, dict) and isinstance(new.value, dict)):
        return new
    both = {key: _over(old.value[key], new.value[key]) for key in old.value.keys() & new.value}
    where = old.where if new.where in old.where else ", ".join(filter(None, (old.where, new.where)))
    return _Node({**old.value, **new.value, **both}, where)


# --- values ---------------------------------------------------------------------------------------

#: For each type: the Python type from TOML, and its name in messages.
_TOML: dict[Any, tuple[type, str]] = {
    str: (str, "a text"),
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    tuple: (list, "a list"),
    Mapping: (dict, "a table"),
}


def _section(kind: type[S], node: _Node, key: str, problems: list[str]) -> Any:
    """The dataclass with these values; invalid if a problem was added."""
    begun = len(problems)
    hints = get_type_hints(kind, include_extras=True)
    found = {}
    for name, child in node.value.items():
        path = f"{key}.{name}" if key else name
        if name in hints:
            found[name] = _read(hints[name], child, path, problems)
        else:
            problems.append(f"{child.where}: unknown key {path!r}, {_meant(name, list(hints))}")
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        no_default = field.default is field.default_factory is dataclasses.MISSING
        if no_default and field.name not in found:
            problems.append(f"{node.where}: {key}: {field.name!r} is missing")
    try:
        return kind(**found) if len(problems) == begun else None
    except ValueError as error:
        problems.append(f"{node.where}: {key}: {error}" if key else str(error))


def _meant(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"


def _read(hint: Any, node: _Node, key: str, problems: list[str]) -> Any:
    """The node as a value of this type; invalid if a problem was added."""
    hint, *musts = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if isinstance(hint, UnionType):  # with None, which TOML does not have
        hint = get_args(hint)[0]
    kind = get_origin(hint) or hint
    value = _as_in_a_file(kind, node)
    if wrong := _wrong(kind, value, musts):
        problems.append(f"{node.where}: {key}: {wrong}")
        return None
    if dataclasses.is_dataclass(kind):
        return _section(kind, _Node(value, node.where), key, problems)  # type: ignore[arg-type]
    if kind is tuple:
        items = [_node(item, node.where) for item in value]
        of = get_args(hint)[0]
        return tuple(_read(of, item, f"{key}.{n}", problems) for n, item in enumerate(items))
    return _plain(_Node(value, node.where)) if kind is Mapping else kind(value)


def _as_in_a_file(kind: type, node: _Node) -> Any:
    """The value as from a file: a text from elsewhere is parsed as TOML."""
    if not isinstance(node.value, _Text) or issubclass(kind, str):
        return node.value
    try:
        return _node(tomllib.loads(f"x = {node.value}")["x"], node.where).value
    except (ValueError, RecursionError):
        return node.value


def _wrong(kind: type, value: Any, musts: list[Must]) -> str:
    """The problem with this value; "" if there is none."""
    if issubclass(kind, StrEnum):
        return "" if value in list(kind) else f"expected one of {', '.join(kind)}"
    written, name = _TOML[Mapping if dataclasses.is_dataclass(kind) else kind]
    given = str if isinstance(value, _Text) else type(value)
    if given is not written and (given, written) != (int, float):
        others = (words for each, words in _TOML.values() if each is given)
        return f"expected {name}, not {next(others, 'a date')}"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:  # TOML 1.0, Integer
        return f"expected {name} of 64 bits"
    broken = next((must.words for must in musts if not must.holds(value)), None)
    shown = f"is {value}, " if isinstance(value, (int, float)) else ""
    return f"{shown}expected {name} {broken}" if broken else ""


def _plain(node: _Node) -> Any:
    if isinstance(node.value, dict):
        return {key: _plain(item) for key, item in node.value.items()}
    return str(node.value) if isinstance(node.value, _Text) else node.value
