"""The agent's settings (host_agent/shared/platform/settings.py reads them)."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from host_agent.executor import ExecutorLimits
from host_agent.libvirt.domain_xml import HostCapabilities
from host_agent.libvirt.guests import Patience
from host_agent.line.client import LinkSettings
from host_agent.line.credentials import Files
from host_agent.shared.cinder.settings import CinderSettings
from host_agent.shared.contract import HOST_NAME
from host_agent.shared.platform import settings
from host_agent.shared.platform.addresses import is_http
from host_agent.shared.platform.settings import ConfigError, Must, Positive, Seconds, Source
from host_agent.shared.platform.tls import is_loopback
from host_agent.storage.keys import Barbican, KeyManagers
from host_agent.verbs.context import Waits

SOURCE = Source("ATTACHMENT_LEDGER_AGENT_", Path("/etc/attachment-ledger/agent.toml"))

S = TypeVar("S")
Port = Annotated[int, Must(lambda value: 0 <= value < 2**16, "from 0 to 65535")]


@dataclass(frozen=True, kw_only=True)
class AgentSection:
    """[agent].  `host` is the name the ledger and Cinder know this machine by."""

    host: str = field(default_factory=socket.gethostname)
    lock_path: str = "/var/lib/attachment-ledger/locks"
    workers: Positive = 8
    queue_max: Positive = 64
    stop_grace_s: Seconds = 30.0  # how long SIGTERM waits for steps that run
    ready_deadline_s: Seconds = 180.0
    ready_poll_s: Seconds = 1.0
    log_level: str = "info"
    log_format: str = "auto"  # human, json, or auto: human on a terminal

    def __post_init__(self) -> None:
        if not re.fullmatch(HOST_NAME, self.host):
            raise ValueError("'host' is a name of letters, digits, '.', '_' and '-'")


@dataclass(frozen=True, kw_only=True)
class LedgerSection:
    """[ledger].  The host authenticates by its own token, `token` or in a file, or by a
    certificate.  `url`: one or several of the ledger's processes, separated by commas; if one does
    not answer, the agent uses the next.

    Files are in PEM, and read again when they change.  `ca_file`: the trusted authorities, by
    default this machine's.  `plain_http` allows no TLS to another machine.
    """

    url: str = "http://127.0.0.1:8790"
    token: str = field(default="", repr=False)
    token_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    plain_http: bool = False
    wait_s: Seconds = 20.0
    inventory_interval_s: Seconds = 30.0

    def __post_init__(self) -> None:
        if not all(map(is_http, self.url.split(","))):
            raise ValueError("'url' has the form https://host:port, or several with commas")
        urls = [urlsplit(each) for each in self.url.split(",")]
        if len({each.scheme for each in urls}) > 1:
            raise ValueError("'url' has http:// and https://: it is one ledger")
        self._refuse_open_lines(urls)

    def _refuse_open_lines(self, urls: list[SplitResult]) -> None:
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("'certificate_file' and 'key_file' need each other")
        if urls[0].scheme == "https":
            return
        if self.ca_file or self.certificate_file:
            raise ValueError("'ca_file' and 'certificate_file' are for TLS: 'url' is http://")
        far = [each.hostname for each in urls if not is_loopback(each.hostname or "")]
        if far and not self.plain_http:
            raise ValueError(
                f"plain HTTP to {far[0]} would send the token unencrypted: "
                "use https:// in 'url', or, where the network is trusted, plain_http = true"
            )


@dataclass(frozen=True, kw_only=True)
class LibvirtSection:
    """[libvirt].  A guest may take detach_attempts x detach_timeout_s to release a disk.

    `virt_type`: the domain type of guests, kvm, or qemu (emulated).  Guests can migrate to this
    host if other hosts' libvirt reaches this one's at `migration_uri`; their data goes to
    `migration_address`, by default where libvirt says.  A guest may boot a kernel from
    `kernel_dir`, and from no other directory.
    """

    uri: str = "qemu:///system"
    virt_type: str = "kvm"
    detach_attempts: Positive = 8
    detach_timeout_s: Seconds = 20.0
    shutdown_timeout_s: Seconds = 60.0
    migration_uri: str = ""
    migration_address: str = ""
    kernel_dir: str = HostCapabilities.kernel_dir


@dataclass(frozen=True, kw_only=True)
class BrickSection:
    """[brick].  os-brick's settings.

    `root_helper` and `privsep_helper` are commands for an agent that is not root; as root
    os-brick's privileged functions run in this process.  `mount_point_base`: where network file
    systems are mounted.
    """

    my_ip: str = ""
    root_helper: str = "sudo"
    privsep_helper: str = ""
    use_multipath: bool = False
    enforce_multipath: bool = False
    device_scan_attempts: Positive = 5
    mount_point_base: str = "/var/lib/attachment-ledger/mnt"
    rbd_user: str = ""
    rbd_secret_uuid: str = ""


@dataclass(frozen=True, kw_only=True)
class KeysSection:
    """[keys].  Where the keys of encrypted volumes are; as in Cinder's [key_manager].

    `fixed_key` (hexadecimal), or the file that has it, is ConfKeyManager's.  `barbican`: the URL of
    Barbican, or "catalog": the one in Keystone's catalog; "": none.  `auth`: the options of the
    user that reads keys there; None: the user of [cinder].
    """

    fixed_key: str = field(default="", repr=False)
    fixed_key_file: str = ""
    barbican: str = ""
    auth: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class MetricsSection:
    """[metrics].  Where Prometheus reads this agent's metrics, without a token; port 0: off.

    There is no default port, because several agents of one machine need different ones.
    """

    host: str = "127.0.0.1"
    port: Port = 0


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """All settings, a section each."""

    agent: AgentSection = field(default_factory=AgentSection)
    ledger: LedgerSection = LedgerSection()
    libvirt: LibvirtSection = LibvirtSection()
    brick: BrickSection = BrickSection()
    cinder: CinderSettings = field(default_factory=CinderSettings)
    keys: KeysSection = KeysSection()
    metrics: MetricsSection = MetricsSection()

    def link(self) -> LinkSettings:
        return LinkSettings(
            url=self.ledger.url,
            token=self.ledger.token,
            host=self.agent.host,
            wait_s=self.ledger.wait_s,
            inventory_interval_s=self.ledger.inventory_interval_s,
            told_path=Path(self.agent.lock_path) / "told",
            files=Files(
                token=self.ledger.token_file,
                ca=self.ledger.ca_file,
                certificate=self.ledger.certificate_file,
                key=self.ledger.key_file,
            ),
        )

    def limits(self) -> ExecutorLimits:
        return ExecutorLimits(workers=self.agent.workers, queue_max=self.agent.queue_max)

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
        """Raises ConfigError if the fixed key is not hexadecimal."""
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


def load(
    path: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    flags: Mapping[str, Any] | None = None,
) -> AgentSettings:
    """The settings.  `flags` by "section.key", None for "not given".  Raises ConfigError."""
    return _with_secrets(settings.load(AgentSettings, SOURCE, path, environ, flags))


def _with_secrets(given: AgentSettings) -> AgentSettings:
    return dataclasses.replace(
        given,
        ledger=_with_secret("ledger", given.ledger, "token"),
        keys=_with_secret("keys", given.keys, "fixed_key"),
    )


def _with_secret(section: str, values: S, key: str) -> S:
    """`key` from the file that `<key>_file` names."""
    named = getattr(values, f"{key}_file")
    if not named:
        return values
    if getattr(values, key):
        raise ConfigError(f"{section}.{key} and {section}.{key}_file are both set: keep one")
    try:
        secret = settings.secret_in(Path(named))
    except ConfigError as error:
        raise type(error)(f"{section}.{key}_file: {error}") from error
    changed: S = dataclasses.replace(values, **{key: secret})  # type: ignore[type-var]
    return changed
