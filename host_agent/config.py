"""The agent's settings: a TOML file, over it the environment, over that the command line.

One frozen object.  A wrong value names where it stands, the key, and what is expected.
Every key is also an environment variable: `ATTACHMENT_LEDGER_AGENT_<SECTION>_<KEY>`,
for example `ATTACHMENT_LEDGER_AGENT_LEDGER_TOKEN`.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from host_agent.executor import Limits
from host_agent.libvirt.guests import Patience
from host_agent.line.client import LinkSettings
from host_agent.shared.cinder.client import CinderSettings
from host_agent.storage.keys import Barbican, KeyManagers
from host_agent.verbs.context import Waits

ENV_PREFIX = "ATTACHMENT_LEDGER_AGENT_"

S = TypeVar("S")


class ConfigError(ValueError):
    """A setting is missing or wrong; says where, which key, and what is expected."""


@dataclass(frozen=True, kw_only=True)
class AgentSection:
    """[agent].  `host` is the name the ledger and Cinder know this machine by."""

    host: str = field(default_factory=socket.gethostname)
    lock_path: str = "/var/lib/attachment-ledger/locks"
    workers: int = 8
    queue_max: int = 64
    stop_grace_s: float = 30.0  # how long SIGTERM waits for steps that run
    ready_deadline_s: float = 180.0
    ready_poll_s: float = 1.0
    log_level: str = "info"
    log_format: str = "auto"  # human, json, or auto: human on a terminal


@dataclass(frozen=True, kw_only=True)
class LedgerSection:
    """[ledger].  The token is this host's own: `token`, or the file that holds it."""

    url: str = "http://127.0.0.1:8790"
    token: str = field(default="", repr=False)
    token_file: str = ""
    ca_file: str = ""
    wait_s: float = 20.0
    inventory_interval_s: float = 30.0


@dataclass(frozen=True, kw_only=True)
class LibvirtSection:
    """[libvirt].  A guest may take detach_attempts x detach_timeout_s to let go of a disk.

    `virt_type` is what guests are defined for: kvm, or qemu, which emulates.  Guests can
    migrate to this host if other hosts' libvirt reaches this one's at `migration_uri`;
    their data comes to `migration_address`, or else where libvirt says.
    """

    uri: str = "qemu:///system"
    virt_type: str = "kvm"
    detach_attempts: int = 8
    detach_timeout_s: float = 20.0
    shutdown_timeout_s: float = 60.0
    migration_uri: str = ""
    migration_address: str = ""


@dataclass(frozen=True, kw_only=True)
class BrickSection:
    """[brick].  What os-brick needs to know of this host.

    `root_helper` and `privsep_helper` are commands for an agent that is not root;
    as root os-brick's privileged functions run in this process.  `mount_point_base`
    is where network file systems are mounted.
    """

    my_ip: str = ""
    root_helper: str = "sudo"
    privsep_helper: str = ""
    use_multipath: bool = False
    enforce_multipath: bool = False
    device_scan_attempts: int = 5
    mount_point_base: str = "/var/lib/attachment-ledger/mnt"
    rbd_user: str = ""
    rbd_secret_uuid: str = ""


@dataclass(frozen=True, kw_only=True)
class KeysSection:
    """[keys].  Where the keys of encrypted volumes are: what Cinder has in its [key_manager].

    `fixed_key` (hexadecimal), or the file that holds it, is ConfKeyManager's.  `barbican` is
    the URL of one, or "catalog": where Keystone says.  `auth` are the options of the user
    that reads keys there; None means the user of [cinder].
    """

    fixed_key: str = field(default="", repr=False)
    fixed_key_file: str = ""
    barbican: str = ""
    auth: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings.  `cinder_options` are CinderSettings' fields by name: [cinder]."""

    agent: AgentSection
    ledger: LedgerSection
    libvirt: LibvirtSection
    brick: BrickSection
    cinder: CinderSettings
    keys: KeysSection

    def link(self) -> LinkSettings:
        return LinkSettings(
            url=self.ledger.url,
            token=self.ledger.token,
            host=self.agent.host,
            wait_s=self.ledger.wait_s,
            inventory_interval_s=self.ledger.inventory_interval_s,
            ca_file=self.ledger.ca_file or None,
        )

    def limits(self) -> Limits:
        return Limits(workers=self.agent.workers, queue_max=self.agent.queue_max)

    def waits(self) -> Waits:
        return Waits(
            ready_deadline_s=self.agent.ready_deadline_s, ready_poll_s=self.agent.ready_poll_s
        )

    def patience(self) -> Patience:
        return Patience(
            detach_attempts=self.libvirt.detach_attempts,
            detach_timeout_s=self.libvirt.detach_timeout_s,
            shutdown_timeout_s=self.libvirt.shutdown_timeout_s,
        )

    def key_managers(self) -> KeyManagers:
        """ValueError if the fixed key is none."""
        barbican = None
        if self.keys.barbican:
            who = dataclasses.replace(self.cinder, auth=self.keys.auth or self.cinder.auth)
            barbican = Barbican(who, self.keys.barbican.removeprefix("catalog"))
        return KeyManagers(self.keys.fixed_key, barbican)

    def migration(self) -> dict[str, str] | None:
        """How guests migrate to this host, for its registration; None: they cannot."""
        if not self.libvirt.migration_uri:
            return None
        return {"uri": self.libvirt.migration_uri, "address": self.libvirt.migration_address}


