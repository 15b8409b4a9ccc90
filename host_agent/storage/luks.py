"""The header of a LUKS volume: written by a private call of os-brick, and read.

QEMU decrypts (decision 0021), so a new encrypted volume must be formatted, but not opened.
os-brick's public `LuksEncryptor.attach_volume` does more: it opens the device, formats it if that
fails, opens it again, and replaces the volume's path by a link to the opened device.  So this
module calls its private part, `_format_volume`; tests/contracts/test_brick.py checks the signature.

Delete this file when os-brick has a public way to format without opening.
"""

from __future__ import annotations

import re
import warnings

from host_agent.shared.contract.ports import Encryption

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # oslo.privsep drags eventlet in, which complains at import
    import os_brick.privileged.rootwrap
    from os_brick.encryptors import luks

SECTOR = 512
_OFFSET = re.compile(r"^Payload offset:\s*([0-9]+)$", re.MULTILINE)


def format_device(root_helper: str, path: str, passphrase: str, encryption: Encryption) -> None:
    """Format the device, whatever is on it, as LUKS 1, which every QEMU knows.

    Raises what os-brick raises.
    """
    bits = encryption.key_size
    # A text, because os-brick puts it into a command, and fails to report an error with a number.
    how = {"cipher": encryption.cipher, "key_size": None if bits is None else str(bits)}
    encryptor = luks.LuksEncryptor(root_helper, {"data": {"device_path": path}}, None)
    encryptor._format_volume(passphrase, **how)  # noqa: SLF001 - see above


def payload_offset(root_helper: str, path: str) -> int:
    """The offset of the data in a LUKS 1 device, in bytes.

    Raises ProcessExecutionError, and ValueError for a header that is not LUKS 1.
    """
    command = ("cryptsetup", "luksDump", path)
    output, _ = os_brick.privileged.rootwrap.execute(
        *command, run_as_root=True, root_helper=root_helper
    )
    found = _OFFSET.search(output)
    if found is None:
        raise ValueError(f"{path} has no head of LUKS 1")
    return int(found[1]) * SECTOR
