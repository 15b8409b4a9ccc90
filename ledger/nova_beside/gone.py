"""What is gone at Nova or Cinder, and what only seems to be: what has ended in the log never begins
again, so nobody's single word ends it.

Theory of operation
-------------------
* A 404 of Nova's is no proof.  It says so, too, of a server whose cell is down if the API's own
  database lacks the server's request or mapping (nova/compute/api.py), of those that are younger
  than a backup that was restored, and of every server of another cloud.
* Nova's list of deleted servers is a proof: it has each until its row is archived (`nova-manage db
  archive_deleted_rows`).
* A server that this list lacks is gone if Nova has said 404 for a day, whenever it was asked, and
  nobody else knows it: Cinder has no attachment of it, no host of ours a volume in its guest, and
  no host of Nova's that sends surveys its guest.
  Until then it stays as it was.
* A Nova that has none of the servers that it had, lists none as deleted, and has none of their
  hosts, is another one.
* An attachment of which Cinder says 404 is over, unless Nova's mapping names it and this Cinder
  does not have the volume either: then it may be another Cinder.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from handlers.drift.rows import Unknown
from handlers.drift.seen import SeenServer, SeenVolume
from ledger.nova_beside import one_host
from ledger.nova_beside.known import Known
from ledger.nova_beside.reads import CloudReader, CutListError, Servers

#: For so long Nova has to say 404 of a server that it does not list as deleted either.
GONE_S = 24 * 3600.0

#: Of so many servers another Nova is asked at most whether it lists them as deleted.
ASKED_MAX = 20

VolumesSeen = Mapping[str, SeenVolume | Unknown | None]


class Absences:
    """Of which servers Nova says 404 and no more, and since when this process has heard so."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def end(self, servers: Servers) -> None:
        """Those that are shown are there."""
        for id_ in [id_ for id_ in self._since if isinstance(servers.get(id_), SeenServer)]:
            del self._since[id_]

    def are_over(self, reader: CloudReader, server_id: str, *, held: bool) -> bool:
        """Whether a server of which Nova says 404 is deleted.  `held`: somebody else knows it."""
        now = time.monotonic()
        since = now if held else self._since.get(server_id, now)
        over = reader.is_deleted(server_id) or now - since >= GONE_S
        self._since[server_id] = since
        if over:
            del self._since[server_id]
        return over


def refuse_another(reader: CloudReader, servers: Servers, knows: Mapping[str, Known]) -> None:
    """Raises CutListError if Nova is another one than before."""
    had = {id_: each for id_, each in knows.items() if each.shape is not None and id_ in servers}
    hosts = {each.host for each in had.values() if each.host is not None}
    if not hosts or any(servers[id_] is not None for id_ in had):
        return
    if hosts.isdisjoint(one_host.hosts(reader)) and not _lists_any(reader, sorted(had)):
        raise CutListError(
            f"Nova has none of the {len(had)} servers that it had, and none of their hosts. It may "
            "be another cloud's: check observe.compute_endpoint, region_name and the catalog.",
            "A cloud that was made anew needs a ledger with a database of its own.",
        )


def _lists_any(reader: CloudReader, server_ids: Sequence[str]) -> bool:
    """Whether Nova lists one of the first as deleted: no other Nova does."""
    return any(reader.is_deleted(id_) for id_ in server_ids[:ASKED_MAX])


def doubted(server: SeenServer | None, volumes: VolumesSeen) -> frozenset[str]:
    """Attachments that Nova names, of volumes that Cinder does not have."""
    shown = (server.mappings if server is not None else None) or ()
    lost = [each for each in shown if not isinstance(volumes.get(each.volume_id), SeenVolume)]
    return frozenset(each.attachment_id for each in lost if each.attachment_id is not None)
