"""The lanes of requests about a whole server: the attachments that a flow works on, and the two
sides of each lane.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from aggregates import errors
from aggregates.attachment import Attachment
from aggregates.mapping import BlockDeviceMapping
from handlers.engine.plan import Place
from handlers.requests.guards import WholeServer
from host_agent.shared.contract.lane import Lane, LaneSide

Lanes = list[Lane]
Places = dict[Place, str | None]


def _lane(server: WholeServer, mapping: BlockDeviceMapping, host: str | None) -> Lane:
    assert mapping.volume_id is not None, "only mappings with a volume are lanes"
    return mapping.lane(server.volumes[mapping.volume_id], host)


def one_sided(server: WholeServer, places: Places) -> Lanes:
    return [_lane(server, mapping, places.get(Place.HOST)) for mapping in server.attached]


def _moving(server: WholeServer, places: Places) -> Lanes:
    """Each volume gets a new attachment for the destination, or a bare reservation."""
    new = LaneSide(host=places.get(Place.DESTINATION))
    return [replace(lane, new=new) for lane in one_sided(server, places)]


def _confirming(server: WholeServer, places: Places) -> Lanes:
    """Current: what the source has kept.  New: what the server has."""
    lanes = []
    for mapping in server.attached:
        lane = _lane_of_kept(server, mapping, places)
        new = LaneSide(attachment_id=mapping.attachment_id, host=places[Place.DESTINATION])
        lanes.append(replace(lane, new=new))
    return lanes


def _lane_of_kept(server: WholeServer, mapping: BlockDeviceMapping, places: Places) -> Lane:
    """What the source of a resize has kept."""
    lane = _lane(server, mapping, places[Place.SOURCE])
    return replace(lane, attachment_id=mapping.kept, legacy=mapping.kept_legacy)


def _reverting(server: WholeServer, places: Places) -> Lanes:
    """Current: what the server has.  New: what the source has kept."""
    lanes = []
    for mapping in server.attached:
        if mapping.kept_legacy != mapping.legacy:  # the source has nothing in Cinder to go back to
            server.instance.refuse_claimed(exclusive=True)  # by what is about to make it
            server_id, host = str(server.instance.id), places[Place.SOURCE]
            raise errors.HalfConvertedError(server_id=server_id, host=host)
        lane = _lane(server, mapping, places[Place.DESTINATION])
        new = LaneSide(attachment_id=mapping.kept, host=places[Place.SOURCE])
        lanes.append(replace(lane, new=new))
    return lanes


def _converting(server: WholeServer, places: Places) -> Lanes:
    old = [lane for lane in one_sided(server, places) if lane.legacy]
    if not old:
        raise errors.NotLegacyError(server_id=str(server.instance.id))
    return [replace(lane, new=LaneSide(host=places[Place.HOST])) for lane in old]


def _converting_resized(server: WholeServer, places: Places) -> Lanes:
    """What the server has, and what its source has kept; each side gets a new attachment.

    The source creates its own by the new calls: Cinder has no old-style row for it.
    """
    here, source = places[Place.DESTINATION], places[Place.SOURCE]
    mine = [m for m in server.attached if m.legacy]
    kept = [m for m in server.attached if m.kept_legacy]
    if not mine and not kept:
        raise errors.NotLegacyError(server_id=str(server.instance.id))
    lanes = [replace(_lane(server, m, here), new=LaneSide(host=here)) for m in mine]
    for mapping in kept:
        lane = replace(_lane_of_kept(server, mapping, places), legacy=False)
        lanes.append(replace(lane, new=LaneSide(host=source)))
    return lanes


def imaged(lanes: Lanes, image: str, server: WholeServer) -> Lanes:
    """The root volume's lane with the image to write, and with a second attachment to create.

    Cinder writes an image neither to a multi-attach volume nor to one of the old calls.
    """
    root = next((lane for lane in lanes if lane.boot_index == 0), None)
    if root is None:
        raise errors.ReimageError(why=f"Server {server.instance.id} has no root volume.")
    if root.multiattach:
        why = f"Root volume {root.volume_id} can be attached to several servers."
        raise errors.ReimageError(why=why)
    if root.legacy:
        why = f"Root volume {root.volume_id} was attached by Cinder's old calls: convert it first."
        raise errors.ReimageError(why=why)
    coming = replace(root, image=image, new=LaneSide(host=root.host))
    return [coming if lane is root else lane for lane in lanes]


def of_attachment(
    attachment: Attachment,
    mapping: BlockDeviceMapping | None,
    host: str | None,
    no_mapping: str,
    known: list[str],
) -> Lane:
    """An attachment of a server being deleted, with its mapping, if any.

    With the old calls, Cinder has one row for both hosts of a resize: it is deleted with the
    server's own attachment.
    """
    assert attachment.server_id is not None, "a recorded attachment has a server"
    assert attachment.volume_id is not None, "and a volume"
    other = None
    if mapping is not None and attachment.legacy and mapping.kept == str(attachment.id):
        other = LaneSide(volume_id=attachment.volume_id, attachment_id=mapping.attachment_id)
    return Lane(
        server_id=attachment.server_id,
        volume_id=attachment.volume_id,
        bdm_id=str(mapping.id) if mapping else no_mapping,
        attachment_id=str(attachment.id),
        device_name=mapping.device_name if mapping else None,
        multiattach=mapping.multiattach if mapping else False,
        boot_index=mapping.boot_index if mapping else None,
        delete_on_termination=mapping.delete_on_termination if mapping else False,
        serial=mapping.serial if mapping else None,
        access_mode=attachment.access_mode or "rw",
        host=host,
        legacy=attachment.legacy,
        other=other,
        known=tuple(known),
    )


def of_unlearnt(lane: Lane, mapping: BlockDeviceMapping | None, no_mapping: str) -> Lane:
    """An attachment that may exist and must be looked for.  If it is the last one to be deleted, a
    volume that is deleted with its server is deleted then.
    """
    together = mapping.delete_on_termination if mapping else False
    return replace(lane, bdm_id=no_mapping, host=None, delete_on_termination=together)


def of_unmade(lane: Lane, known: list[str]) -> Lane:
    """A volume that was made, or may still be made, and that no mapping has: it is found by its
    mark.
    """
    return replace(lane, new=None, attachment_id=None, host=None, known=tuple(known))


LANES: dict[str, Callable[[WholeServer, Places], Lanes]] = {
    "live_migrate": _moving,
    "resize": _moving,
    "evacuate": _moving,
    "shelve": _moving,
    "unshelve": _moving,
    "confirm_resize": _confirming,
    "revert_resize": _reverting,
    "convert": _converting,
    "convert_offloaded": _converting,
    "convert_resized": _converting_resized,
}
