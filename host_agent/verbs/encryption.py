"""Encrypted volumes: what decrypts them, and the source of their key.

Theory of operation.  QEMU decrypts LUKS itself, so nothing is set up on the host: no
dm-crypt, no device of clear text.  Before the volume is connected Cinder tells whose key
it is, the key manager gives the key, and the hypervisor is handed it as a secret that a
guest's disk names by uuid (Guests.keep_secret).  It is handed over again each time a disk
needs it, for the hypervisor keeps it in memory only.  It is dropped with the connection:
after the guest has let go of the disk, and not while another guest of the host has the
volume.  For that no key is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from host_agent.shared.contract.ports import ConnectionInfo, Encryption
from host_agent.shared.platform import masking
from host_agent.verbs.context import RunContext, final

#: What QEMU calls "luks", by all names that Cinder has had for it.  It knows neither LUKS 2
#: nor the headerless "plain".
LUKS = frozenset(
    {
        "luks",
        "LuksEncryptor",
        "nova.volume.encryptors.luks.LuksEncryptor",
        "os_brick.encryptors.luks.LuksEncryptor",
    }
)


@dataclass(frozen=True)
class UnlockedVolume:
    encryption: Encryption
    passphrase: str = field(repr=False)


def key_to(ctx: RunContext, volume_id: str, info: ConnectionInfo) -> UnlockedVolume | None:
    """What unlocks the volume; None if it is not encrypted.

    FINAL `encryption_not_supported`, or what the key manager says (ports.Keys).
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
