"""The flags of libvirt calls."""

from __future__ import annotations

import libvirt

#: With these, libvirt also removes what would make it refuse to undefine.
WITH_ALL = (
    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_NVRAM
)
MIGRATE = (
    libvirt.VIR_MIGRATE_PEER2PEER
    | libvirt.VIR_MIGRATE_LIVE
    | libvirt.VIR_MIGRATE_PERSIST_DEST
    | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
    | libvirt.VIR_MIGRATE_ABORT_ON_ERROR
)
#: The target exists already.  From libvirt 8.0 a write completes only after both volumes have it;
#: before that, a guest that dies just before the switch may lose writes.
COPY = (
    libvirt.VIR_DOMAIN_BLOCK_COPY_REUSE_EXT
    | libvirt.VIR_DOMAIN_BLOCK_COPY_TRANSIENT_JOB
    | getattr(libvirt, "VIR_DOMAIN_BLOCK_COPY_SYNCHRONOUS_WRITES", 0)
)
#: The file exists already, made by Cinder; libvirt keeps no metadata of the snapshot.
SNAPSHOT = (
    libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_DISK_ONLY
    | libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_REUSE_EXT
    | libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_NO_METADATA
)
#: Backing file names stay relative, because Cinder mounts the share elsewhere.
PULL = libvirt.VIR_DOMAIN_BLOCK_REBASE_RELATIVE
COMMIT = libvirt.VIR_DOMAIN_BLOCK_COMMIT_RELATIVE
COMMIT_FIRST = libvirt.VIR_DOMAIN_BLOCK_COMMIT_ACTIVE
PASSWORDS_TOO = libvirt.VIR_DOMAIN_XML_SECURE


def affecting(*, live: bool, persistent: bool) -> int:
    """The flags for the copies of a guest that a change concerns."""
    found = libvirt.VIR_DOMAIN_AFFECT_LIVE if live else 0
    found |= libvirt.VIR_DOMAIN_AFFECT_CONFIG if persistent else 0
    return int(found)
