"""The settings of the service (host_agent/shared/platform/settings.py says how they are given).

One frozen tree, read once, printed by `config show`.  Tokens are hashed when they are
read: the tree never holds one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from handlers.drift import automatic
from host_agent.shared.cinder.settings import CinderSettings
from host_agent.shared.platform import settings
from host_agent.shared.platform.addresses import is_http
from host_agent.shared.platform.masking import MASK, masked
from host_agent.shared.platform.settings import Must, Positive, Seconds, Source
from host_agent.shared.platform.tls import is_loopback
from ledger.words import sizes

SOURCE = Source("LEDGER_", Path("/etc/attachment-ledger/ledger.toml"))

#: The largest page of any list of the API; the settings may only lower it.
PAGE_ITEMS_MAX = 1000

PageItems = Annotated[
    int, Must(range(1, PAGE_ITEMS_MAX + 1).__contains__, f"from 1 to {PAGE_ITEMS_MAX}")
]
SecondsOrNever = Annotated[float, Must(lambda value: value >= 0, "of seconds, or 0")]
Share = Annotated[float, Must(lambda value: 0 < value <= 1, "above 0, to 1")]
Port = Annotated[int, Must(range(65536).__contains__, "from 0 to 65535")]


#: Of any server that is built or resized, in MiB and vCPUs.
VCPUS_MAX, MEMORY_MB_MIN, MEMORY_MB_MAX = 1024, 16, 16_777_216
Vcpus = Annotated[
    int, Must(range(1, VCPUS_MAX + 1).__contains__, f"of vCPUs from 1 to {VCPUS_MAX}")
]
MemoryMb = Annotated[
    int,
    Must(
        range(MEMORY_MB_MIN, MEMORY_MB_MAX + 1).__contains__,
        f"of MiB from {MEMORY_MB_MIN} to {MEMORY_MB_MAX}",
    ),
]

#: A token must be beyond guessing: 128 random bits are 32 hexadecimal digits.  That they are
#: random cannot be seen; that they are not, often can.
TOKEN_CHARS_MIN = 32
TOKEN_KINDS_MIN = 8

_CELL = re.compile(r"[A-Za-z0-9][\w.-]{0,49}\Z", re.ASCII)
_ORIGIN = re.compile(r"https?://[^/?#@\s]+/?\Z")


def _is_origin(url: str) -> bool:
    return is_http(url) and bool(_ORIGIN.match(url))


class AuthMode(StrEnum):
    NOAUTH = "noauth"  # everybody is admin: on loopback only
    TOKENS = "tokens"  # static tokens from the file
    KEYSTONE = "keystone"  # Keystone's tokens, and static ones


class Role(StrEnum):
    ADMIN = "admin"
    MEMBER = "member"
    READER = "reader"
    SERVICE = "service"
    OPERATOR = "operator"
    MANAGER = "manager"
    AGENT = "agent"


@dataclass(frozen=True, kw_only=True)
class Token:
    """Who the bearer of a token is.  An agent's is bound to its host."""

    name: str
    user_id: str
    project_id: str
    roles: Annotated[tuple[Role, ...], Must(bool, "that is not empty")]
    host: str | None = None
    token: str | None = dataclasses.field(default=None, repr=False)
    token_sha256: str | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        if bool(self.token) == bool(self.token_sha256):
            raise ValueError("give either 'token' or 'token_sha256'")
        if self.token and not _is_strong(self.token):
            raise ValueError(
                f"'token' can be guessed: it needs {TOKEN_CHARS_MIN} characters, "
                f"{TOKEN_KINDS_MIN} different ones among them; make one: openssl rand -hex 32"
            )
        if (Role.AGENT in self.roles) != bool(self.host):
            raise ValueError("'host' belongs to the role 'agent', and that role needs one")
        digest = hash_token(self.token) if self.token else str(self.token_sha256).lower()
        if len(digest) != hashlib.sha256().digest_size * 2 or not _is_hex(digest):
            raise ValueError("'token_sha256' is no SHA-256 in hexadecimal")
        object.__setattr__(self, "token", None)
        object.__setattr__(self, "token_sha256", digest)


