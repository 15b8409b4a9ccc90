"""The state of a simulated host, in memory or in a file.

In a file it outlives a `kill -9` of the agent, as a real hypervisor and kernel do, and several
processes may use it: every change is made under `flock`, written to a new file, synced and renamed.

The state is one JSON object:

    {"guests": {"<server id>": {"name": ..., "power_state": "running",
                                "live": "<domain ...>" | null,
                                "persistent": "<domain ...>" | null,
                                "sizes": {"vdb": ...},  # bytes, as the guest knows them
                                "behind": {"vdb": ...}, # of the new volume, after a copy
                                "job": {...},         # a migration in progress
                                "merges": {"vdb": ...},  # of files, in progress
                                "stranded": true}},   # paused by a migration
     "connected": {"<target digest>": {"driver": ..., "path": ..., "bytes": ...,
                                       "encrypted": true}},   # if it is
     "secrets": {"<uuid>": "<digest of a volume's passphrase>"},
     "files": {"<path>": "<path of the one below it>"}}

An initial file may describe guests instead: {"define": [{"server_id": ..., "name": ...,
"power_state": "running", "project_id": ..., "devices": ["vda"], "transient": false}]}
(only server_id is required); they are created when the state is opened first.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import xml.etree.ElementTree as ET
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from host_agent.libvirt import disk_xml
from host_agent.shared.contract.messages import PowerState
from host_agent.shared.faults import CHANGES_MAX
from host_agent.shared.platform.settings import ConfigError

#: The URI of a simulated host: this, and its state file or its key in HOSTS.
SCHEME = "simulated:"
#: Hosts of this process without a file, as destinations of migrations.
HOSTS: dict[str, HostState] = {}

#: A key of simulated connection information: the volume's size on storage, in bytes.
SIZE = "simulated_bytes"
#: The size of a LUKS header, in bytes.
LUKS_HEAD = 2 << 20

_LIVE_STATES = frozenset({PowerState.RUNNING, PowerState.PAUSED})


class StateError(ConfigError):
    """The state file does not have the form described above."""


class HostState:
    """The state of one simulated host.  Thread-safe; with a path also across processes."""

    def __init__(self, path: Path | None = None, initial: dict[str, Any] | None = None) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._text = "{}"  # the state without a file; a text, so that copies are independent
        #: The states before each of the last changes by this process.
        self._past: deque[str] = deque(maxlen=CHANGES_MAX)
        with self.edit() as state:
            for key, value in (initial or {}).items():
                state.setdefault(key, value)
            _normalise(state)

    @contextmanager
    def edit(self) -> Iterator[dict[str, Any]]:
        """The state, to be changed; durable when the block ends, untouched if it raises."""
        with self._lock, ExitStack() as held:
            if self._path is None:
                draft = json.loads(self._text)
                yield draft
                self._past.append(self._text)
                self._text = json.dumps(draft)
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            guard = held.enter_context(self._path.with_name(self._path.name + ".lock").open("w"))
            fcntl.flock(guard, fcntl.LOCK_EX)
            state = _read(self._path)
            before = json.dumps(state)
            yield state
            _write(self._path, state)
            self._past.append(before)

    def read(self) -> dict[str, Any]:
        """A copy of the present state.  A file is replaced atomically, so it needs no lock."""
        with self._lock:
            return json.loads(self._text) if self._path is None else _read(self._path)

    def as_of(self, changes: int) -> HostState:
        """This host so many changes ago, read-only; its first state, if there were fewer."""
        with self._lock:
            known = list(self._past)
        if not changes or not known:
            return self
        return HostState(initial=json.loads(known[-min(changes, len(known))]))


def store_at(uri: str) -> HostState | None:
    """The simulated host of a URI."""
    name = uri.removeprefix(SCHEME)
    if name in HOSTS:
        return HOSTS[name]
    return HostState(Path(name)) if Path(name).is_file() else None


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
        state = json.loads(text) if text.strip() else {}
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise StateError(f"{path}: is no JSON: {error}") from error
    if not isinstance(state, dict):
        raise StateError(f"{path}: must hold a JSON object")
    return state


def _write(path: Path, state: dict[str, Any]) -> None:
    draft = path.with_name(path.name + ".new")
    with draft.open("w") as out:
        json.dump(state, out, indent=1)
        out.flush()
        os.fsync(out.fileno())
    draft.replace(path)


def _normalise(state: dict[str, Any]) -> None:
    guests = state.setdefault("guests", {})
    state.setdefault("connected", {})
    state.setdefault("secrets", {})
    state.setdefault("files", {})
    for definition in state.pop("define", []):
        if not isinstance(definition, dict) or not isinstance(definition.get("server_id"), str):
            raise StateError(f"a guest's definition needs a server_id: {definition!r}")
        guests.setdefault(definition["server_id"], guest_state(**definition))


def guest_state(
    *,
    server_id: str,
    name: str | None = None,
    power_state: str = "running",
    project_id: str | None = None,
    user_id: str | None = None,
    devices: list[str] | tuple[str, ...] = ("vda",),
    transient: bool = False,
) -> dict[str, Any]:
    """A guest's entry in the state, with its own disks `devices` (no volumes)."""
    name = name or f"instance-{server_id[:8]}"
    xml = f'<domain type="qemu"><name>{name}</name><uuid>{server_id}</uuid>'
    if project_id:
        ns = disk_xml.NOVA_NS
        xml += f'<metadata><n:instance xmlns:n="{ns}"><n:owner><n:user uuid="{user_id or ""}"/>'
        xml += f'<n:project uuid="{project_id}"/></n:owner></n:instance></metadata>'
    xml += '<devices><controller type="scsi" model="virtio-scsi"/>'
    for device in devices:
        bus = "virtio" if device.startswith("vd") else "scsi"
        xml += f'<disk type="file" device="disk"><target dev="{device}" bus="{bus}"/></disk>'
    xml += "</devices></domain>"
    return {
        "name": name,
        "power_state": PowerState(power_state).value,
        "live": xml if PowerState(power_state) in _LIVE_STATES else None,
        "persistent": None if transient else xml,
    }


