"""libvirt's secrets: what becomes of one that Nova has defined for the volume.

The double does what libvirt 9 did; tests/contracts/test_guest_secrets.py is the same on a real one.
"""
# ruff: noqa: N802
# (The names are libvirt's.)

from __future__ import annotations

import uuid
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("libvirt")

import libvirt

from host_agent.libvirt import secrets

VOLUME, NOVAS = str(uuid.uuid4()), str(uuid.uuid4())
USAGE = "<usage type='volume'><volume>{}</volume></usage>"


@dataclass
class Kept:
    """A secret; `files`: its definition's on the host's disk, which libvirt leaves there if the
    secret is ephemeral when it is removed.
    """

    of: Connection
    xml: str
    value: bytes = b""

    def UUIDString(self) -> str:
        return ET.fromstring(self.xml).findtext("uuid") or NOVAS

    def usageID(self) -> str:
        return ET.fromstring(self.xml).findtext("usage/volume") or ""

    def usageType(self) -> int:
        return int(libvirt.VIR_SECRET_USAGE_TYPE_VOLUME)

    def XMLDesc(self) -> str:
        return self.xml

    def setValue(self, value: bytes) -> None:
        self.value = value

    def undefine(self) -> None:
        self.of.secrets.remove(self)
        if 'ephemeral="yes"' not in self.xml:
            self.of.files.discard(self.UUIDString())


@dataclass
class Connection:
    """libvirt's, as far as secrets need it."""

    secrets: list[Kept] = field(default_factory=list)
    files: set[str] = field(default_factory=set)

    def secretDefineXML(self, xml: str) -> Kept:
        made = Kept(self, xml)
        if 'ephemeral="yes"' not in xml:
            self.files.add(made.UUIDString())
        for each in self.secrets:
            if each.usageID() == made.usageID():
                assert each.UUIDString() == made.UUIDString(), "one for each usage"
                self.secrets.remove(each)
        self.secrets.append(made)
        return made

    def secretLookupByUsage(self, _kind: int, usage: str) -> Kept:
        found = [each for each in self.secrets if each.usageID() == usage]
        if found:
            return found[0]
        error = libvirt.libvirtError("none")
        error.err = (libvirt.VIR_ERR_NO_SECRET, *[None] * 8)
        raise error

    def listAllSecrets(self, how: int) -> list[Kept]:
        assert how == 5, "ephemeral and private"
        return [each for each in self.secrets if 'private="yes"' in each.xml]


@pytest.fixture
def connection() -> Any:
    return Connection()


@pytest.fixture
def novas(connection: Any) -> Any:
    return connection.secretDefineXML(f"<secret>{USAGE.format(VOLUME)}</secret>")


def test_ours_has_the_volumes_id(connection: Any) -> None:
    for _ in range(2):
        assert secrets.keep(connection, VOLUME, "key") == VOLUME
    [kept] = connection.secrets
    assert (kept.value, connection.files, secrets.ours(connection)) == (b"key", set(), [VOLUME])
    secrets.drop(connection, VOLUME)
    secrets.drop(connection, VOLUME)
    assert connection.secrets == []


def test_novas_is_replaced_under_the_uuid_that_its_guest_names(connection: Any, novas: Any) -> None:
    assert (secrets.ours(connection), connection.files) == ([], {NOVAS})
    for _ in range(2):
        assert secrets.keep(connection, VOLUME, "key") == novas.UUIDString()
    [kept] = connection.secrets
    assert (kept.value, connection.files, secrets.ours(connection)) == (b"key", set(), [VOLUME])
    secrets.drop(connection, VOLUME)
    assert connection.secrets == []


def test_novas_goes_with_its_volume_though_it_was_never_ours(connection: Any, novas: Any) -> None:
    another = connection.secretDefineXML(
        f"<secret><uuid>{uuid.uuid4()}</uuid>{USAGE.format(uuid.uuid4())}</secret>"
    )
    assert novas in connection.secrets
    secrets.drop(connection, VOLUME)
    assert (connection.secrets, connection.files) == ([another], {another.UUIDString()})