@dataclass(frozen=True, kw_only=True)
class Listen:
    """Where the service listens, and how.

    `certificate_file` (with those that lead to its authority) and `key_file`, in PEM: TLS.  Agents
    may show certificates of the authorities in `client_ca_file`.  `plain_http`: no TLS, although
    others than this machine's programs may listen in.  `public_url`: by which clients know
    the service, if a proxy stands before it.
    """

    host: str = "127.0.0.1"
    port: Port = 8790  # 0: any free one
    certificate_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    plain_http: bool = False
    public_url: str = ""

    def __post_init__(self) -> None:
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("'certificate_file' and 'key_file' need each other")
        if self.client_ca_file and not self.certificate_file:
            raise ValueError("'client_ca_file' needs TLS: 'certificate_file' and 'key_file'")
        if self.plain_http and self.certificate_file:
            raise ValueError("'plain_http' and 'certificate_file' contradict each other")
        if self.public_url and not is_http(self.public_url):
            raise ValueError("'public_url' has the form https://host:port")

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The bounds of one process."""

    request_body_bytes_max: Positive = 1024 * 1024
    page_items_default: PageItems = 100
    page_items_max: PageItems = PAGE_ITEMS_MAX
    streams_max: Positive = 20_000  # agents and readers of the event feed together
    requests_per_token_max: Positive = 1_000  # under way at once, held ones too
    dispatcher_concurrency_max: Positive = 16  # steps in the service at once, a thread each

    def __post_init__(self) -> None:
        if self.page_items_default > self.page_items_max:
            raise ValueError("'page_items_default' is above 'page_items_max'")


@dataclass(frozen=True, kw_only=True)
class KeystoneSettings:
    """How Keystone is asked whose a token is, and what its answers mean here.

    `auth`: options of a keystoneauth plugin that logs in at Keystone ("auth_type", "auth_url",
    "username", ...), of a user who may validate tokens; None: those of [cinder.auth].
    `www_authenticate_uri`: where the clients' Keystone is, which a 401 tells; None: the auth_url.
    """

    auth: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)
    www_authenticate_uri: str | None = None
    cacert: str | None = None
    insecure: bool = False
    order: tuple[AuthMode, ...] = (AuthMode.TOKENS, AuthMode.KEYSTONE)
    cache_s: Seconds = 60.0  # for so long a token may be taken that was revoked
    cache_size: Positive = 10_000  # tokens that are known at once
    service_token_roles: tuple[str, ...] = ("service",)

    def __post_init__(self) -> None:
        if sorted(self.order) != [AuthMode.KEYSTONE, AuthMode.TOKENS]:
            raise ValueError("'order' names 'tokens' and 'keystone', each once")
        if not self.service_token_roles:
            raise ValueError("'service_token_roles' names no role")


@dataclass(frozen=True, kw_only=True)
class Flavor:
    """A size by a name that people know it by; `id` None: the name.

    Every size has a name without this, too (`sizes.flavor_id`).
    """

    name: str
    vcpus: Vcpus
    memory_mb: MemoryMb
    id: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", self.key)
        for text in (self.name, self.key):
            if not sizes.is_name(text):
                raise ValueError(sizes.NAMES)
            if sizes.size_named(text) not in {None, self.size}:
                raise ValueError(
                    "a flavor's name, or id, of the form c2.m2048 says what its size is: it has to "
                    "be of that size"
                )

    @property
    def key(self) -> str:
        """What requests name it by."""
        return self.id or self.name

    @property
    def size(self) -> sizes.Size:
        return self.vcpus, self.memory_mb


@dataclass(frozen=True, kw_only=True)
class CellSettings:
    """Another ledger of ours, which the console's search asks with the token of who searches."""

    name: str
    url: str

    def __post_init__(self) -> None:
        if not _CELL.match(self.name):
            raise ValueError("'name' has letters, digits, '_', '.' and '-', at most 50")
        if not _is_origin(self.url):
            raise ValueError("'url' is that ledger's address without a path: https://south:8790")
        object.__setattr__(self, "url", self.url.rstrip("/"))

    @property
    def shows_tokens(self) -> bool:
        """Whether others may listen in where it is asked."""
        url = urlsplit(self.url)
        return url.scheme == "http" and not is_loopback(url.hostname or "")


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """`file`: rules of oslo.policy in place of the defaults; None: these alone."""

    file: str | None = None


