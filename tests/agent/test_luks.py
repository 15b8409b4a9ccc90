"""A device is made a LUKS one once, by the one private call of os-brick that we use."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest

from host_agent.shared.ports import Encryption
from host_agent.storage.luks import format_once

luks: Any = sys.modules["os_brick.encryptors.luks"]  # os-brick's, imported without its warnings
AES = Encryption(provider="luks", key_id="k", cipher="aes-xts-plain64", key_size=256)


@pytest.mark.parametrize("already", [True, False])
def test_a_device_that_is_luks_is_not_formatted_again(
    already: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formatting it again would lose its data."""
    run: list[Any] = []
    monkeypatch.setattr(luks, "is_luks", lambda helper, path: already)
    monkeypatch.setattr(luks.LuksEncryptor, "_execute", lambda _, *line, **how: run.append(line))
    format_once("sudo", "/dev/no-such-device", "passphrase", AES)
    formatting = [line for line in run if "luksFormat" in line]
    assert len(formatting) == (not already)
    for line in formatting:
        assert line[-1] == "/dev/no-such-device"
        assert {"luks1", "aes-xts-plain64", 256} <= set(line)


def test_os_brick_still_has_the_call() -> None:
    form = inspect.signature(luks.LuksEncryptor._format_volume)
    form.bind(None, "passphrase", cipher="aes-xts-plain64", key_size=256)