# --- functions for the demo and for tests -------------------------------------------------


def set_power(store: HostState, server_id: str, power_state: PowerState) -> None:
    """Start, pause or stop a guest, as its owner would; a transient one disappears when stopped."""
    with store.edit() as state:
        guest = state["guests"][server_id]
        guest["power_state"] = power_state.value
        guest.pop("stranded", None)
        if power_state in _LIVE_STATES:
            if guest["live"] is None:
                switch_on(guest)
            measure(state, guest)
        elif guest["persistent"] is None:
            del state["guests"][server_id]
        else:
            guest["live"] = None
            guest.pop("job", None)


def switch_on(guest: dict[str, Any]) -> None:
    """Start it from its definition, with its disks opened again."""
    guest.update(live=guest["persistent"], sizes={}, behind={}, merges={})


def finish_move(store: HostState, server_id: str) -> str | None:
    """Finish the migration in progress; its error, or None.

    In libvirt's order: the guest is paused here, runs there, and is removed here.
    """
    job = store.read()["guests"].get(server_id, {}).get("job")
    failed, there = _cannot_arrive(job)
    with store.edit() as state:
        guest = state["guests"].get(server_id, {})
        if guest.pop("job", None) is None:
            return "operation aborted: migration job"
        if there is None:
            return failed
        power_state = guest["power_state"]
        guest.update(power_state=PowerState.PAUSED.value, stranded=True)
    files = store.read()["files"]
    with there.edit() as state:
        state["files"].update(files)
        state["guests"][server_id] = {
            "name": guest["name"],
            "power_state": power_state,
            "live": job["live"],
            "persistent": job["persistent"],
        }
        measure(state, state["guests"][server_id])
    with store.edit() as state:
        del state["guests"][server_id]
    return None


def _cannot_arrive(job: dict[str, Any] | None) -> tuple[str | None, HostState | None]:
    """The error, or the store of the other host."""
    there = store_at(job["uri"]) if job else None
    if job is None or there is None:
        return "unable to connect to the other host", None
    for disk in disk_xml.parse(job["live"]).disks:
        if disk.is_volume and (failed := cannot_open(there.read(), disk.xml)):
            return failed, None
    return None, there


def cannot_open(state: dict[str, Any], disk: str) -> str | None:
    """Why QEMU cannot open this `<disk>`: it is not connected, or its secret is missing."""
    path, secret = disk_xml.short(disk_xml.place_of(disk)), disk_xml.secret_of(disk)
    if entry_of(state, disk) is None:
        return f"Could not open {path}: No such file or directory"
    if secret is not None and secret not in state["secrets"]:
        return f"Secret not found: no secret with matching uuid '{secret}'"
    return None


def measure(state: dict[str, Any], guest: dict[str, Any]) -> None:
    """Update the sizes: QEMU knows the size of each disk in its XML from when it was opened."""
    open_chains(state, guest)
    sizes: dict[str, int] = guest.get("sizes", {})
    disks = disk_xml.parse(guest["live"]).disks if guest["live"] else ()
    found = {disk.target: size_of(state, disk.xml) for disk in disks if disk.is_volume}
    guest["sizes"] = {name: sizes.get(name, size) for name, size in found.items()}
    behind: dict[str, int] = guest.get("behind", {})
    guest["behind"] = {name: size for name, size in behind.items() if name in found}


