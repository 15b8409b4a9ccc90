"""libvirt's secrets for encrypted volumes: one for each volume, as in Nova.

Ephemeral: never written to the host's disk, so libvirtd loses them when it ends.  Private: libvirt
gives the value to QEMU, but to no client.  A running guest does not need it: QEMU has the key.
"""

from __future__ import annotations

import uuid
import xml.etree.ElementTree as ET
from typing import Any

import libvirt


def keep(connection: Any, volume_id: str, passphrase: str) -> str:
    """Define the secret if it is not there, and give it its value; its uuid."""
    secret = _find(connection, volume_id) or connection.secretDefineXML(_definition(volume_id))
    secret.setValue(passphrase.encode())
    return str(secret.UUIDString())


def drop(connection: Any, volume_id: str) -> None:
    """Only a secret that `keep` made; another one belongs to whoever defined it."""
    secret = _find(connection, volume_id)
    if secret is not None and secret.UUIDString() == volume_id:
        secret.undefine()


def ours(connection: Any) -> list[str]:
    """The volumes of the secrets that `keep` made; Nova's secrets have other uuids."""
    return [
        secret.usageID()
        for secret in connection.listAllSecrets(0)
        if secret.usageType() == libvirt.VIR_SECRET_USAGE_TYPE_VOLUME
        and secret.UUIDString() == secret.usageID()
    ]


def _find(connection: Any, volume_id: str) -> Any:
    try:
        return connection.secretLookupByUsage(libvirt.VIR_SECRET_USAGE_TYPE_VOLUME, volume_id)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_SECRET:
            return None
        raise


def _definition(volume_id: str) -> str:
    """Its uuid is the volume's id, because guests' definitions have it and outlive the secret."""
    root = ET.Element("secret", ephemeral="yes", private="yes")
    ET.SubElement(root, "uuid").text = str(uuid.UUID(volume_id))
    usage = ET.SubElement(root, "usage", type="volume")
    ET.SubElement(usage, "volume").text = volume_id
    return ET.tostring(root, encoding="unicode")
