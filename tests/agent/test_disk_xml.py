"""The disk's XML as Nova writes it, and reading domains that others wrote."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from host_agent.libvirt import disk_xml, guests
from host_agent.libvirt.disk_xml import DomainXml
from host_agent.shared.contract.ports import Disk
from host_agent.simulated import host_state

VOLUME = "0f9d3f0e-1111-2222-3333-444455556666"


def disk(**over: Any) -> Disk:
    values: dict[str, Any] = {
        "serial": VOLUME,
        "source": {"type": "block", "path": "/dev/sdx"},
        "device_name": "vdb",
        "bus": "virtio",
    }
    return Disk(**{**values, **over})


def built(**over: Any) -> ET.Element:
    return ET.fromstring(disk_xml.build(disk(**over)))


def test_block_disk_has_novas_settings() -> None:
    element = built(discard=True)
    assert element.attrib == {"type": "block", "device": "disk"}
    driver = element.find("driver")
    assert driver is not None
    assert driver.attrib == {
        "name": "qemu",
        "type": "raw",
        "cache": "none",
        "io": "native",
        "discard": "unmap",
    }
    assert element.find("source").attrib == {"dev": "/dev/sdx"}  # type: ignore[union-attr]
    assert element.find("target").attrib == {"dev": "vdb", "bus": "virtio"}  # type: ignore[union-attr]
    assert element.findtext("serial") == VOLUME
    assert element.find("alias").get("name") == f"ua-{VOLUME}"  # type: ignore[union-attr]
    assert element.find("shareable") is None
    assert element.find("address") is None


def test_shareable_only_when_asked() -> None:
    assert built(shareable=True).find("shareable") is not None


@pytest.mark.parametrize(
    ("system", "devices", "index", "may"),
    [
        ("", "", 0, True),
        ("<boot dev='hd'/>", "", 0, False),
        ("<kernel>/vmlinuz</kernel>", "", 0, False),
        ("", "<interface><boot order='1'/></interface>", 0, False),
        ("", "<interface><boot order='1'/></interface>", 1, True),
        ("", "", -1, False),
        ("", "", None, False),
    ],
)
def test_a_disk_gets_a_boot_order_only_where_libvirt_takes_one(
    system: str, devices: str, index: int | None, may: bool
) -> None:
    """Each number once, and none beside `<os><boot>`: else it refuses the whole disk."""
    xml = f"<domain><os>{system}</os><devices>{devices}</devices></domain>"
    assert guests._may_order(disk(boot_index=index), DomainXml(ET.fromstring(xml))) is may


LOCKED = {"encryption": {"format": "luks", "secret_uuid": "s-2"}}


def test_encrypted_disk_names_what_unlocks_it_within_its_source() -> None:
    """There a copy's target has it too, and a disk of an RBD image both its secrets."""
    source = {"type": "block", "path": "/dev/sdx", **LOCKED}
    found = built(source=source).find("source/encryption")
    assert found is not None
    assert found.attrib == {"format": "luks"}
    assert found.find("secret").attrib == {"type": "passphrase", "uuid": "s-2"}  # type: ignore[union-attr]
    assert disk_xml.secret_of(disk_xml.build(disk(source=source))) == "s-2"
    assert disk_xml.secret_of(disk_xml.build(disk())) is None


RBD = {
    "type": "network",
    "protocol": "rbd",
    "name": "volumes/image",
    "hosts": [["192.0.2.1", "6789"]],
    "auth": {"user": "cinder", "secret_uuid": "s-1"},
}
FILE = {"type": "file", "path": "/var/lib/nova/mnt/0/volume-1"}
_SECRET = "<encryption format='luks'><secret type='passphrase' uuid='s-2'/></encryption>"
_CEPH = "<auth username='cinder'><secret type='ceph' uuid='s-1'/></auth>"
#: A disk's source and secrets as Nova 34 writes them, and ours of the same.
NOVAS: dict[str, tuple[str, dict[str, Any]]] = {
    "block": (f"<source dev='/dev/sdx'/>{_SECRET}", {"type": "block", "path": "/dev/sdx"}),
    "file": (f"<source file='{FILE['path']}'/>{_SECRET}", FILE),
    "rbd": (
        "<source protocol='rbd' name='volumes/image'><host name='192.0.2.1' port='6789'/></source>"
        + _CEPH
        + _SECRET,
        RBD,
    ),
}


@pytest.mark.parametrize("name", NOVAS)
def test_novas_place_for_secrets_is_understood_and_left_when_the_source_changes(name: str) -> None:
    """Beside the source: libvirt takes each in one place alone."""
    parts, plain = NOVAS[name]
    source = {**plain, **LOCKED}
    kind, novas = source["type"], ET.fromstring(f"<disk device='disk'>{parts}</disk>")
    novas.set("type", kind)
    assert disk_xml.place_of(ET.tostring(novas, encoding="unicode")) == disk_xml.place(source)
    disk_xml.set_source(novas, source)
    [own] = novas
    assert (own.tag, disk_xml.place_of(ET.tostring(novas, encoding="unicode"))) == (
        "source",
        disk_xml.place(source),
    )


