"""The flags of libvirt calls."""

from __future__ import annotations

import libvirt

#: All that libvirt keeps beside a definition, and would refuse to undefine for.
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
#: The target exists already.  Writes go to both before the guest is told of their end, where
#: libvirt can do that (8.0); else a guest that dies just before it is switched may lose some.
COPY = (
    libvirt.VIR_DOMAIN_BLOCK_COPY_REUSE_EXT
    | libvirt.VIR_DOMAIN_BLOCK_COPY_TRANSIENT_JOB
    | getattr(libvirt, "VIR_DOMAIN_BLOCK_COPY_SYNCHRONOUS_WRITES", 0)
)
#: The file exists already, as Cinder made it; libvirt is to remember nothing of the snapshot.
SNAPSHOT = (
    libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_DISK_ONLY
    | libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_REUSE_EXT
    | libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_NO_METADATA
)
#: Names of files stay relative to each other: Cinder has them mounted elsewhere.
PULL = libvirt.VIR_DOMAIN_BLOCK_REBASE_RELATIVE
COMMIT = libvirt.VIR_DOMAIN_BLOCK_COMMIT_RELATIVE
COMMIT_FIRST = libvirt.VIR_DOMAIN_BLOCK_COMMIT_ACTIVE
PASSWORDS_TOO = libvirt.VIR_DOMAIN_XML_SECURE


def affecting(*, live: bool, persistent: bool) -> int:
    """Which copies of a guest a change is for."""
    found = libvirt.VIR_DOMAIN_AFFECT_LIVE if live else 0
    found |= libvirt.VIR_DOMAIN_AFFECT_CONFIG if persistent else 0
    return int(found)
