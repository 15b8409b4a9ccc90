"""Reads Nova and Cinder of somebody else: GET alone, one request at a time, page by page.

Theory of operation
-------------------
* Attachments are read first, then volumes, then servers: what is made meanwhile is in the later
  list, and looks like nothing that is missing.  Two rounds do the rest.
* What a list lacks is asked for by its id, and is gone only if its own service says 404: a deleted
  server that can be restored is in no list of Nova's.
* Cinder gives who is no administrator a shorter list with 200.  So it is believed only if the token
  has the role admin, or it shows another project's rows.  Nova refuses (403).
* The list of attachments is the short one: the long one carries the secrets of connections.  Host
  and time of what is attached are in the list of volumes; of the few others, in their own answer.
* Lists go by ids; behind a row that was deleted meanwhile they go on behind one before it.
* Nova leaves the servers of a cell that is down out of a list that is sorted or in pages, with 200,
  and may list a server without its volumes if the cell fails just then.  So a server that no list
  has is asked for, and whose mappings are in question and not told is unknown.
* Each answer about a cell that is down takes Nova a minute or more (its CELL_TIMEOUT; Nova 34 took
  130 s while the cell's database refused connections).  So one that comes too late ends nothing,
  and whoever has waited in vain for too long asks for no more single things in that round.
* A member names server and host of an attachment as they like (POST attachments): a server that
  is no UUID is nobody's, and what cannot be shown of a host's name is escaped.
* Nova shows a volume's id as a member wrote it, perhaps in capitals; Cinder has none.
* A database that was mended by hand may hold anything: nothing is said of a server with such an id,
  and the others are read.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

import msgspec
from keystoneauth1 import exceptions
from keystoneauth1.adapter import Adapter

from aggregates.base import NovaTold
from handlers.drift.beside_nova import questionable
from handlers.drift.rows import UNKNOWN, Unknown
from handlers.drift.seen import Cloud, SeenAttachment, SeenMapping, SeenServer, SeenVolume
from host_agent.shared.contract.survey import Survey
from host_agent.shared.platform.text import escaped, one_line

#: Rows of a list that are asked for at once; Nova and Cinder give no more than 1000.
PAGE_ROWS = 500
#: Ids that a list can go on behind, if the last of them is deleted meanwhile.
MARKERS = 5
#: How often a list is begun, if all of those are deleted, as in a cloud with few rows.
BEGUN_MAX = 5
#: How many single things of each sort one round asks for; of others nothing is said.
SINGLES_MAX = 2000
#: Of these so many are guests of one host that Nova does not list, and so many findings of a look
#: rest on what one host shows, at most: it may say anything.
OF_HOST_MAX = 100
#: How long one round waits in vain for single things, at most.
IN_VAIN_S = 600.0
#: Nova's answer has no more of a server's actions; the oldest are left out.
ACTIONS_MAX = 1000
#: Nova tells attachments of mappings from 2.89 on; Cinder has what we read from 3.44 on (S1).
NOVA = {"OpenStack-API-Version": "compute 2.89"}
CINDER = {"OpenStack-API-Version": "volume 3.44"}
_EVERY = {"all_tenants": "1"}
_VOLUMES = "os-extended-volumes:volumes_attached"
_HOST = "OS-EXT-SRV-ATTR:host"
_STRANGE = "what answered is not its API; check its endpoint, or the proxy there"
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Json = Mapping[str, Any]
Servers = dict[str, SeenServer | Unknown | None]
Volumes = dict[str, SeenVolume | Unknown | None]


class _Action(msgspec.Struct):
    """What we read of an instance action of Nova's; its times are UTC, and do not say so."""

    action: str
    start_time: datetime
    message: str | None = None
    user_id: str | None = None
    project_id: str | None = None
    request_id: str | None = None

    def told(self) -> NovaTold:
        return NovaTold(
            event=f"{self.action}.error" if self.message else self.action,
            at=self.start_time.replace(tzinfo=UTC).isoformat(),
            user_id=self.user_id,
            project_id=self.project_id,
            request_id=self.request_id,
        )


class CutListError(Exception):
    """Cinder or Nova may not have shown all there is; what to do is the second argument."""


def _at_once(_took_s: float) -> None:
    """No pause."""


