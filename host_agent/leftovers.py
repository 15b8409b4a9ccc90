"""Clears leftovers: what a fenced host still has and must release (decision 0027).

While the host was fenced, its guests were rebuilt elsewhere and their attachments deleted.  The
ledger says what to remove of all that this host shows.  First the guests, because no volume is
disconnected under a guest.  Then the connections, by this host's own records, because Cinder has
deleted them, or has only those of the other host.

While Cinder does not answer, the guests are removed and the connections stay: only Cinder knows
the target of a volume, and a disconnect without that lock may remove paths that another run is
connecting (S3; LP 1961102).
"""

from __future__ import annotations

import structlog

from host_agent.clock import Clock
from host_agent.locks import Locks, volume_names
from host_agent.shared.contract.messages import Release
from host_agent.shared.contract.ports import PortError, VolumeView
from host_agent.storage.records import Record, there_now
from host_agent.verbs.context import Ports, is_missing
from host_agent.verbs.encryption import is_encrypted

_LOG = structlog.get_logger(__name__)


class LeftoversRelease:
    """Clears leftovers.  A repeated call continues where the last one failed."""

    def __init__(self, ports: Ports, locks: Locks, clock: Clock) -> None:
        self._ports, self._locks, self._clock = ports, locks, clock

    def clear(self, release: Release) -> None:
        """Blocks.  Raises PortError if something could not be cleared yet."""
        failures = [error for error in map(self._remove, release.guests) if error is not None]
        if failures:
            raise failures[0]
        for attachment_id in release.attachments:
            record = self._ports.records.get(attachment_id)
            if record is not None:
                self._disconnect(record, release)

    def _remove(self, server_id: str) -> PortError | None:
        """Remove a guest; its error does not stop the removal of the others."""
        try:
            with self._locks.hold([f"server-{server_id}"], self._clock):
                _LOG.warning("removing_leftover_guest", server=server_id)
                self._ports.guests.remove(server_id)
        except PortError as error:
            _LOG.error("leftover_guest_stays", server=server_id, why=error.message)
            return error
        return None

    def _disconnect(self, record: Record, release: Release) -> None:
        """Disconnect, unless another record that stays is of the volume, or the ledger knows
        another server here that uses it (an adopted server may have no record).
        """
        volume_id = record.volume_id
        names = volume_names({volume_id: self._volume(volume_id)}, multiattach=True)
        pair = f"server-{record.server_id}-{volume_id}"  # an earlier run may still be in progress
        with self._locks.hold([pair, *names], self._clock):
            records, leaving = there_now(self._ports.records), release.attachments
            staying = [each for each in records if each.attachment_id not in leaving]
            known = [each for each in staying if each.attachment_id not in release.unknown]
            if not any(_disk(other) == _disk(record) for other in known):
                # Even if the volume stays connected for another guest, this one loses the disk.
                self._ports.guests.unplug(record.server_id, record.serial)
            others = any(other.volume_id == volume_id for other in staying)
            if not others and not self._told_of_others(record):
                _LOG.warning("disconnecting_leftover_volume", volume=volume_id)
                for info in record.infos:
                    self._ports.brick.disconnect(info, record.device_of(info))
                if is_encrypted(record.infos):
                    self._ports.guests.drop_secret(volume_id)
            self._ports.records.pop(record.attachment_id, None)

    def _told_of_others(self, record: Record) -> bool:
        """Whether another server has the volume here, by the ledger.  The same server may have it
        by another attachment after a migration in Cinder, with another device and record.
        """
        servers = self._ports.users.others(record.volume_id, record.attachment_id)
        return bool({*servers} - {record.server_id})

    def _volume(self, volume_id: str) -> VolumeView | None:
        try:
            return self._ports.cinder.volume(volume_id)
        except PortError as error:
            if is_missing(error):
                return None
            raise


def _disk(record: Record) -> tuple[str, str]:
    """The guest's disk; in a swap the former and the new volume have the same one."""
    return record.server_id, record.serial
