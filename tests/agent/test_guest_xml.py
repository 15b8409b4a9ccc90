"""What a definition may make another host do: nothing but to have the guest that it describes."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from contextlib import nullcontext

import pytest

from host_agent.libvirt.domain_xml import (
    CleanedDefinition,
    DomainXmlError,
    HostCapabilities,
    definition_of,
    domain_of,
)
from host_agent.shared.contract.definition import NOVA_NS, Machine, render
from host_agent.shared.contract.guest_xml import DROPPED_MAX, kept
from host_agent.shared.contract.messages import MIGRATION_URI, GuestOrder
from host_agent.shared.contract.ports import PortError
from host_agent.verbs import guest

SERVER = "11111111-1111-1111-1111-111111111111"
QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"
KERNELS = "/srv/kernels"


def domain(parts: str = "", devices: str = "", os: str = "") -> str:
    return (
        f"<domain type='kvm' xmlns:q='{QEMU}'><name>n</name><uuid>{SERVER}</uuid>"
        f"<memory unit='MiB'>64</memory><vcpu>1</vcpu>"
        f"<os><type arch='x86_64' machine='q35'>hvm</type>{os}</os>{parts}"
        f"<devices>{devices}</devices></domain>"
    )


def made(definition: str, own: str | None = None) -> CleanedDefinition:
    return domain_of(definition, SERVER, [], HostCapabilities("qemu", KERNELS), own)


#: What would be done on the host that has the guest next, by what is dropped of it.
HOSTILE = {
    "emulator": (domain(devices="<emulator>/tmp/evil</emulator>"), "devices/emulator"),
    "commandline": (
        domain("<q:commandline><q:arg value='-device'/></q:commandline>"),
        "commandline",
    ),
    "commandline-by-default-namespace": (
        domain(f"<commandline xmlns='{QEMU}'><arg value='-x'/></commandline>"),
        "commandline",
    ),
    "seclabel": (domain("<seclabel type='none'/>"), "seclabel"),
    "seclabel-of-device": (
        domain(devices="<serial type='pty'><seclabel relabel='no'/></serial>"),
        "devices/serial/seclabel",
    ),
    "bootloader": (domain("<bootloader>/tmp/evil</bootloader>"), "bootloader"),
    "pci-device": (
        domain(devices="<hostdev mode='subsystem' type='pci'><source/></hostdev>"),
        "devices/hostdev",
    ),
    "interface-of-pci-device": (domain(devices="<interface type='hostdev'/>"), "devices/interface"),
    "file-disk": (
        domain(
            devices="<disk type='file' device='disk'><source file='/etc/shadow'/>"
            "<target dev='vda'/></disk>"
        ),
        "devices/disk",
    ),
    "block-disk": (
        domain(devices="<disk type='block' device='disk'><source dev='/dev/sda'/></disk>"),
        "devices/disk",
    ),
    "medium-of-drive": (
        domain(
            devices="<disk type='file' device='cdrom'><source file='/etc/shadow'/>"
            "<target dev='sda'/></disk>"
        ),
        "devices/disk/source",
    ),
    "lun": (domain(devices="<disk type='block' device='lun'/>"), "devices/disk"),
    "file-system": (
        domain(devices="<filesystem type='mount'><source dir='/'/></filesystem>"),
        "devices/filesystem",
    ),
    "file-for-serial": (
        domain(devices="<serial type='file'><source path='/etc/cron.d/x'/></serial>"),
        "devices/serial",
    ),
    "log-of-serial": (
        domain(devices="<serial type='pty'><log file='/etc/cron.d/x'/></serial>"),
        "devices/serial/log",
    ),
    "source-of-pty": (
        domain(devices="<console type='pty'><source path='/dev/pts/1'/></console>"),
        "devices/console/source",
    ),
    "socket-of-channel": (
        domain(
            devices="<channel type='unix'><source mode='bind' path='/run/x.sock'/>"
            "<target type='virtio' name='org.qemu.guest_agent.0'/></channel>"
        ),
        "devices/channel/source@path",
    ),
    "tcp-serial": (
        domain(devices="<serial type='tcp'><source host='0.0.0.0' service='1'/></serial>"),
        "devices/serial",
    ),
    "script-of-interface": (
        domain(devices="<interface type='ethernet'><script path='/tmp/evil'/></interface>"),
        "devices/interface/script",
    ),
    "macvtap": (
        domain(devices="<interface type='direct'><source dev='eth0'/></interface>"),
        "devices/interface",
    ),
    "vhost-user": (
        domain(devices="<interface type='vhostuser'><source path='/run/x'/></interface>"),
        "devices/interface",
    ),
    "backend-of-interface": (
        domain(
            devices="<interface type='bridge'><source bridge='b'/>"
            "<backend tap='/dev/sda'/></interface>"
        ),
        "devices/interface/backend",
    ),
    "tap-of-the-host": (
        domain(devices="<interface type='ethernet'><target dev='eth0' managed='no'/></interface>"),
        "devices/interface/target@dev",
    ),
    "entropy-from-anywhere": (
        domain(devices="<rng model='virtio'><backend model='random'>/dev/sda</backend></rng>"),
        "devices/rng",
    ),
    "tpm-of-the-host": (
        domain(devices="<tpm><backend type='passthrough'><device path='/dev/x'/></backend></tpm>"),
        "devices/tpm",
    ),
    "input-of-the-host": (
        domain(devices="<input type='evdev'><source dev='/dev/input/event1'/></input>"),
        "devices/input",
    ),
    "gpu-of-the-host": (
        domain(
            devices="<video><model type='virtio'><acceleration rendernode='/dev/dri/x'/></model>"
            "</video>"
        ),
        "devices/video/model/acceleration@rendernode",
    ),
    "spice-gl": (
        domain(devices="<graphics type='spice'><gl rendernode='/dev/dri/x'/></graphics>"),
        "devices/graphics/gl",
    ),
    "socket-of-display": (
        domain(devices="<graphics type='vnc' socket='/run/x.sock'/>"),
        "devices/graphics@socket",
    ),
    "core-dump": (domain("<on_crash>coredump-restart</on_crash>"), "on_crash"),
    "dump-of-watchdog": (
        domain(devices="<watchdog model='i6300esb' action='dump'/>"),
        "devices/watchdog@action",
    ),
    "firmware": (domain(os="<loader>/etc/shadow</loader>"), "os/loader"),
    "firmware-by-dots": (
        domain(os="<loader>/usr/share/OVMF/../../../etc/shadow</loader>"),
        "os/loader",
    ),
    "firmware-variables": (domain(os="<nvram>/etc/shadow</nvram>"), "os/nvram"),
    "template-of-variables": (
        domain(os="<nvram template='/etc/shadow'/>"),
        "os/nvram@template",
    ),
    "kernel": (domain(os="<kernel>/etc/shadow</kernel>"), "os/kernel"),
    "initrd-by-dots": (domain(os=f"<initrd>{KERNELS}/../x</initrd>"), "os/initrd"),
    "device-tree": (domain(os="<dtb>/etc/shadow</dtb>"), "os/dtb"),
    "smbios-of-the-host": (domain(os="<smbios mode='host'/>"), "os/smbios"),
    "acpi-table": (domain(os="<acpi><table type='slic'>/etc/shadow</table></acpi>"), "os/acpi"),
    "firmware-configuration": (
        domain("<sysinfo type='fwcfg'><entry name='opt/x' file='/etc/shadow'/></sysinfo>"),
        "sysinfo",
    ),
    "file-of-entry": (
        domain(
            "<sysinfo type='smbios'><system><entry name='family' file='/etc/shadow'>x</entry>"
            "</system></sysinfo>"
        ),
        "sysinfo/system/entry@file",
    ),
    "cgroup": (domain("<resource><partition>/</partition></resource>"), "resource"),
    "locked-memory": (
        domain("<memoryBacking><locked/></memoryBacking>"),
        "memoryBacking/locked",
    ),
    "pins": (domain("<cputune><vcpupin vcpu='0' cpuset='0'/></cputune>"), "cputune/vcpupin"),
    "shared-memory": (domain(devices="<shmem name='x'/>"), "devices/shmem"),
    "path-in-a-free-subtree": (
        domain("<features><pmu state='on' file='/etc/shadow'/></features>"),
        "features/pmu@file",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_another_host_would_do_for_a_definition_is_dropped_and_told(name: str) -> None:
    definition, part = HOSTILE[name]
    result = made(definition)
    assert part in result.dropped
    for word in ("/etc", "/tmp", "/dev/s", "/dev/pts", "/run", "evil", "-device", "passthrough"):
        assert word not in result.xml
    assert made(result.xml).dropped == (), "what is left is allowed"


#: As Nova 2024 has its libvirt driver write them, and as libvirt gives them back.
NOVA = f"""<domain type='kvm'><name>instance-0000002a</name><uuid>{SERVER}</uuid>
  <metadata><nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
    <nova:package version="29.2.0"/><nova:name>a/b</nova:name>
    <nova:creationTime>2026-01-02 03:04:05</nova:creationTime>
    <nova:flavor name="m1.tiny"><nova:memory>512</nova:memory><nova:vcpus>2</nova:vcpus></nova:flavor>
    <nova:owner><nova:user uuid="u-1">adm</nova:user><nova:project uuid="p-1">p</nova:project></nova:owner>
    <nova:ports><nova:port uuid="x"><nova:ip type="fixed" address="10.0.0.3" ipVersion="4"/></nova:port></nova:ports>
  </nova:instance></metadata>
  <memory unit='KiB'>524288</memory><currentMemory unit='KiB'>524288</currentMemory>
  <vcpu placement='static'>2</vcpu><cputune><shares>2048</shares></cputune>
  <sysinfo type='smbios'><system><entry name='manufacturer'>OpenStack Foundation</entry>
    <entry name='uuid'>{SERVER}</entry></system></sysinfo>
  <os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type>
    <loader readonly='yes' secure='no' type='pflash'>/usr/share/OVMF/OVMF_CODE_4M.fd</loader>
    <boot dev='hd'/><smbios mode='sysinfo'/></os>
  <features><acpi/><apic/><hyperv mode='custom'><relaxed state='on'/><spinlocks state='on' retries='8191'/>
    </hyperv><kvm><hidden state='on'/></kvm><vmport state='off'/><vmcoreinfo state='on'/></features>
  <cpu mode='custom' match='exact' check='partial'><model fallback='allow'>Cascadelake-Server</model>
    <topology sockets='2' dies='1' cores='1' threads='1'/><feature policy='require' name='vmx'/>
    <numa><cell id='0' cpus='0-1' memory='524288' unit='KiB' memAccess='shared'/></numa></cpu>
  <clock offset='utc'><timer name='pit' tickpolicy='delay'/><timer name='rtc' tickpolicy='catchup'/>
    <timer name='hpet' present='no'/></clock>
  <on_poweroff>destroy</on_poweroff><on_reboot>restart</on_reboot><on_crash>destroy</on_crash>
  <devices>
    <controller type='usb' index='0' model='qemu-xhci'/>
    <controller type='pci' index='0' model='pcie-root'/>
    <controller type='pci' index='1' model='pcie-root-port'><model name='pcie-root-port'/>
      <target chassis='1' port='0x10'/></controller>
    <controller type='virtio-serial' index='0'/>
    <interface type='bridge'><mac address='fa:16:3e:01:02:03'/><source bridge='br-int'/>
      <virtualport type='openvswitch'><parameters interfaceid='{SERVER}'/></virtualport>
      <target dev='tap01234567-89'/><model type='virtio'/><driver name='vhost' queues='2'/>
      <mtu size='1450'/></interface>
    <serial type='pty'><target type='isa-serial' port='0'><model name='isa-serial'/></target></serial>
    <console type='pty'><target type='serial' port='0'/></console>
    <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
    <input type='tablet' bus='usb'/><input type='mouse' bus='ps2'/><input type='keyboard' bus='ps2'/>
    <graphics type='vnc' port='-1' autoport='yes' listen='0.0.0.0'>
      <listen type='address' address='0.0.0.0'/></graphics>
    <audio id='1' type='none'/>
    <video><model type='virtio' heads='1' primary='yes'/></video>
    <watchdog model='i6300esb' action='reset'/>
    <memballoon model='virtio'><stats period='10'/></memballoon>
    <rng model='virtio'><rate bytes='1024' period='1000'/><backend model='random'>/dev/urandom</backend>
    </rng>
    <tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>
  </devices></domain>"""  # noqa: E501

OURS = render(SERVER, "vm/1", Machine(firmware="uefi"), "p-1", "u-1")
KERNEL = Machine(kernel=f"{KERNELS}/vmlinux", initrd=f"{KERNELS}/initrd", cmdline="root=/dev/vda")
DIRECT = render(SERVER, "vm-1", KERNEL, None, None)
WHOLE = {"nova": NOVA, "ours": OURS, "direct": DIRECT}


@pytest.mark.parametrize("name", WHOLE)
def test_guest_of_nova_and_ours_lose_nothing(name: str) -> None:
    definition = definition_of(WHOLE[name])
    assert kept(definition, KERNELS).dropped == ()
    assert kept(definition).definition == definition, "the same text"


@pytest.mark.parametrize("name", [*WHOLE, *HOSTILE])
def test_what_is_made_of_a_definition_is_a_domain_to_libvirt(name: str) -> None:
    """Whatever was dropped; by libvirt's own parser and schema, in its test driver."""
    libvirt = pytest.importorskip("libvirt")
    definition = WHOLE.get(name) or HOSTILE[name][0]
    root = ET.fromstring(domain_of(definition, SERVER, [], HostCapabilities("test", KERNELS)).xml)
    connection = libvirt.open("test:///default")
    try:
        defined = connection.defineXMLFlags(
            ET.tostring(root, encoding="unicode"), libvirt.VIR_DOMAIN_DEFINE_VALIDATE
        )
        assert defined.UUIDString() == SERVER
        defined.undefine()
    finally:
        connection.close()


