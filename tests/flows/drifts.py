"""Drifted worlds with the repairs that end them: what is true of every repair is tried on each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.flows import corrected, drifted
from tests.world import World


@dataclass(frozen=True)
class Drift:
    """A drifted world, the flow that repairs it, and how that is asked for.

    `changes`: what of the world's summary the repair changes, and so what it leaves alone.
    `ends`: how the server is afterwards (scenarios.ENDS).
    """

    world: Callable[[], World]
    flow: str
    changes: str
    ends: str = "active: 1 attached compute-1"
    ask: Callable[[World], str] = drifted.repair


def _forget(world: World) -> str:
    return drifted.repair(world, repair="forget_attachment")


DRIFTS: dict[str, Drift] = {
    "repair-reservation": Drift(drifted.reservation_unknown, "drop_reservation", "cinder volumes"),
    "repair-attachment": Drift(
        drifted.attachment_unknown, "drop_attachment", "cinder told volumes"
    ),
    "repair-attachment-beside": Drift(
        drifted.attachment_unknown_beside, "drop_attachment", "cinder told"
    ),
    "repair-owner-gone": Drift(
        drifted.owner_gone, "drop_attachment", "cinder told volumes", ends="deleted: none"
    ),
    "repair-connection": Drift(
        drifted.connection_left, "release_connection", "connected", ends="active: none"
    ),
    "repair-connection-beside": Drift(
        drifted.connection_left_beside, "release_connection", ""
    ),  # but the record
    "repair-record": Drift(drifted.record_left, "release_connection", "", ends="active: none"),
    "repair-lost": Drift(drifted.attachment_lost, "replace_attachment", "cinder told volumes"),
    "repair-lost-encrypted": Drift(
        drifted.attachment_lost_encrypted, "replace_attachment", "cinder told volumes"
    ),
    "repair-lost-everywhere": Drift(
        drifted.attachment_lost_everywhere,
        "forget_attachment",
        "ledger mappings connected devices",
        ends="active: none",
        ask=_forget,
    ),
    "repair-reservation-lost": Drift(
        drifted.reservation_lost,
        "replace_reservation",
        "cinder volumes",
        ends="shelved_offloaded: 1 reserved",
    ),
    "repair-taken-back": Drift(
        drifted.attachment_taken_back, "complete_attachment", "cinder volumes"
    ),
    "repair-host": Drift(corrected.host_differs, "correct_attachment", "told"),
    "repair-mountpoint": Drift(corrected.mountpoint_differs, "correct_attachment", "told"),
    "repair-readonly": Drift(corrected.readonly_defined, "define_disk", "readonly"),
    "repair-writable": Drift(
        corrected.writable_defined, "define_disk", "readonly", ends="stopped: 1 attached compute-1"
    ),
    "repair-detaching": Drift(drifted.volume_detaching, "settle_volume", "volumes"),
    "repair-volume": Drift(
        drifted.volume_of_nobody, "delete_volume", "volumes sizes", ends="active: none"
    ),
    "repair-disk-pulled": Drift(drifted.disk_pulled, "plug_disk", "plugged"),
    "repair-disk-undefined": Drift(drifted.disk_undefined, "define_disk", "plugged"),
    "repair-secret": Drift(drifted.secret_left, "drop_secret", "secrets", ends="active: none"),
    "repair-guest": Drift(drifted.guest_of_deleted, "forget_guest", "guests", ends="deleted: none"),
    "repair-server": Drift(
        drifted.guest_missing,
        "forget_server",
        "cinder told volumes ledger mappings connected secrets vm_state devices",
        ends="deleted: none",
    ),
}
