"""Nova's database of a cell, as far as a server and its mappings go: the columns of its models
Instance and BlockDeviceMapping that are read or written here, and those that must not be null.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from uuid import uuid4

from handlers.drift.seen import SeenMapping, SeenServer
from handlers.results.adopt import ServerFacts

_SCHEMA = """
CREATE TABLE instances (
    created_at DATETIME, updated_at DATETIME, deleted_at DATETIME, id INTEGER PRIMARY KEY,
    uuid VARCHAR(36) NOT NULL UNIQUE, host VARCHAR(255), node VARCHAR(255),
    vm_state VARCHAR(255), task_state VARCHAR(255), power_state INTEGER, deleted INTEGER);
CREATE TABLE block_device_mapping (
    created_at DATETIME, updated_at DATETIME, deleted_at DATETIME, id INTEGER PRIMARY KEY,
    device_name VARCHAR(255), delete_on_termination BOOLEAN, snapshot_id VARCHAR(36),
    volume_id VARCHAR(36), volume_size INTEGER, no_device BOOLEAN, connection_info TEXT,
    instance_uuid VARCHAR(36) REFERENCES instances (uuid), deleted INTEGER,
    source_type VARCHAR(255), destination_type VARCHAR(255), guest_format VARCHAR(255),
    device_type VARCHAR(255), disk_bus VARCHAR(255), boot_index INTEGER, image_id VARCHAR(36),
    tag VARCHAR(255), attachment_id VARCHAR(36), uuid VARCHAR(36) UNIQUE, volume_type VARCHAR(255),
    encrypted BOOLEAN, encryption_secret_uuid VARCHAR(36), encryption_format VARCHAR(128),
    encryption_options VARCHAR(4096));
"""
_MAPPED = "instance_uuid, volume_id, attachment_id, device_name, tag, delete_on_termination, uuid"


class NovaDatabase:
    """`facts`: of the server that is in it, as the APIs show it."""

    def __init__(self, facts: ServerFacts) -> None:
        server = facts.seen
        self.connection = sqlite3.connect(":memory:")
        self.connection.executescript(_SCHEMA)
        self._server = server
        row = (server.id, server.host, server.vm_state, server.power_state)
        self.connection.execute(
            "INSERT INTO instances (uuid, host, vm_state, power_state, deleted) "
            "VALUES (?, ?, ?, ?, 0)",
            row,
        )
        named = {each.volume_id for each in server.mappings or ()}
        old = [
            SeenMapping(id=str(uuid4()), volume_id=id_, attachment_id=None, device=holder.device)
            for id_ in server.volumes
            if id_ not in named
            for holder in facts.volumes[id_].holders
            if holder.server_id == server.id
        ]
        for each in (*(server.mappings or ()), *old):
            device = each.device and f"/dev/{each.device}"
            row_ = (each.volume_id, each.attachment_id, device, each.tag)
            self.connection.execute(
                f"INSERT INTO block_device_mapping ({_MAPPED}, deleted, destination_type, "
                "connection_info) VALUES (?, ?, ?, ?, ?, ?, ?, 0, 'volume', '{\"old\": 1}')",
                (server.id, *row_, each.delete_on_termination, each.id),
            )

    def execute(self, script: str) -> list[int]:
        """How many rows each statement has changed."""
        statements = [each for each in script.split(";\n") if each.strip(" ;\n")]
        return [self.connection.execute(each).rowcount for each in statements]

    def seen(self) -> SeenServer:
        """As Nova's API shows the server: without the mappings that have no attachment."""
        [state] = self.connection.execute(
            "SELECT vm_state, power_state FROM instances WHERE deleted = 0"
        )
        rows = self.connection.execute(
            f"SELECT {_MAPPED} FROM block_device_mapping WHERE deleted = 0"
        ).fetchall()
        mappings = [
            SeenMapping(
                id=uuid,
                volume_id=volume,
                attachment_id=attachment,
                device=device and device.removeprefix("/dev/"),
                tag=tag,
                delete_on_termination=bool(ends),
            )
            for _, volume, attachment, device, tag, ends, uuid in rows
        ]
        return replace(
            self._server,
            vm_state=state[0],
            power_state=state[1],
            volumes=tuple(each.volume_id for each in mappings),
            mappings=tuple(each for each in mappings if each.attachment_id is not None),
        )
