"""The settings of the service: one frozen tree, read once, printed by `config show`.

Later wins: defaults, the file (TOML), the environment, flags.  The file is the one
named by `--config` or LEDGER_CONFIG, else /etc/attachment-ledger/ledger.toml if it
is there.  A variable is LEDGER_ and the key in upper case; two underscores enter a
section: LEDGER_DATABASE_URL, LEDGER_LISTEN__PORT, LEDGER_CINDER__AUTH__PASSWORD.

Wrong values and unknown keys are refused, naming the key and where it came from.
Tokens are hashed when they are read, the tree never holds one.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import ipaddress
import os
import tomllib
import typing
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from host_agent.shared.masking import masked

if TYPE_CHECKING:
    from host_agent.shared.cinder.client import CinderSettings

DEFAULT_FILE = Path("/etc/attachment-ledger/ledger.toml")
ENVIRONMENT_PREFIX = "LEDGER_"

_STRICT = ConfigDict(extra="forbid")
Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]


class ConfigError(Exception):
    """The configuration cannot be used; the message names the key and its source."""


class AuthMode(StrEnum):
    NOAUTH = "noauth"  # everybody is admin: on loopback only
    TOKENS = "tokens"  # static tokens from the file


class Role(StrEnum):
    ADMIN = "admin"
    MEMBER = "member"
    READER = "reader"
    SERVICE = "service"
    OPERATOR = "operator"
    AGENT = "agent"


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Token:
    """Who the bearer of a token is.  An agent's is bound to its host."""

    name: str
    user_id: str
    project_id: str
    roles: Annotated[tuple[Role, ...], Field(min_length=1)]
    host: str | None = None
    token: str | None = dataclasses.field(default=None, repr=False)
    token_sha256: str | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        if bool(self.token) == bool(self.token_sha256):
            raise ValueError("give either 'token' or 'token_sha256'")
        if (Role.AGENT in self.roles) != bool(self.host):
            raise ValueError("'host' belongs to the role 'agent', and that role needs one")
        digest = hash_token(self.token) if self.token else str(self.token_sha256).lower()
        if len(digest) != hashlib.sha256().digest_size * 2 or not _is_hex(digest):
            raise ValueError("'token_sha256' is no SHA-256 in hexadecimal")
        object.__setattr__(self, "token", None)
        object.__setattr__(self, "token_sha256", digest)


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Listen:
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8790  # 0: any free one

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Limits:
    """The bounds of one process."""

    request_body_bytes_max: Positive = 1024 * 1024
    page_items_default: Positive = 100
    page_items_max: Positive = 1000
    streams_max: Positive = 20_000  # agents and readers of the event feed together
    dispatcher_concurrency_max: Positive = 16  # steps in the service at once, a thread each

    def __post_init__(self) -> None:
        if self.page_items_default > self.page_items_max:
            raise ValueError("'page_items_default' is above 'page_items_max'")


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Settings:
    """Everything the service can be told.  `cinder` is read by `cinder_settings`."""

    database_url: str | None = dataclasses.field(default=None, repr=False)
    listen: Listen = Listen()
    auth: AuthMode = AuthMode.NOAUTH
    tokens: tuple[Token, ...] = ()
    cinder: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    host_down_after_s: Seconds = 60.0
    #: Whether members may swap volumes themselves, and not only Cinder (LP 2112187).
    swap_by_users: bool = False
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if self.auth is AuthMode.NOAUTH and not self.listen.is_loopback:
            raise ValueError(
                f"auth 'noauth' makes everybody admin and is refused on {self.listen.host}: "
                'listen on 127.0.0.1, or set auth = "tokens" with [[tokens]]'
            )
        if self.auth is AuthMode.TOKENS and not self.tokens:
            raise ValueError("auth 'tokens' needs [[tokens]]")
        if len({token.token_sha256 for token in self.tokens}) < len(self.tokens):
            raise ValueError("two [[tokens]] have the same token")

    def cinder_settings(self) -> CinderSettings:
        """The [cinder] section in the form of its client; `load` has checked it."""
        return _cinder_settings(self.cinder, {})


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def load(
    file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Read the settings.  `flags` by dotted key, None for "not given".  Raises ConfigError."""
    sources: dict[str, str] = {}
    tree: dict[str, Any] = {}
    for source, key, value in (
        *_from_file(file, environ),
        *_from_environment(environ),
        *(("command line", key, value) for key, value in (flags or {}).items()),
    ):
        if value is not None:
            _put(tree, key.split("."), value, source)
            sources[key] = source
    try:
        settings = TypeAdapter(Settings).validate_python(tree)
    except ValidationError as error:
        raise ConfigError(_explain(error, (), sources)) from None
    if settings.cinder:
        _cinder_settings(settings.cinder, sources)
    return settings


def shown(settings: Settings) -> dict[str, Any]:
    """The settings as plain data without their secrets, for `config show`."""
    data = dataclasses.asdict(settings)
    data["cinder"] = dataclasses.asdict(settings.cinder_settings())
    tokens = [{k: v for k, v in each.items() if k != "token"} for each in data.pop("tokens")]
    return {**masked(data), "tokens": [masked(each) for each in tokens]}


def _from_file(file: Path | None, environ: Mapping[str, str]) -> Iterator[tuple[str, str, Any]]:
    path = file or (Path(environ["LEDGER_CONFIG"]) if environ.get("LEDGER_CONFIG") else None)
    if path is None and not DEFAULT_FILE.exists():
        return
    path = path or DEFAULT_FILE
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    yield from ((str(path), key, value) for key, value in _leaves(data))


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str, Any]]:
    """Other LEDGER_ variables belong to clients; whatever enters a section is ours."""
    own = {field.name for field in dataclasses.fields(Settings)}
    for name, value in environ.items():
        key = name.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name.startswith(ENVIRONMENT_PREFIX) and ("__" in key or key in own):
            yield f"environment variable {name}", key.replace("__", "."), value


def _put(tree: dict[str, Any], path: list[str], value: Any, source: str) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{source}: {'.'.join(path)}: {name!r} is no section")
    tree[path[-1]] = value


def _explain(error: ValidationError, prefix: tuple[str, ...], sources: Mapping[str, str]) -> str:
    lines = []
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        path = [*prefix, *(str(part) for part in problem["loc"])]
        if problem["type"] == "unexpected_keyword_argument":
            lines.append(_unknown(path, _known_beside(path), sources))
        else:
            where = [_source_of(path, sources), ".".join(path)]
            message = problem["msg"].removeprefix("Value error, ")
            lines.append(": ".join([*filter(None, where), message]))
    return "\n".join(lines)


def _unknown(path: list[str], known: list[str], sources: Mapping[str, str]) -> str:
    close = difflib.get_close_matches(path[-1], known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
    where = [_source_of(path, sources), f"unknown key {'.'.join(path)!r}, {hint}"]
    return ": ".join(filter(None, where))


def _known_beside(path: list[str]) -> list[str]:
    sections: dict[str, Any] = {"listen": Listen, "limits": Limits, "tokens": Token}
    owner = sections.get(path[0], Settings) if len(path) > 1 else Settings
    return [field.name for field in dataclasses.fields(owner)]


def _source_of(path: list[str], sources: Mapping[str, str]) -> str:
    """Where the key, or something in the section it names, came from."""
    for length in range(len(path), 0, -1):
        key = ".".join(path[:length])
        within = (name for name in sources if name == key or name.startswith(f"{key}."))
        if name := next(within, None):
            return sources[name]
    return ""


def _cinder_settings(section: dict[str, Any], sources: Mapping[str, str]) -> CinderSettings:
    from host_agent.shared.cinder.client import CinderSettings  # 0.3 s, which few commands need

    _refuse_unknown(CinderSettings, section, ("cinder",), sources)
    try:
        return TypeAdapter(CinderSettings).validate_python(section)
    except ValidationError as error:
        raise ConfigError(_explain(error, ("cinder",), sources)) from None


def _refuse_unknown(
    kind: Any, data: Mapping[str, Any], section: tuple[str, ...], sources: Mapping[str, str]
) -> None:
    """For plain dataclasses, whose unknown keys pydantic passes over."""
    hints = typing.get_type_hints(kind)
    known = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    for key, value in data.items():
        path = [*section, key]
        if key not in known:
            raise ConfigError(_unknown(path, list(known), sources))
        if dataclasses.is_dataclass(known[key]) and isinstance(value, Mapping):
            _refuse_unknown(known[key], value, (*section, key), sources)


def _is_hex(text: str) -> bool:
    return all(character in "0123456789abcdef" for character in text)
