"""Nova 34 on a hypervisor, from its database and block devices down: it connects, attaches, starts.

Real are Nova's objects and their database (SQLite), its block devices, its client of Cinder, its
libvirt driver with os-brick, and the order of their calls in its compute manager.  There is no
manager and no RPC: a line of JSON on stdin is a call of a function here, [name, words...], and
another one its answer.
"""
# mypy: ignore-errors
# (Nova is not in the project's environment.)

from __future__ import annotations

import json
import os
import sqlite3
import sys
from pathlib import Path

import nova.conf
import nova.privsep
import os_brick
import os_vif
from keystoneauth1 import token_endpoint
from nova import config, context, objects
from nova.db.main import api, models
from nova.network.model import NetworkInfo
from nova.virt import block_device, fake
from nova.virt.driver import get_block_device_info
from nova.virt.libvirt.driver import LibvirtDriver
from nova.volume import cinder
from os_brick import privileged
from oslo_log import log

PROJECT = "1" * 32
CONF = nova.conf.CONF
NO_NETWORK = NetworkInfo()
#: So that QEMU lets go of a disk without asking the guest.
SCSI = {"image_hw_disk_bus": "scsi", "image_hw_scsi_model": "virtio-scsi"}
FLAVOR = {
    "id": 1, "name": "small", "flavorid": "1", "memory_mb": 64, "vcpus": 1, "root_gb": 0,
    "ephemeral_gb": 0, "swap": 0, "rxtx_factor": 1.0, "vcpu_weight": 0, "disabled": False,
    "is_public": True, "extra_specs": {},
}  # fmt: skip
LOADED = "flavor system_metadata metadata info_cache numa_topology pci_requests pci_devices"
LOADED += " resources trusted_certs"


def _begin() -> None:
    """As nova-compute begins; what needs privileges is done in this process, which is root's."""
    config.parse_args(["nova-compute", "--config-file", "/etc/nova/nova.conf"])
    log.setup(CONF, "nova")
    Path(CONF.instances_path).mkdir(parents=True, exist_ok=True)
    objects.register_all()
    os_brick.setup(CONF)
    os_vif.initialize()
    for each in (nova.privsep.sys_admin_pctxt, privileged.default):
        each.set_client_mode(False)
    privileged.brick_privsep_hide_output.set_client_mode(False)
    nova.conf.neutron.register_dynamic_opts(CONF)


_begin()
_URL = CONF.cinder.endpoint_template % {"project_id": PROJECT}
ADMIN = context.RequestContext(
    "nova",
    PROJECT,
    auth_token="-",  # else Nova asks Keystone for its own
    is_admin=True,
    user_auth_plugin=token_endpoint.Token(_URL, f"nova:{PROJECT}"),
)
models.BASE.metadata.create_all(api.get_engine(context=ADMIN))
VOLUMES = cinder.API()
DRIVER = LibvirtDriver(fake.FakeVirtAPI())
DRIVER.init_host(CONF.host)


def _server(server_id: str) -> objects.Instance:
    return objects.Instance.get_by_uuid(ADMIN, server_id, expected_attrs=LOADED.split())


def _mappings(server: objects.Instance) -> objects.BlockDeviceMappingList:
    return objects.BlockDeviceMappingList.get_by_instance_uuid(ADMIN, server.uuid)


def _devices(server: objects.Instance) -> dict:
    return get_block_device_info(server, _mappings(server))


def _reserve(server: objects.Instance, volume: str, name: str, boot: int | None) -> object:
    """As nova-api does, and then the block device of the mapping."""
    made = objects.BlockDeviceMapping(
        ADMIN,
        instance_uuid=server.uuid,
        volume_id=volume,
        attachment_id=VOLUMES.attachment_create(ADMIN, volume, server.uuid)["id"],
        device_name=f"/dev/{name}",
        source_type="volume",
        destination_type="volume",
        device_type="disk",
        disk_bus="scsi",
        boot_index=boot,
        delete_on_termination=False,
    )
    made.create()
    return block_device.convert_volume(made)


