"""Encrypted volumes: how they are decrypted, and where their keys come from.

Theory of operation.  QEMU decrypts LUKS itself, so the host has no dm-crypt and no device with
clear text.  Before the volume is connected, Cinder names the key, the key manager gives it, and the
hypervisor gets it as a secret that the guest's disk names by uuid (Guests.keep_secret).  It is set
again each time a disk needs it, because the hypervisor keeps it only in memory.  It is dropped with
the connection: after the guest has released the disk, and not while another guest of the host has
the volume.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from host_agent.shared.contract.ports import LUKS, ConnectionInfo, Encryption
from host_agent.shared.platform import masking
from host_agent.verbs.context import RunContext, final


@dataclass(frozen=True)
class UnlockedVolume:
    encryption: Encryption
    passphrase: str = field(repr=False)


def key_to(ctx: RunContext, volume_id: str, info: ConnectionInfo) -> UnlockedVolume | None:
    """The passphrase of the volume; None if it is not encrypted.

    Raises FINAL `encryption_not_supported`, and the errors of ports.Keys.
    """
    if not is_encrypted([info]):
        return None
    encryption = ctx.cinder.encryption(volume_id)
    if encryption.provider not in LUKS or not encryption.key_id:
        raise final(
            "encryption_not_supported",
            f"Volume {volume_id} is encrypted with provider {encryption.provider!r}; hosts can "
            "decrypt 'luks' with a key of the key manager: retype the volume.",
        )
    passphrase = ctx.keys.passphrase(encryption.key_id)
    masking.learn({"passphrase": passphrase})
    return UnlockedVolume(encryption, passphrase)


def is_encrypted(infos: Iterable[ConnectionInfo]) -> bool:
    return any(info.get("encrypted") for info in infos)
