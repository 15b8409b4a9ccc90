"""What one round has read of a running Nova, its Cinder and, if they were asked, its hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from handlers.drift.rows import UNKNOWN, Unknown
from host_agent.shared.contract.survey import GuestShown, Survey


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenMapping:
    """A volume attachment of a server in Nova.  `device`: without /dev/."""

    id: str
    volume_id: str
    attachment_id: str | None
    device: str | None = None
    tag: str | None = None
    delete_on_termination: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenServer:
    """A server in Nova.  `mappings`: None if they were not read.

    `known`: False if its cell does not answer, so that Nova shows little more than its id; or if
    it has a volume with an id that is none: `odd`.
    `power_state`: Nova's number.  `root_device`: without /dev/.
    """

    id: str
    name: str | None = None
    host: str | None = None
    vm_state: str | None = None
    task_state: str | None = None
    power_state: int | None = None
    updated: str | None = None
    project_id: str | None = None
    user_id: str | None = None
    root_device: str | None = None
    volumes: tuple[str, ...] = ()
    mappings: tuple[SeenMapping, ...] | None = None
    known: bool = True
    odd: str | None = None

    @property
    def attachments(self) -> Mapping[str, str | None] | None:
        """Attachment ids by volume; None if they were not read."""
        if self.mappings is None:
            return None
        return {each.volume_id: each.attachment_id for each in self.mappings}

    @property
    def busy(self) -> bool:
        """Whether work on it is in progress, so that Nova and Cinder may differ for a while."""
        return not self.known or self.task_state is not None or self.vm_state == "resized"


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenAttachment:
    """An attachment in Cinder.  `since`: its `attached_at`, if that was read."""

    id: str
    volume_id: str
    server_id: str | None
    status: str
    host: str | None = None
    since: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenVolume:
    """A volume in Cinder.  `name_id`: the id in the name of its data, if a migration changed it."""

    id: str
    status: str
    multiattach: bool = False
    migration_status: str | None = None
    updated_at: str | None = None
    size_gb: int | None = None
    name_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """What one round has read.  None: requested by id, and it does not exist; missing: not
    requested.  `now`: by Cinder's clock.  `ended`: attachments that have ended in a ledger's log.
    """

    now: datetime
    servers: Mapping[str, SeenServer | Unknown | None]
    volumes: Mapping[str, SeenVolume | Unknown | None]
    attachments: Mapping[str, SeenAttachment]
    hosts: Mapping[str, Survey] = field(default_factory=dict)
    ended: frozenset[str] = frozenset()

    @cached_property
    def by_pair(self) -> dict[tuple[str | None, str], list[SeenAttachment]]:
        """Attachments by server and volume."""
        found = defaultdict(list)
        for each in self.attachments.values():
            found[each.server_id, each.volume_id].append(each)
        return dict(found)

    @cached_property
    def owners(self) -> frozenset[str]:
        """The servers that Cinder's attachments name."""
        return frozenset(each.server_id for each in self.attachments.values() if each.server_id)

    @cached_property
    def guests(self) -> frozenset[str]:
        """The servers whose guests hosts show."""
        return frozenset(self.shown)

    @cached_property
    def shown(self) -> dict[str, list[tuple[str, GuestShown]]]:
        """By server: its guests, each with its host."""
        found = defaultdict(list)
        for host, survey in self.hosts.items():
            for guest in survey.guests:
                found[guest.server_id].append((host, guest))
        return dict(found)

    @cached_property
    def by_volume(self) -> dict[str, list[SeenAttachment]]:
        found = defaultdict(list)
        for each in self.attachments.values():
            found[each.volume_id].append(each)
        return dict(found)

    @cached_property
    def mapped(self) -> dict[str, list[SeenServer]]:
        """By volume: the servers to which Nova has it attached."""
        found: dict[str, list[SeenServer]] = defaultdict(list)
        for server in self.servers.values():
            if isinstance(server, SeenServer):
                for volume_id in server.volumes:
                    found[volume_id].append(server)
        return dict(found)

    def server(self, server_id: str | None) -> SeenServer | Unknown | None:
        return self.servers.get(server_id, UNKNOWN) if server_id else UNKNOWN

    def sees(self, host: str | None, part: str) -> bool:
        """Whether the host's survey has this part."""
        survey = self.hosts.get(host or "")
        return survey is not None and part not in survey.blind