def test_start_on_the_guests_own_host_keeps_what_is_that_hosts_own() -> None:
    own = domain(devices="<emulator>/usr/bin/own</emulator><hostdev mode='subsystem'/>")
    result = made(domain(devices="<hostdev mode='capabilities'/>"), own)
    assert ET.fromstring(result.xml).find("devices/hostdev[@mode='subsystem']") is not None
    assert "capabilities" not in result.xml, "nothing of it is another's"
    assert result.dropped == ()


def test_own_guest_is_defined_anew_in_the_size_that_was_asked_for() -> None:
    asked = domain().replace(">64<", ">128<").replace("<vcpu>1<", "<vcpu>4<")
    root = ET.fromstring(made(asked, domain(devices="<hostdev/>")).xml)
    assert (root.findtext("memory"), root.findtext("vcpu")) == ("128", "4")


def test_document_type_is_refused_before_it_is_read() -> None:
    bomb = "<!DOCTYPE domain [<!ENTITY a 'aaaa'>]><domain><name>&a;</name></domain>"
    with pytest.raises(DomainXmlError):
        made(bomb)


def test_definition_that_nests_without_end_is_refused_in_words() -> None:
    deep = f'<n:instance xmlns:n="{NOVA_NS}">{"<a>" * 2000}{"</a>" * 2000}</n:instance>'
    with pytest.raises(DomainXmlError, match="elements deep"):
        made(f"<domain><metadata>{deep}</metadata></domain>")


def test_names_that_are_told_are_few_short_and_plain() -> None:
    strange = "".join(f"<x{number}\u0627{'y' * 200}/>" for number in range(100))
    told = kept(domain(strange)).dropped
    assert len(told) == DROPPED_MAX
    assert all(len(name) <= 100 and name.isascii() for name in told)


@pytest.mark.parametrize(
    ("uri", "taken"),
    [
        ("qemu+tls://compute-2/system", True),
        ("qemu+ext:///system?command=/tmp/evil", False),
        ("qemu+ssh://-oProxyCommand=evil/system", False),
    ],
)
def test_agent_goes_to_no_destination_that_names_a_program(uri: str, *, taken: bool) -> None:
    """A ledger that is older than the rule may send one that a host has registered."""
    assert (MIGRATION_URI.match(uri) is not None) is taken
    order = GuestOrder(server_id=SERVER, destination={"host": "h", "uri": uri})
    with nullcontext() if taken else pytest.raises(PortError, match="Guests are not moved to"):
        guest._destination(order)
