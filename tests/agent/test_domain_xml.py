"""Definitions of guests: what is kept of a domain's XML, and what is made of it again."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest

from host_agent.libvirt import disk_xml
from host_agent.libvirt.domain_xml import (
    DomainXmlError,
    HostCapabilities,
    definition_of,
    domain_of,
    for_destination,
    is_shared,
)
from host_agent.shared.contract.ports import Disk

SERVER = "11111111-1111-1111-1111-111111111111"
VOLUME = "0f9d3f0e-1111-2222-3333-444455556666"
SOURCE = {"type": "block", "path": "/dev/sdx"}
DISK = Disk(serial=VOLUME, source=SOURCE, device_name="vdb", bus="virtio")

DOMAIN = f"""
<domain type='kvm' id='7' xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>instance-1</name>
  <uuid>{SERVER}</uuid>
  <metadata>
    <nova:instance xmlns:nova="{disk_xml.NOVA_NS}">
      <nova:owner><nova:project uuid="p-1">p</nova:project></nova:owner>
    </nova:instance>
  </metadata>
  <memory unit='KiB'>163840</memory><vcpu placement='static'>1</vcpu>
  <os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type><boot dev='hd'/></os>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <disk type='block' device='disk'>
      <source dev='/dev/sdx'/><target dev='vdb' bus='virtio'/><serial>{VOLUME}</serial>
    </disk>
    <disk type='file' device='cdrom'>
      <source file='/config.iso'/><target dev='sda' bus='sata'/><readonly/>
      <address type='drive' unit='0'/>
    </disk>
    <controller type='pci' index='1' model='pcie-root-port'>
      <target chassis='1' port='0x8'/><alias name='pci.1'/><address type='pci' slot='0x01'/>
    </controller>
    <interface type='bridge'>
      <mac address='52:54:00:00:00:01'/><source bridge='br0'/><boot order='1'/>
    </interface>
    <serial type='pty' tty='/dev/pts/3'><source path='/dev/pts/3'/><target port='0'/>
      <log file='/var/lib/nova/instances/i/console.log' append='off'/></serial>
    <graphics type='vnc' port='-1' autoport='yes' listen='192.0.2.7'>
      <listen type='address' address='192.0.2.7'/>
    </graphics>
    <graphics type='spice' listen='0.0.0.0'><listen type='address' address='0.0.0.0'/></graphics>
    <hostdev mode='subsystem' type='pci'>
      <source><address domain='0x0000' bus='0x06'/></source><address type='pci'/>
    </hostdev>
  </devices>
  <seclabel type='dynamic' model='apparmor'/>
  <q:commandline><q:arg value='-x'/></q:commandline>
