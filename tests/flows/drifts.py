"""Drifted worlds with the repairs that end them: what is true of every repair is tried on each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.flows import corrected, drifted
from tests.world import World


@dataclass(frozen=True)
class Drift:
    """A drifted world, how its repair is asked for, and the flow that does it."""

    world: Callable[[], World]
    flow: str
    ask: Callable[[World], str] = drifted.repair


def _forget(world: World) -> str:
    return drifted.repair(world, repair="forget_attachment")


DRIFTS: dict[str, Drift] = {
    "repair-reservation": Drift(drifted.reservation_unknown, "drop_reservation"),
    "repair-attachment": Drift(drifted.attachment_unknown, "drop_attachment"),
    "repair-attachment-beside": Drift(drifted.attachment_unknown_beside, "drop_attachment"),
    "repair-owner-gone": Drift(drifted.owner_gone, "drop_attachment"),
    "repair-connection": Drift(drifted.connection_left, "release_connection"),
    "repair-connection-beside": Drift(drifted.connection_left_beside, "release_connection"),
    "repair-record": Drift(drifted.record_left, "release_connection"),
    "repair-lost": Drift(drifted.attachment_lost, "replace_attachment"),
    "repair-lost-encrypted": Drift(drifted.attachment_lost_encrypted, "replace_attachment"),
    "repair-lost-everywhere": Drift(
        drifted.attachment_lost_everywhere, "forget_attachment", _forget
    ),
    "repair-reservation-lost": Drift(drifted.reservation_lost, "replace_reservation"),
    "repair-taken-back": Drift(drifted.attachment_taken_back, "complete_attachment"),
    "repair-host": Drift(corrected.host_differs, "correct_attachment"),
    "repair-mountpoint": Drift(corrected.mountpoint_differs, "correct_attachment"),
    "repair-readonly": Drift(corrected.readonly_defined, "define_disk"),
    "repair-writable": Drift(corrected.writable_defined, "define_disk"),
    "repair-detaching": Drift(drifted.volume_detaching, "settle_volume"),
    "repair-volume": Drift(drifted.volume_of_nobody, "delete_volume"),
    "repair-disk-pulled": Drift(drifted.disk_pulled, "plug_disk"),
    "repair-disk-undefined": Drift(drifted.disk_undefined, "define_disk"),
    "repair-secret": Drift(drifted.secret_left, "drop_secret"),
    "repair-guest": Drift(drifted.guest_of_deleted, "forget_guest"),
    "repair-server": Drift(drifted.guest_missing, "forget_server"),
}