def size_of(state: dict[str, Any], disk: str) -> int:
    """Its size for a guest, in bytes."""
    entry = entry_of(state, disk)
    head = LUKS_HEAD if disk_xml.secret_of(disk) is not None else 0
    return entry.get("bytes", 0) - head if entry else 0


def entry_of(state: dict[str, Any], disk: str) -> dict[str, Any] | None:
    """The connection of this `<disk>`."""
    path = disk_xml.short(disk_xml.place_of(disk))
    connected: dict[str, dict[str, Any]] = state["connected"]
    return next((entry for entry in connected.values() if entry["path"] == path), None)


# --- files of a disk: each with its backing file ------------------------------------------------


def open_chains(state: dict[str, Any], guest: dict[str, Any]) -> None:
    """Write the backing files of open disks into the live XML, numbered."""
    if guest["live"] is None or not (state["files"] or "<backingStore" in guest["live"]):
        return
    root = ET.fromstring(guest["live"])  # noqa: S314 - our own
    for disk in root.iterfind("./devices/disk"):
        source = disk.find("source")
        for node in disk.findall("backingStore"):
            disk.remove(node)
        if source is None or source.get("file") not in state["files"]:
            continue
        source.set("index", "0")
        layer, path, number = disk, source.get("file"), 0
        while path := state["files"].get(path):
            number += 1
            layer = ET.SubElement(layer, "backingStore", type="file", index=str(number))
            ET.SubElement(layer, "source", file=path)
    guest["live"] = ET.tostring(root, encoding="unicode")


def switch_file(state: dict[str, Any], guest: dict[str, Any], disk: ET.Element, path: str) -> None:
    """Switch the live disk, its definition, and the connection (of the share) to this file."""
    source, target = disk.find("source"), disk.find("target")
    assert source is not None, "a volume's disk has a source"
    assert target is not None, "it has a name"
    former = source.get("file")
    source.set("file", path)
    for entry in state["connected"].values():
        if entry["path"] == former:
            entry["path"] = path
    if guest["persistent"]:
        root = ET.fromstring(guest["persistent"])  # noqa: S314 - our own
        name = target.get("dev")
        for known in root.iterfind(f"./devices/disk/target[@dev='{name}']/../source"):
            known.set("file", path)
        guest["persistent"] = ET.tostring(root, encoding="unicode")


def merge_files(state: dict[str, Any], job: dict[str, str | None]) -> None:
    """Remove the files between `upper` and `lower` (None: all below `upper`) from the chain."""
    upper, lower = job["upper"], job["lower"]
    if lower is None:
        state["files"].pop(upper, None)
    else:
        state["files"][upper] = lower


def release(store: HostState, server_id: str) -> None:
    """End a `hold`: the guest's migration finishes, its copies become ready."""
    guest = store.read()["guests"][server_id]
    if guest.get("job"):
        finish_move(store, server_id)
        return
    with store.edit() as state:
        guest = state["guests"][server_id]
        guest["live"] = with_ready_mirrors(guest["live"])
        for job in guest.pop("merges", {}).values():
            merge_files(state, job)
        open_chains(state, guest)


# --- a domain's XML -----------------------------------------------------------------------


def with_disk(domain: str, disk: str) -> str:
    """With one more disk."""
    root = ET.fromstring(domain)  # noqa: S314 - our own
    devices = root.find("./devices")
    if devices is None:
        devices = ET.SubElement(root, "devices")
    devices.append(ET.fromstring(disk))  # noqa: S314 - our own
    return ET.tostring(root, encoding="unicode")


def without_disk(domain: str, target: str) -> str:
    """Without the disk of this target."""
    root = ET.fromstring(domain)  # noqa: S314 - our own
    devices = root.find("./devices")
    for disk in [] if devices is None else devices.findall("disk"):
        node = disk.find("target")
        if devices is not None and node is not None and node.get("dev") == target:
            devices.remove(disk)
    return ET.tostring(root, encoding="unicode")


def with_ready_mirrors(domain: str) -> str:
    """With all copies ready."""
    root = ET.fromstring(domain)  # noqa: S314 - our own
    for mirror in root.iterfind("./devices/disk/mirror"):
        mirror.set("ready", "yes")
    return ET.tostring(root, encoding="unicode")