@dataclass
class CloudReader:
    """`requests`: how many were sent.  `unread`: what could not be read, in words.

    `clock`: the time of a Cinder that sends none.  `rest` is called after each answer, with how
    long that took: it may wait, or raise.
    """

    nova: Adapter
    cinder: Adapter
    clock: Callable[[], float]
    rest: Callable[[float], None] = _at_once
    requests: int = 0
    unread: list[str] = field(default_factory=list)
    _begins: dict[str, str] = field(default_factory=dict)  # by sort: the single thing to begin at
    _halves: dict[str, str] = field(default_factory=dict)  # the same of the next round
    _now: datetime | None = None
    _took_s: float = 0.0  # the last answer, or the wait for none
    _in_vain_s: float = 0.0

    def begin(self) -> None:
        """Another round: what was not read in the last one is forgotten."""
        self.unread, self._in_vain_s = [], 0.0

    def go_round(self) -> None:
        """Of what is too much for one round the next asks for the later half of this one's, and as
        much behind it: two in a row can say the same of each.
        """
        self._begins.update(self._halves)

    def cloud(self, hosts: Mapping[str, Survey], *, every_mapping: bool = False) -> Cloud:
        """One round of a survey.  Raises CutListError, and what keystoneauth raises.

        `every_mapping`: each server is asked by which attachments it has its volumes.
        """
        cloud = self.lists(hosts)
        seen = [each for each in cloud.servers.values() if isinstance(each, SeenServer)]
        return self.sure(cloud, [each.id for each in seen if each.volumes and every_mapping])

    def sure(self, cloud: Cloud, more: Iterable[str] = ()) -> Cloud:
        """With the servers of guests that hosts show, and the mappings of servers where these
        matter, and of `more`.  UNKNOWN: where they matter, Nova did not tell them.
        """
        of_hosts: set[str] = set()
        for host, survey in cloud.hosts.items():
            of_host = {each.server_id for each in survey.guests} - cloud.servers.keys()
            of_hosts.update(self.few(of_host, f"guests of {host} that Nova lacks", OF_HOST_MAX))
        strange = self.few(of_hosts, "guests that Nova does not list")
        guests = {id_: self.server(id_) for id_ in strange}
        cloud = replace(cloud, servers={**cloud.servers, **guests})
        unsure = questionable(cloud)
        asked = dict.fromkeys((*self.few(unsure, "servers whose mappings differ"), *more))
        told = {**dict.fromkeys(unsure, UNKNOWN), **self.mappings(cloud.servers, asked)}
        return replace(cloud, servers={**cloud.servers, **told})

    def lists(self, hosts: Mapping[str, Survey]) -> Cloud:
        """What the lists show, and what they name and lack.  Raises as `cloud`."""
        self.begin()
        listed = {row["id"]: row for row in self.pages(self.cinder, "/attachments", "attachments")}
        volumes, projects, attached = self._volumes()
        self.believe(projects)
        attachments = {id_: self._attachment(row, attached.get(id_)) for id_, row in listed.items()}
        servers: Servers = {}
        order = {"sort_key": "uuid", "sort_dir": "asc"}
        for row in self.pages(self.nova, "/servers/detail", "servers", **order):
            servers[row["id"]] = self.seen(row)
        self._missing_servers(servers, attachments.values())
        self._missing_volumes(servers, volumes)
        now = self._now or datetime.fromtimestamp(self.clock(), UTC)  # uWSGI alone sends no Date
        cloud = Cloud(
            now=now, servers=servers, volumes=volumes, attachments=attachments, hosts=hosts
        )
        seen = [each for each in servers.values() if isinstance(each, SeenServer)]
        if down := sum(not (each.known or each.odd) for each in seen):
            self.unread.append(
                f"{down} servers of which Nova does not tell, as if their cell is down"
            )
        return cloud

    # --- who asks -----------------------------------------------------------------------------

    def believe(self, projects: set[str]) -> None:
        """Raises CutListError unless Cinder's lists are of all projects."""
        session = self.cinder.session
        ask = getattr(session.auth, "get_access", None)  # a static token has no roles to show
        access = ask(session) if ask else None
        roles = {name.lower() for name in access.role_names} if access else set()
        if "admin" in roles or projects - {access.project_id if access else None}:
            return
        raise CutListError(
            "Cinder shows no project's volumes but one's own, so what it does not show cannot be "
            f"taken as missing. The token's roles: {', '.join(sorted(roles)) or 'unknown'}.",
            "Read as an administrator (role admin, with a token for a project): 'service' and "
            "'reader' get shorter lists, and no error.",
        )

    # --- lists --------------------------------------------------------------------------------

    def _volumes(
        self,
    ) -> tuple[Volumes, set[str], dict[str, Json]]:
        """Volumes by id, their projects, and what is attached of them by attachment."""
        volumes: Volumes = {}
        projects: set[str] = set()
        attached: dict[str, Json] = {}
        for row in self.pages(self.cinder, "/volumes/detail", "volumes"):
            volumes[row["id"]] = seen_volume(row)
            if project := row.get("os-vol-tenant-attr:tenant_id"):
                projects.add(project)
            attached.update({each["attachment_id"]: each for each in row.get("attachments", ())})
        return volumes, projects, attached

    def _attachment(self, row: Json, attached: Json | None) -> SeenAttachment:
        seen = SeenAttachment(
            id=row["id"],
            volume_id=row["volume_id"],
            server_id=self._server_id(row),
            status=str(row["status"]),
            host=escaped(attached.get("host_name")) if attached else None,
            since=attached.get("attached_at") if attached else None,
        )
        if seen.status in {"attached", "reserved"}:
            return seen
        alone = self.single(self.cinder, f"/attachments/{seen.id}", "attachment")
        if not isinstance(alone, Mapping):
            return seen
        return replace(seen, status=alone["status"], since=alone.get("attached_at") or None)

    def _server_id(self, row: Json) -> str | None:
        named = row.get("instance")
        if named is None or _is_uuid(named):
            return named
        self.unread.append(f"the server of attachment {row['id']}, as it is called {named!r}")
        return None

    def pages(self, of: Adapter, path: str, name: str, **order: str) -> Iterator[Json]:
        """All rows of a list whose ids, also of volumes, are some; one may come twice."""
        order, begun = order or {"sort": "id:asc"}, 0
        seen: deque[str] = deque(maxlen=MARKERS)
        while True:
            query = {**_EVERY, "limit": PAGE_ROWS, **order}
            page, marker = self._page(of, path, name, query, seen)
            begun += marker is None
            if not page:
                return
            if begun > BEGUN_MAX:
                text = f"The list of {name} has no end, though it was begun {begun} times."
                raise CutListError(text, "Its rows go faster than they can be read; try again.")
            seen.extend(row["id"] for row in page)
            for row in page:
                if odd := _odd(row["id"], row.get("volume_id", row["id"])):
                    self.unread.append(f"one of the {name}, with an id that is called {odd[0]!r}")
                else:
                    yield row

    def _page(
        self, of: Adapter, path: str, name: str, query: dict[str, Any], seen: Iterable[str]
    ) -> tuple[list[Json], str | None]:
        """The rows, and behind which one they come; None: they are the first."""
        markers = [None, *seen]
        while True:
            marker = markers.pop()
            behind = {"marker": marker} if marker else {}
            try:
                return list(self.get(of, path, name, **query, **behind)), marker
            except (exceptions.BadRequest, exceptions.NotFound):
                if not markers:
                    raise

    # --- one by one ---------------------------------------------------------------------------

    def _missing_servers(
        self,
        servers: Servers,
        attachments: Iterable[SeenAttachment],
    ) -> None:
        named = {each.server_id for each in attachments if each.server_id}
        missing = self.few(named - servers.keys(), "servers that Nova does not list")
        servers.update((id_, self.server(id_)) for id_ in missing)

    def _missing_volumes(
        self,
        servers: Mapping[str, SeenServer | Unknown | None],
        volumes: Volumes,
    ) -> None:
        seen = [each for each in servers.values() if isinstance(each, SeenServer)]
        named = {volume_id for each in seen for volume_id in each.volumes}
        for id_ in self.few(named - volumes.keys(), "volumes that Cinder does not list"):
            found = self.single(self.cinder, f"/volumes/{id_}", "volume")
            volumes[id_] = seen_volume(found) if isinstance(found, Mapping) else found

    def server(self, id_: str) -> SeenServer | Unknown | None:
        """None: Nova itself says that there is none."""
        found = self.single(self.nova, f"/servers/{id_}", "server")
        return self.seen(found) if isinstance(found, Mapping) else found

    def seen(self, row: Json) -> SeenServer:
        """A server of Nova's; of one with a volume that can be none nothing is known."""
        server = seen_server(row)
        odd = _odd(*server.volumes)
        if odd:
            self.unread.append(f"server {server.id}, which has a volume that is called {odd[0]!r}")
        return SeenServer(id=server.id, known=False, odd=odd[0]) if odd else server

    def is_deleted(self, server_id: str) -> bool:
        """Whether Nova itself lists it as deleted.

        Nova drops filters from the query of who may not use them, and then lists who is there.
        """
        query = {**_EVERY, "deleted": "true", "uuid": server_id}
        rows = self.single(self.nova, "/servers/detail", "servers", **query)
        told: dict[str, str | None] = {}
        if isinstance(rows, list):
            told = {row["id"]: row.get("status") for row in rows}
        return told.get(server_id) == "DELETED"

    def is_gone(self, attachment_id: str) -> bool:
        """Whether Cinder itself says that it has no such attachment."""
        return self.single(self.cinder, f"/attachments/{attachment_id}", "attachment") is None

    def mappings(
        self, servers: Mapping[str, SeenServer | Unknown | None], asked: Iterable[str]
    ) -> Servers:
        """These servers, with the mappings that Nova has of each.

        Those that name no attachment (of before Queens) are in the list of servers alone.
        """
        found: Servers = {}
        for id_ in asked:
            shown, server = self._mappings(id_), servers[id_]
            if isinstance(shown, tuple) and isinstance(server, SeenServer):
                by_mappings = (each.volume_id for each in shown)
                volumes = tuple(dict.fromkeys((*server.volumes, *by_mappings)))
                found[id_] = replace(server, mappings=shown, volumes=volumes)
            elif shown is not None:
                found[id_] = UNKNOWN
        return found

    def _mappings(self, server_id: str) -> tuple[SeenMapping, ...] | Unknown | None:
        """None: Nova says that there is no such server."""
        path = f"/servers/{server_id}/os-volume_attachments"
        rows = self.single(self.nova, path, "volumeAttachments")
        if not isinstance(rows, list):
            return None if rows is None else UNKNOWN
        shown = tuple(map(seen_mapping, rows))
        ids = ((each.id, each.volume_id, each.attachment_id or each.id) for each in shown)
        if odd := _odd(*chain.from_iterable(ids)):
            self.unread.append(f"{path}: one has an id that is called {odd[0]!r}")
        return UNKNOWN if odd else shown

    def actions(self, server_id: str) -> list[NovaTold] | None:
        """What was asked of a server lately, ACTIONS_MAX at most.  None: Nova did not tell."""
        path = f"/servers/{server_id}/os-instance-actions"
        rows = self.single(self.nova, path, "instanceActions", limit=ACTIONS_MAX)
        if not isinstance(rows, list):
            return None
        try:
            return [each.told() for each in msgspec.convert(rows, list[_Action])]
        except msgspec.ValidationError as error:
            self.unread.append(f"{path}: {error}")
            return None

    def few(self, every: Iterable[str], what: str, most: int | None = None) -> list[str]:
        """As many as one round asks for (None: SINGLES_MAX); that others are not is told."""
        ids, most = sorted(every), SINGLES_MAX if most is None else most
        if len(ids) > most:
            self.unread.append(f"{len(ids) - most} of {len(ids)} {what}")
            at = bisect_left(ids, self._begins.get(what, ""))
            ids = [*ids[at:], *ids[:at]]
            self._halves[what] = ids[most // 2]
        return ids[:most]

    def single(self, of: Adapter, path: str, name: str, **query: Any) -> Any:
        """What is there; None: the service itself says 404; UNKNOWN: it did not tell, or was not
        asked, as too much was asked in vain.
        """
        if self._in_vain_s > IN_VAIN_S:
            return UNKNOWN
        try:
            found = self.get(of, path, name, **query)
            if not (name == "server" and _VOLUMES not in found):
                return found
            why = "its cell does not answer Nova"
        except exceptions.NotFound as error:
            # A proxy's 404 says nothing: the service's own names what is not there.
            if _is_its_own(error):
                return None
            why = "a 404 that is not the service's own"
        except exceptions.HttpError as error:
            why = f"HTTP {error.http_status}"
        except exceptions.ConnectTimeout as error:
            why = str(error)
        except exceptions.InvalidResponse:
            why = _STRANGE
        self.unread.append(f"{path}: {why}")
        self._in_vain_s += self._took_s
        if self._in_vain_s > IN_VAIN_S:
            self.unread.append(f"all else by its id: {IN_VAIN_S:g} s were waited in vain")
        return UNKNOWN

    def get(self, of: Adapter, path: str, name: str, **query: Any) -> Any:
        """What the answer has of that name.  Raises what keystoneauth raises, with whose it is."""
        asked = f"{'Nova' if of is self.nova else 'Cinder'}: GET {path}"
        try:
            answer = self._answer(of, path, query, NOVA if of is self.nova else CINDER)
        except exceptions.HttpError as error:
            self.rest(self._took_s)
            told = f"{asked}: {error}" if _is_of(error, path) else f"Keystone, for a token: {error}"
            error.args = (told,)
            raise
        self.rest(self._took_s)
        if of is self.cinder and "Date" in answer.headers:
            self._now = parsedate_to_datetime(answer.headers["Date"])
        try:
            return answer.json()[name]
        except (ValueError, LookupError, TypeError):  # a proxy's page, say
            strange = exceptions.InvalidResponse(answer)
            strange.args = (f"{asked}: {_STRANGE}",)
            raise strange from None

    def _answer(self, of: Adapter, path: str, query: Json, headers: Json) -> Any:
        self.requests += 1
        began = time.monotonic()
        try:
            return of.get(path, params=query, headers=headers)
        finally:
            self._took_s = time.monotonic() - began


def _is_of(error: exceptions.HttpError, path: str) -> bool:
    """Whether the request failed itself, and not the one for the token that it needs."""
    return error.url is None or urlsplit(error.url).path.endswith(path)


def _is_its_own(error: exceptions.NotFound) -> bool:
    try:
        return error.response is not None and "itemNotFound" in error.response.json()
    except (ValueError, TypeError):
        return False


# --- rows ---------------------------------------------------------------------------------------


def _is_uuid(id_: Any) -> bool:
    return isinstance(id_, str) and _UUID.fullmatch(id_) is not None


def _odd(*ids: Any) -> list[Any]:
    return [id_ for id_ in ids if not _is_uuid(id_)]


def seen_server(row: Json) -> SeenServer:
    """Raises CutListError: nothing can be said of a server whose host is hidden."""
    if _VOLUMES not in row:  # its cell is down (Nova, 2.69)
        return SeenServer(id=row["id"], known=False)
    if _HOST not in row:
        raise CutListError(
            "Nova does not show on which hosts servers are.",
            "Its policy has to grant that: os_compute_api:os-extended-server-attributes.",
        )
    return SeenServer(
        id=row["id"],
        name=escaped(row.get("name")),
        host=escaped(row[_HOST]),
        vm_state=escaped(row.get("OS-EXT-STS:vm_state")),
        task_state=escaped(row.get("OS-EXT-STS:task_state")),
        power_state=row.get("OS-EXT-STS:power_state"),
        updated=row.get("updated"),
        project_id=escaped(row.get("tenant_id")),
        user_id=escaped(row.get("user_id")),
        root_device=bare_device(row.get("OS-EXT-SRV-ATTR:root_device_name")),
        volumes=tuple(each["id"].lower() for each in row[_VOLUMES]),
    )


def seen_mapping(row: Json) -> SeenMapping:
    return SeenMapping(
        id=row.get("bdm_uuid") or "",
        volume_id=row["volumeId"].lower(),
        attachment_id=row.get("attachment_id"),
        device=bare_device(row.get("device")),
        tag=escaped(row.get("tag")),
        delete_on_termination=bool(row.get("delete_on_termination")),
    )


def bare_device(path: str | None) -> str | None:
    return one_line(path.removeprefix("/dev/")) if path else None


def seen_volume(row: Json) -> SeenVolume:
    return SeenVolume(
        id=row["id"],
        status=str(row["status"]),
        multiattach=bool(row.get("multiattach")),
        migration_status=row.get("migration_status"),
        updated_at=row.get("updated_at"),
        size_gb=row.get("size"),
        name_id=row.get("os-vol-mig-status-attr:name_id"),
    )
