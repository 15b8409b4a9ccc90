"""Connection information as backends make it, secrets included.

The secrets are derived from the attachment's id, so that a scan for leaks knows
what to look for (`CinderModel.secrets`); they give access to nothing.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ledger.trial.cinder.model.rows import StoredVolume

DRIVERS = ("rbd", "iscsi", "local", "nfs")
LOCAL_DIR = "/var/lib/attachment-ledger/sim-volumes"


def check_driver(driver: str) -> None:
    """Raise ValueError for a driver type that is not simulated."""
    if driver not in DRIVERS:
        raise ValueError(f"driver {driver!r} is not simulated; use one of {', '.join(DRIVERS)}")


def _secret(attachment_id: str, what: str) -> str:
    return "sEcReT" + hashlib.sha256(f"{what}:{attachment_id}".encode()).hexdigest()[:26]


def _data_of(volume: StoredVolume) -> str:
    """A migrated volume's data keep the name of the volume that they were made for."""
    return volume.name_id or volume.id


def _rbd(volume: StoredVolume, attachment_id: str) -> tuple[dict[str, Any], list[str]]:
    key = _secret(attachment_id, "ceph")
    data = {
        "name": f"volumes/volume-{_data_of(volume)}",
        "hosts": ["192.0.2.11", "192.0.2.12", "192.0.2.13"],
        "ports": ["6789", "6789", "6789"],
        "cluster_name": "ceph",
        "auth_enabled": True,
        "auth_username": "cinder",
        "secret_type": "ceph",
        "secret_uuid": "457eb676-33da-42ec-9a8c-9293d545c337",
        "volume_id": volume.id,
        "discard": True,
        "keyring": f"[client.cinder]\n\tkey = {key}\n",
    }
    return data, [key]


def _iscsi(volume: StoredVolume, attachment_id: str) -> tuple[dict[str, Any], list[str]]:
    password = _secret(attachment_id, "chap")
    data = {
        "target_discovered": False,
        "target_portal": "192.0.2.20:3260",
        "target_iqn": f"iqn.2010-10.org.openstack:volume-{_data_of(volume)}",
        "target_lun": 1,
        "volume_id": volume.id,
        "auth_method": "CHAP",
        "auth_username": "u" + attachment_id.replace("-", "")[:16],
        "auth_password": password,
        "discard": False,
    }
    return data, [password]


def _local(volume: StoredVolume, attachment_id: str) -> tuple[dict[str, Any], list[str]]:
    del attachment_id  # a local file has no credentials
    path = f"{LOCAL_DIR}/volume-{_data_of(volume)}"
    return {"device_path": path, "volume_id": volume.id}, []


def _nfs(volume: StoredVolume, attachment_id: str) -> tuple[dict[str, Any], list[str]]:
    del attachment_id  # who may mount the share may read it
    data = {"export": "192.0.2.30:/export", "options": None, "volume_id": volume.id}
    return data | file_of(volume), []


def data_file(volume: StoredVolume) -> str:
    """The file of a volume that was made for itself, before there were snapshots."""
    return f"volume-{_data_of(volume)}"


def file_of(volume: StoredVolume) -> dict[str, str]:
    """The file that whoever has the volume writes to: raw, or a snapshot's."""
    name = volume.active_file or data_file(volume)
    return {"name": name, "format": "qcow2" if volume.active_file else "raw"}


_MAKERS = {"rbd": _rbd, "iscsi": _iscsi, "local": _local, "nfs": _nfs}


def size_of(volume: StoredVolume) -> dict[str, int]:
    """What storage has of the volume: simulated hosts have no other way to it."""
    return {"simulated_bytes": volume.size << 30}


def connection_info(
    volume: StoredVolume, attachment_id: str, connector: dict[str, Any], *, flat: bool = True
) -> tuple[dict[str, Any], list[str]]:
    """The connection information and the secrets in it.

    Attachments have it flat, driver_volume_type beside the data (`flat`); the old
    flow's initialize_connection has the data in a key of their own.
    """
    data, secrets = _MAKERS[volume.driver](volume, attachment_id)
    multipath = connector.get("enforce_multipath", False)
    data |= {
        "qos_specs": volume.qos_specs,
        # By the volume's flag, whatever mode the attachment is made with (Cinder 29).
        "access_mode": "ro" if volume.readonly else "rw",
        "encrypted": volume.encrypted,
        "cacheable": False,
        "enforce_multipath": multipath,
        **size_of(volume),
    }
    if not flat:
        return {
            "driver_volume_type": volume.driver,
            "data": data,
            "enforce_multipath": multipath,
        }, secrets
    return data | {"driver_volume_type": volume.driver, "attachment_id": attachment_id}, secrets