</domain>"""


def built(
    definition: str,
    disks: list[Disk],
    *,
    own: str | None = None,
    host: HostCapabilities | None = None,
) -> str:
    return domain_of(definition, SERVER, disks, host or HostCapabilities(), own).xml


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)


def test_definition_keeps_what_makes_the_guest() -> None:
    kept = parsed(definition_of(DOMAIN))
    assert kept.findtext("name") == "instance-1"
    assert kept.find("os/type[@machine='pc-q35-7.2']") is not None
    assert kept.find("devices/interface/mac") is not None
    assert kept.find("devices/controller/target[@chassis='1']") is not None
    assert kept.find("devices/hostdev/source/address") is not None
    assert kept.find("devices/disk[@device='cdrom']") is not None
    assert disk_xml.parse(definition_of(DOMAIN)).project_id == "p-1"
    assert "commandline" in definition_of(DOMAIN)


def test_definition_lacks_volumes_and_what_only_the_host_knows() -> None:
    kept = parsed(definition_of(DOMAIN))
    assert (kept.get("type"), kept.get("id")) == (None, None)
    for path in ("devices/emulator", "seclabel", "devices/*/alias", "devices/serial/source"):
        assert kept.find(path) is None, path
    assert kept.findall("devices/*/address") == []
    assert VOLUME not in definition_of(DOMAIN)
    assert "/dev/pts" not in definition_of(DOMAIN)
    assert "192.0.2.7" not in definition_of(DOMAIN)
    assert "0.0.0.0" in definition_of(DOMAIN)


def test_definition_of_a_definition_is_the_same_text() -> None:
    once = definition_of(DOMAIN)
    assert definition_of(once) == once
    assert definition_of(DOMAIN.replace("\n", "\n\n  ").replace(" type='kvm'", "")) == once


def test_volume_is_known_by_a_uuid_or_by_our_alias_and_others_stay() -> None:
    def disk(serial: str, alias: str = "") -> str:
        return (
            f"<disk type='file'><target dev='vdz'/><serial>{serial}</serial>"
            f"<alias name='{alias}'/></disk>"
        )

    def kept(disk: str) -> bool:
        return "vdz" in definition_of(f"<domain><devices>{disk}</devices></domain>")

    assert not kept(disk(VOLUME))
    assert not kept(disk("v-1", "ua-v-1"))
    assert kept(disk("WD-1234"))
    assert kept(disk("", "ua-"))


def test_domain_made_of_a_definition_has_type_and_disks() -> None:
    made = parsed(built(definition_of(DOMAIN), [DISK], own=DOMAIN, host=HostCapabilities("qemu")))
    assert made.get("type") == "qemu"
    assert [d.findtext("serial") for d in made.iterfind("devices/disk")] == [None, VOLUME]


def test_disks_named_for_booting_replace_other_ways_of_booting() -> None:
    root, data = replace(DISK, boot_index=0), replace(DISK, device_name="vdc", boot_index=-1)
    made = parsed(built(definition_of(DOMAIN), [root, data], own=DOMAIN))
    assert made.find("os/boot") is None
    assert [b.get("order") for b in made.iterfind("devices/*/boot")] == ["1"]
    assert made.find("devices/interface/boot") is None, "its number is the root disk's"


def test_nothing_changes_in_booting_where_no_disk_is_for_it_or_a_kernel_is_given() -> None:
    made = parsed(built(definition_of(DOMAIN), [DISK], own=DOMAIN))
    assert made.find("os/boot") is not None
    assert made.find("devices/interface/boot") is not None
    direct = DOMAIN.replace("<boot dev='hd'/>", "<kernel>/vmlinux</kernel>")
    made = parsed(
        built(direct, [replace(DISK, boot_index=0)], host=HostCapabilities(kernel_dir="/"))
    )
    assert made.find("devices/disk/boot") is None


def test_definition_of_few_words_gets_only_what_it_needs() -> None:
    made = parsed(built("<domain><name>n</name></domain>", [DISK]))
    assert [child.tag for child in made] == ["name", "uuid", "devices"]
    assert made.findtext("uuid") == SERVER


@pytest.mark.parametrize("text", ["", "<domain>", f"<domain><uuid>{VOLUME}</uuid></domain>"])
def test_definition_that_is_not_this_guests_is_refused(text: str) -> None:
    with pytest.raises(DomainXmlError):
        built(text, [])


def test_destination_sees_the_volume_elsewhere_and_nothing_else_changes() -> None:
    there = replace(DISK, source={"type": "file", "path": "/mnt/volume"})
    made = parsed(for_destination(DOMAIN, [there]))
    volume = made.find("devices/disk[1]")
    assert volume is not None
    assert volume.get("type") == "file"
    assert [s.attrib for s in volume.iterfind("source")] == [{"file": "/mnt/volume"}]
    assert made.find("devices/disk[2]/source[@file='/config.iso']") is not None
    assert made.find("devices/controller/address") is not None
    assert made.find("devices/graphics[@listen='192.0.2.7']") is None


def test_the_destination_has_no_directory_of_nova_for_the_guest() -> None:
    made = parsed(for_destination(DOMAIN, [DISK]))
    assert made.find("devices/serial/target") is not None
    assert made.find("devices/serial/log") is None


def test_volume_that_the_destination_does_not_have_is_named() -> None:
    with pytest.raises(DomainXmlError, match=f"{VOLUME} as vdb"):
        for_destination(DOMAIN, [])


@pytest.mark.parametrize("here", [True, False])
def test_volume_is_not_moved_to_where_it_is_decrypted_otherwise(here: bool) -> None:
    """Raw LUKS opened as plain data would be overwritten by the guest."""
    encryption = {"encryption": {"format": "luks", "secret_uuid": "s-1"}}
    plain, locked = DISK, replace(DISK, source={**DISK.source, **encryption})
    one, other = (locked, plain) if here else (plain, locked)
    domain = f"<domain><devices>{disk_xml.build(one)}</devices></domain>"
    with pytest.raises(DomainXmlError, match="encrypted on one side only"):
        for_destination(domain, [other])
    assert ("s-1" in for_destination(domain, [one])) is here


def test_guest_that_writes_only_uncached_volumes_is_the_same_on_any_host() -> None:
    def domain(disk: str) -> str:
        return f"<domain><devices>{disk}</devices></domain>"

    ours = disk_xml.build(DISK)
    rbd: dict[str, Any] = {
        "type": "network",
        "protocol": "rbd",
        "name": "p/i",
        "hosts": [],
        "auth": None,
    }
    assert is_shared(domain(ours))
    assert not is_shared(domain(ours.replace('"none"', '"writeback"')))
    assert is_shared(domain(disk_xml.build(replace(DISK, source=rbd, cache="writeback"))))
    assert not is_shared(domain("<disk type='file' device='disk'><target dev='vda'/></disk>"))
    assert is_shared(domain("<disk type='file' device='cdrom'><target dev='sda'/></disk>"))