def test_same_data_with_and_without_its_key_is_not_the_same_place() -> None:
    plain = {"type": "file", "path": "/v"}
    assert disk_xml.place(plain) != disk_xml.place({**plain, **LOCKED})


def test_network_disk_names_the_secret_and_does_not_hold_it() -> None:
    source = {
        "type": "network",
        "protocol": "rbd",
        "name": "pool/image",
        "hosts": [["192.0.2.1", "6789"], ["2001:db8::1", "6789"]],
        "auth": {"user": "cinder", "secret_uuid": "s-1"},
    }
    element = built(source=source)
    assert element.get("type") == "network"
    assert [host.get("name") for host in element.iterfind("source/host")] == [
        "192.0.2.1",
        "2001:db8::1",
    ]
    assert element.find("source/auth").get("username") == "cinder"  # type: ignore[union-attr]
    assert element.find("source/auth/secret").attrib == {"type": "ceph", "uuid": "s-1"}  # type: ignore[union-attr]
    assert element.find("driver").get("io") is None  # type: ignore[union-attr]


def test_file_disk_has_the_format_of_its_data() -> None:
    element = built(source={"type": "file", "path": "/mnt/volume-1"}, format="qcow2")
    assert element.find("source").attrib == {"file": "/mnt/volume-1"}  # type: ignore[union-attr]
    assert element.find("driver").get("type") == "qcow2"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "unit"), [("sda", "0"), ("sdb", "1"), ("sdz", "25"), ("sdaa", "26"), ("hdb", "1")]
)
def test_scsi_disk_sits_on_the_first_controller_by_its_name(name: str, unit: str) -> None:
    address = built(device_name=name, bus="scsi").find("address")
    assert address is not None
    assert (address.get("controller"), address.get("unit")) == ("0", unit)


def test_text_that_is_no_xml_cannot_break_out() -> None:
    path = "/dev/x'/><evil attr=\"<"
    element = built(source={"type": "block", "path": path})
    assert element.find("source").get("dev") == path  # type: ignore[union-attr]
    assert element.find("evil") is None


def test_lp2074219_odd_devices_without_alias_serial_or_target_are_not_in_the_way() -> None:
    domain = f"""<domain><devices>
      <disk type='file' device='cdrom'><target dev='hdc'/></disk>
      <disk type='file'><serial>no target</serial></disk>
      <disk><target bus='virtio'/></disk>
      <hostdev mode='subsystem'/><filesystem/>
      <disk type='block'><target dev='vdb' bus='virtio'/><serial> {VOLUME} </serial></disk>
    </devices></domain>"""
    read = disk_xml.parse(domain)
    assert read.targets() == ("hdc", "vdb")
    assert read.volumes() == (VOLUME,)
    found = read.disk_of(VOLUME)
    assert found is not None
    assert (found.target, found.alias) == ("vdb", None)


def test_a_serial_that_is_an_id_is_read_in_its_one_form() -> None:
    """Somebody else may have put the disk there; what its agent sends has no other."""
    disk = f"<disk><target dev='vdc'/><serial>{VOLUME.upper()}</serial></disk>"
    read = disk_xml.parse(f"<domain><devices>{disk}</devices></domain>")
    assert read.volumes() == (VOLUME,)
    assert read.disk_of(VOLUME) is not None


def test_disk_is_known_by_its_alias_where_the_serial_is_missing() -> None:
    domain = f"<domain><devices><disk><target dev='vdc'/><alias name='ua-{VOLUME}'/></disk>"
    found = disk_xml.parse(domain + "</devices></domain>").disk_of(VOLUME)
    assert found is not None
    assert found.target == "vdc"


def test_domain_without_devices_or_owner_is_read() -> None:
    read = disk_xml.parse("<domain><name>x</name></domain>")
    assert (read.disks, read.project_id, read.has_virtio_scsi) == ((), None, False)


@pytest.mark.parametrize("id_", ["", "my project", "p" * 65, "p\n", "\u0440"])
def test_an_owner_that_no_registration_can_tell_is_none(id_: str) -> None:
    """One guest's odd metadata would keep its host away: the whole inventory is refused."""
    nova = f"{{{disk_xml.NOVA_NS}}}"
    root = ET.Element("domain")
    instance = ET.SubElement(ET.SubElement(root, "metadata"), f"{nova}instance")
    owner = ET.SubElement(instance, f"{nova}owner")
    for kind, uuid in (("project", id_), ("user", "u-1")):
        ET.SubElement(owner, f"{nova}{kind}", uuid=uuid)
    domain = disk_xml.parse(ET.tostring(root, encoding="unicode"))
    assert (domain.project_id, domain.user_id) == (None, "u-1")


def test_disk_added_and_removed_again_leaves_the_domain() -> None:
    domain = "<domain><devices><disk><target dev='vda' /></disk></devices></domain>"
    with_it = host_state.with_disk(domain, disk_xml.build(disk()))
    assert disk_xml.parse(with_it).targets() == ("vda", "vdb")
    assert disk_xml.parse(host_state.without_disk(with_it, "vdb")).targets() == ("vda",)