@dataclass(frozen=True, kw_only=True)
class Tracing:
    """`endpoint`: where a collector takes OTLP over HTTP, "http://host:4318/v1/traces"."""

    endpoint: str | None = None

    def __post_init__(self) -> None:
        if self.endpoint is not None and not is_http(self.endpoint):
            raise ValueError("'endpoint' is a collector's URL: http://host:4318/v1/traces")


@dataclass(frozen=True, kw_only=True)
class Reconcile:
    """When ledger, Cinder and hosts are held against each other, and what Cinder may bear of it."""

    interval_s: SecondsOrNever = 6 * 3600.0  # between looks at everything; 0: only when asked
    cinder_share: Share = 0.1  # of one of Cinder's API workers, while a look walks its lists
    automatic: tuple[str, ...] = ()  # classes of drift that are repaired unasked
    automatic_per_hour_max: Positive = 10  # repairs that are begun unasked

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.automatic) - automatic.CLASSES):
            raise ValueError(
                f"'automatic' names {', '.join(unknown)}; classes that may be repaired unasked are "
                f"{', '.join(sorted(automatic.CLASSES))}"
            )


@dataclass(frozen=True, kw_only=True)
class Fencing:
    """Who may say by Nova's `forced_down` that a host is off, and what is done after a fence.

    `controllers`: ids of users, of controllers of high availability, which power a host off before
    they say so.  Their word is a fence.

    `hook`: the site's own program and its arguments, run after each fence until it has ended with
    0; `hook_s`: when it is killed.  `hook_required`: no server is evacuated before.
    """

    controllers: tuple[str, ...] = ()
    hook: tuple[str, ...] = ()
    hook_s: Seconds = 60.0
    hook_required: bool = False

    def __post_init__(self) -> None:
        if not all(self.controllers):
            raise ValueError("'controllers' names users by their ids, which are not empty")
        if self.hook and not Path(self.hook[0]).is_absolute():
            raise ValueError("'hook' begins with the program's whole path: no PATH is searched")
        if self.hook_required and not self.hook:
            raise ValueError("'hook_required' needs a 'hook'")


