"""Notifications as Nova 34 sends them (its doc/notification_samples), of simulated servers."""

from __future__ import annotations

import warnings
from typing import Any
from uuid import uuid4

from oslo_config import cfg

from tests.doubles.simulated_nova import Server

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # as ledger.nova_beside.notifications
    import oslo_messaging

USER, PROJECT = "9a8b1f0c6f0e4f4b8f2f8d1f5c3a7e21", "6f70656e737461636b20342065766572"


def nova_object(name: str, version: str, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "nova_object.name": name,
        "nova_object.namespace": "nova",
        "nova_object.version": version,
        "nova_object.data": data,
    }


def payload(server: Server, volume_id: str | None = None, **changed: Any) -> dict[str, Any]:
    """InstanceActionVolumePayload, or without a volume InstanceActionPayload."""
    devices = [
        nova_object(
            "BlockDevicePayload",
            "1.0",
            {
                "boot_index": number or None,
                "delete_on_termination": False,
                "device_name": each.device,
                "tag": None,
                "volume_id": each.volume_id,
            },
        )
        for number, each in enumerate(server.mappings)
    ]
    flavor = {"flavorid": "1", "name": "m1.tiny", "memory_mb": 512, "vcpus": 1, "extra_specs": {}}
    data = {
        "architecture": "x86_64",
        "availability_zone": "nova",
        "block_devices": devices,
        "created_at": "2026-10-29T13:42:11Z",
        "deleted_at": None,
        "display_name": server.name,
        "fault": None,
        "flavor": nova_object("FlavorPayload", "1.4", flavor),
        "host": server.host,
        "ip_addresses": [],
        "locked": False,
        "metadata": {},
        "node": server.host,
        "power_state": "running",
        "state": server.vm_state,
        "task_state": server.task_state,
        "tenant_id": server.project_id,
        "user_id": "somebody",
        "uuid": server.id,
        "request_id": "req-5b6c791d-5709-4f36-8fbe-c3e02869e35d",
        "action_initiator_user": USER,
        "action_initiator_project": PROJECT,
        **({"volume_id": volume_id} if volume_id else {}),
        **changed,
    }
    name = "InstanceActionVolumePayload" if volume_id else "InstanceActionPayload"
    return nova_object(name, "1.7" if volume_id else "1.8", data)


class Teller:
    """Tells as nova-compute does, by oslo.messaging's own notifier."""

    def __init__(self, url: str = "fake://") -> None:
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[], default_config_dirs=[])
        oslo_messaging.set_transport_defaults("nova")  # as Nova does
        transport = oslo_messaging.get_notification_transport(conf, url)
        self._notifier = oslo_messaging.Notifier(
            transport,
            publisher_id="nova-compute:hv1",
            driver="messagingv2",
            topics=["versioned_notifications"],
        )

    def tell(self, event: str, payload: Any) -> None:
        self._notifier.info({"request_id": f"req-{uuid4()}"}, event, payload)