def _spawn(server: objects.Instance) -> None:
    mapped = [block_device.convert_volume(each) for each in _mappings(server)]
    block_device.attach_block_devices(mapped, ADMIN, server, VOLUMES, DRIVER)
    image, none = server.image_meta, []
    DRIVER.spawn(ADMIN, server, image, none, None, {}, NO_NETWORK, _devices(server))


def boot(server_id: str, name: str, volume: str) -> None:
    """A server whose root is that volume."""
    server = objects.Instance(
        ADMIN,
        uuid=server_id,
        display_name=name,
        host=CONF.host,
        node=CONF.host,
        compute_id=1,
        project_id=PROJECT,
        user_id="nova",
        flavor=objects.Flavor(ADMIN, **FLAVOR),
        memory_mb=FLAVOR["memory_mb"],
        vcpus=1,
        root_gb=0,
        ephemeral_gb=0,
        image_ref="",
        root_device_name="/dev/sda",
        vm_state="active",
        power_state=1,
        config_drive="",
        system_metadata=dict(SCSI),
        metadata={},
        info_cache=objects.InstanceInfoCache(instance_uuid=server_id, network_info=NO_NETWORK),
        pci_requests=objects.InstancePCIRequests(requests=[], instance_uuid=server_id),
    )
    server.create()
    _reserve(server, volume, "sda", 0)
    _spawn(_server(server_id))


def attach(server_id: str, volume: str, name: str) -> None:
    server = _server(server_id)
    device = _reserve(server, volume, name, None)
    device.attach(ADMIN, server, VOLUMES, DRIVER, do_driver_attach=True)


def detach(server_id: str, volume: str) -> None:
    server = _server(server_id)
    [mapping] = [each for each in _mappings(server) if each.volume_id == volume]
    block_device.convert_volume(mapping).detach(ADMIN, server, VOLUMES, DRIVER)
    mapping.destroy()


def reboot(server_id: str) -> None:
    server = _server(server_id)
    DRIVER.reboot(ADMIN, server, NO_NETWORK, "HARD", _devices(server))


def shelve(server_id: str) -> None:
    """And offload: the host keeps nothing."""
    server = _server(server_id)
    DRIVER.destroy(ADMIN, server, NO_NETWORK, _devices(server))
    for each in _mappings(server):
        reserved = VOLUMES.attachment_create(ADMIN, each.volume_id, server_id)["id"]
        VOLUMES.attachment_delete(ADMIN, each.attachment_id)
        each.attachment_id = reserved
        each.save()


def unshelve(server_id: str) -> None:
    _spawn(_server(server_id))


def delete(server_id: str) -> None:
    server = _server(server_id)
    DRIVER.destroy(ADMIN, server, NO_NETWORK, _devices(server))
    for each in _mappings(server):
        VOLUMES.attachment_delete(ADMIN, each.attachment_id)
        each.destroy()
    server.destroy()


def shown(server_id: str) -> dict[str, object]:
    """What its API tells of the server, and its mappings with their connections."""
    server = _server(server_id)
    rows = [
        {
            "id": each.uuid,
            "volume_id": each.volume_id,
            "attachment_id": each.attachment_id,
            "device": each.device_name,
            "connected": json.loads(each.connection_info or "{}"),
        }
        for each in _mappings(server)
    ]
    return {"guest": server.name, "mappings": rows}


def execute(script: str) -> list[int]:
    """SQL in Nova's database: how many rows each statement has changed."""
    path = CONF.database.connection.removeprefix("sqlite:///")
    with sqlite3.connect(path, timeout=60) as database:
        return [database.execute(each).rowcount for each in script.split(";\n") if each.strip()]


CALLS = (boot, attach, detach, reboot, shelve, unshelve, delete, shown, execute)


def main() -> None:
    calls = {each.__name__: each for each in CALLS}
    for line in sys.stdin:
        name, *words = json.loads(line)
        try:
            answer = {"answer": calls[name](*words)}
        except Exception as error:  # noqa: BLE001 - the test has it in its own failure
            log.logging.exception(name)
            answer = {"error": repr(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    os._exit(0)  # without waiting for the threads that hear libvirt


if __name__ == "__main__":
    main()
