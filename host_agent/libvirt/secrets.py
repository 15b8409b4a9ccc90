"""libvirt's secrets for encrypted volumes: one for each volume, as in Nova.

Ephemeral: never written to the host's disk, so libvirtd loses them when it ends.  Private: libvirt
gives the value to QEMU, but to no client.  A running guest does not need it: QEMU has the key.

libvirt has at most one secret of a volume.  Nova (34) defines its own for the same usage, by a
random uuid, which the disks of its guests name, and libvirt keeps that one and its value in files.
On an adopted host ours takes its place, under its uuid.
"""

from __future__ import annotations

import uuid
import xml.etree.ElementTree as ET
from typing import Any

import libvirt


def keep(connection: Any, volume_id: str, passphrase: str) -> str:
    """Define the secret if it is not there, and give it its value; its uuid.

    Its uuid is the volume's id, because guests' definitions have it and outlive the secret; or that
    of the secret which it replaces.
    """
    own, found = str(uuid.UUID(volume_id)), _find(connection, volume_id)
    if found is not None and not _is_ephemeral(found):
        own = found.UUIDString()
        found.undefine()  # defined as another kind, libvirt (9) leaves its definition's file
        found = None
    secret = found or connection.secretDefineXML(_definition(own, volume_id))
    secret.setValue(passphrase.encode())
    return str(secret.UUIDString())


def drop(connection: Any, volume_id: str) -> None:
    """Whoever made it: an adopted volume's may still be as Nova defined it."""
    secret = _find(connection, volume_id)
    if secret is not None:
        secret.undefine()


def ours(connection: Any) -> list[str]:
    """The volumes of the secrets that `keep` has defined."""
    how = libvirt.VIR_CONNECT_LIST_SECRETS_EPHEMERAL | libvirt.VIR_CONNECT_LIST_SECRETS_PRIVATE
    return [
        secret.usageID()
        for secret in connection.listAllSecrets(how)
        if secret.usageType() == libvirt.VIR_SECRET_USAGE_TYPE_VOLUME
    ]


def _find(connection: Any, volume_id: str) -> Any:
    try:
        return connection.secretLookupByUsage(libvirt.VIR_SECRET_USAGE_TYPE_VOLUME, volume_id)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_SECRET:
            return None
        raise


def _is_ephemeral(secret: Any) -> bool:
    return ET.fromstring(secret.XMLDesc()).get("ephemeral") == "yes"  # noqa: S314 - from libvirt


def _definition(own: str, volume_id: str) -> str:
    root = ET.Element("secret", ephemeral="yes", private="yes")
    ET.SubElement(root, "uuid").text = own
    usage = ET.SubElement(root, "usage", type="volume")
    ET.SubElement(usage, "volume").text = volume_id
    return ET.tostring(root, encoding="unicode")