_SECTIONS: dict[str, type] = {
    "agent": AgentSection,
    "ledger": LedgerSection,
    "libvirt": LibvirtSection,
    "brick": BrickSection,
    "cinder": CinderSettings,
    "keys": KeysSection,
}


def load(
    path: Path | None,
    environ: Mapping[str, str] = os.environ,
    flags: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from `path`, `environ` and `flags` ("section.key" to text); ConfigError."""
    table = _read(path)
    where = str(path or "no file")
    unknown = sorted(table.keys() - _SECTIONS.keys())
    if unknown:
        raise ConfigError(f"{where}: unknown section [{unknown[0]}]; known: {', '.join(_SECTIONS)}")
    sections: dict[str, Any] = {
        name: _section(kind, _merged(name, kind, table.get(name, {}), where, environ, flags or {}))
        for name, kind in _SECTIONS.items()
    }
    settings = Settings(**sections)
    return _with_secrets(settings)


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        with path.open("rb") as source:
            return tomllib.load(source)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; write one, see docs/host-agent.md") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is no TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


#: A part of CinderSettings that is no plain value.
_NOT_SET_HERE = {"backoff"}
Found = dict[str, tuple[Any, str]]


def _merged(
    section: str,
    kind: type,
    table: Any,
    where: str,
    environ: Mapping[str, str],
    flags: Mapping[str, str],
) -> Found:
    """Key to (value, where it stands), the later source winning."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: {section} must be a section: [{section}]")
    names = {item.name for item in dataclasses.fields(kind)} - _NOT_SET_HERE
    found: Found = {key: (value, f"{where}: [{section}] {key}") for key, value in table.items()}
    for key in names:
        variable = f"{ENV_PREFIX}{section}_{key}".upper()
        if variable in environ:
            found[key] = (_Text(environ[variable]), f"environment: {variable}")
        if f"{section}.{key}" in flags:
            found[key] = (_Text(flags[f"{section}.{key}"]), f"command line: {section}.{key}")
    if unknown := sorted(found.keys() - names):
        known = ", ".join(sorted(names))
        raise ConfigError(f"{found[unknown[0]][1]}: unknown key; known: {known}")
    return found


class _Text(str):
    """A value that came as text, and may stand for a number or a boolean."""

    __slots__ = ()


def _section(kind: type[S], found: Found) -> S:
    hints = get_type_hints(kind)
    return kind(**{key: _value(value, hints[key], where) for key, (value, where) in found.items()})


def _value(value: Any, hint: Any, where: str) -> Any:
    choices = [hint, *get_args(hint)]
    kind: type = next((k for k in (str, int, float, bool) if k in choices), dict)
    if isinstance(value, _Text):
        value = _parsed(str(value), kind, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{where}: is a {type(value).__name__}, expected {_NAMES[kind]}")
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value <= 0:
        raise ConfigError(f"{where}: is {value}, expected a number above 0")
    return value


_NAMES: dict[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "a table",
}


def _parsed(text: str, kind: type, where: str) -> Any:
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return tomllib.loads(f"x = {text}")["x"] if kind is dict else kind(text)
    except (KeyError, ValueError):
        raise ConfigError(f"{where}: is {text!r}, expected {_NAMES[kind]}") from None


def _with_secrets(settings: Settings) -> Settings:
    """With what stands in files of its own."""
    return dataclasses.replace(
        settings,
        ledger=_with_secret("ledger", settings.ledger, "token"),
        keys=_with_secret("keys", settings.keys, "fixed_key"),
    )


def _with_secret(section: str, values: S, key: str) -> S:
    """`key` from the file that `<key>_file` names."""
    named = getattr(values, f"{key}_file")
    if not named:
        return values
    if getattr(values, key):
        raise ConfigError(f"[{section}] {key} and {key}_file are both set: keep one")
    try:
        secret = Path(named).read_text().strip()
    except OSError as error:
        raise ConfigError(
            f"[{section}] {key}_file {named}: cannot be read: {error.strerror}"
        ) from error
    changed: S = dataclasses.replace(values, **{key: secret})  # type: ignore[type-var]
    return changed