@dataclass(frozen=True, kw_only=True)
class Observe:
    """Whose attachments are watched beside ours: those of a Nova and its Cinder.

    `auth`: options of a keystoneauth plugin ("auth_type", "auth_url", ...), of an administrator
    whose credential permits GET alone; None: nobody's.  The catalog tells both endpoints, unless
    they are given.

    Without [cinder] the ledger only watches, and reads Cinder with the same credential.

    `notifications`: the transport URL of the bus to which Nova tells what it does, as its own
    [oslo_messaging_notifications] has it; None: looks alone show it.  `notifications_pool`: whose
    queue there is ours; another ledger needs another one.

    `pass_on_to`: where that Nova itself is, scheme, host and port; requests for what is its go
    there.  None: they are refused.
    """

    auth: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)
    interval_s: Seconds = 60.0  # from the end of a look to the next
    region_name: str | None = None
    interface: str = "internal"
    compute_endpoint: str | None = None
    volume_endpoint: str | None = None
    notifications: str | None = dataclasses.field(default=None, repr=False)
    notifications_pool: str = "attachment-ledger"
    pass_on_to: str | None = None
    cacert: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if self.pass_on_to is not None and not _is_origin(self.pass_on_to):
            raise ValueError(
                "'pass_on_to' is Nova's own address without a path: http://nova.internal:8774"
            )
        if self.notifications is not None and "://" not in self.notifications:
            raise ValueError(
                "'notifications' is a transport URL, as Nova's: rabbit://user:password@host:5672/"
            )
        if self.notifications is not None and self.auth is None:
            raise ValueError("'notifications' are a reason to look at Nova: that needs an 'auth'")

    def reads_of(self, cinder: CinderSettings) -> CinderSettings:
        """Cinder's settings of who only watches; what no service token comes with, is not done."""
        return dataclasses.replace(
            cinder,
            auth=self.auth,
            endpoint=self.volume_endpoint,
            service_token=False,
            region_name=self.region_name,
            interface=self.interface,
            cacert=self.cacert,
            insecure=self.insecure,
        )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything the service can be told."""

    database_url: str | None = dataclasses.field(default=None, repr=False)
    #: Of a database that is a standby: only what reads is served.
    read_only: bool = False
    listen: Listen = Listen()
    auth: AuthMode = AuthMode.NOAUTH
    tokens: tuple[Token, ...] = ()
    keystone: KeystoneSettings = dataclasses.field(default_factory=KeystoneSettings)
    policy: PolicySettings = PolicySettings()
    flavors: tuple[Flavor, ...] = ()
    #: The other ledgers that the console's search asks, too.
    cells: tuple[CellSettings, ...] = ()
    cinder: CinderSettings = dataclasses.field(default_factory=CinderSettings)
    host_down_after_s: Seconds = 60.0
    #: Whether members may swap volumes themselves, and not only Cinder (LP 2112187).
    swap_by_users: bool = False
    limits: Limits = Limits()
    reconcile: Reconcile = Reconcile()
    fencing: Fencing = Fencing()
    observe: Observe = dataclasses.field(default_factory=Observe)
    tracing: Tracing = Tracing()

    def __post_init__(self) -> None:
        if self.observe.auth is not None and not (self.cinder.auth or self.cinder.endpoint):
            object.__setattr__(self, "cinder", self.observe.reads_of(self.cinder))
        if self.auth is AuthMode.NOAUTH and not self.listen.is_loopback:
            raise ValueError(
                f"auth 'noauth' makes every caller admin and is refused on {self.listen.host}: "
                'listen on 127.0.0.1, or set auth = "tokens" with [[tokens]], or "keystone"'
            )
        listen = self.listen
        if not (listen.is_loopback or listen.certificate_file or listen.plain_http):
            raise ValueError(
                f"plain HTTP on {listen.host} would send tokens unencrypted: set "
                "listen.certificate_file and listen.key_file for TLS; or, where a proxy does that "
                "or the network is trusted, listen.plain_http = true"
            )
        if self.auth is AuthMode.TOKENS and not self.tokens:
            raise ValueError("auth 'tokens' needs [[tokens]]")
        if self.auth is AuthMode.KEYSTONE and self.keystone_auth is None:
            raise ValueError("auth 'keystone' needs [keystone.auth], or [cinder.auth]")
        if self.observe.pass_on_to is not None and self.auth is not AuthMode.KEYSTONE:
            raise ValueError(
                'observe.pass_on_to needs auth = "keystone": Nova takes Keystone\'s tokens alone'
            )
        if any(cell.shows_tokens for cell in self.cells) and not listen.plain_http:
            raise ValueError(
                "[[cells]] by http:// would send tokens unencrypted: name them by "
                "https://; or, where the network is trusted, set listen.plain_http = true"
            )
        self._refuse_doubles()

    def _refuse_doubles(self) -> None:
        if len({token.token_sha256 for token in self.tokens}) < len(self.tokens):
            raise ValueError("two [[tokens]] have the same token")
        for section, what, given in (
            ("flavors", "name", [flavor.name for flavor in self.flavors]),
            ("flavors", "id", [flavor.key for flavor in self.flavors]),
            ("cells", "name", [cell.name for cell in self.cells]),
        ):
            if len(set(given)) < len(given):
                raise ValueError(f"two [[{section}]] have the same {what}")

    @property
    def keystone_auth(self) -> Mapping[str, Any] | None:
        """As whom Keystone is asked."""
        return self.keystone.auth or self.cinder.auth


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def load(
    file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Read the settings.  `flags` by dotted key, None for "not given".  Raises ConfigError."""
    return settings.load(Settings, SOURCE, file, environ, flags)


def shown(given: Settings) -> dict[str, Any]:
    """The settings as plain data without their secrets, for `config show`."""
    data = dataclasses.asdict(given)
    tokens = [{k: v for k, v in each.items() if k != "token"} for each in data.pop("tokens")]
    dsn = {"database_url": _masked_dsn(given.database_url)}
    return {**masked(data), **dsn, "tokens": [masked(each) for each in tokens]}


def _masked_dsn(dsn: str | None) -> str | None:
    """As libpq reads it: a password ends where libpq says.  What it cannot read may be one."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        read = conninfo_to_dict(dsn or "")
    except ProgrammingError:
        return MASK
    return dsn if masked(read) == read else make_conninfo(**masked(read))


def _is_strong(token: str) -> bool:
    return len(token) >= TOKEN_CHARS_MIN and len(set(token)) >= TOKEN_KINDS_MIN


def _is_hex(text: str) -> bool:
    return all(character in "0123456789abcdef" for character in text)
