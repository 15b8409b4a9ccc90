"""Questions that tests ask of a simulated host, and what must not be so on one at rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aggregates.mapping import BlockDeviceMapping, MappingState
from host_agent.libvirt import disk_xml
from host_agent.simulated.host_state import LUKS_HEAD, HostState


def connected_paths(store: HostState) -> set[str]:
    """The volumes that are connected to this host."""
    return {entry["path"] for entry in store.read()["connected"].values()}


def lose_secrets(store: HostState) -> None:
    """The hypervisor's daemon was started anew: guests run on, what was in memory is gone."""
    with store.edit() as state:
        state["secrets"].clear()


def plugged(store: HostState) -> dict[str, dict[str, tuple[str | None, str | None]]]:
    """Per server and volume: the target name (live, persistent) of the volume's disk."""
    found: dict[str, dict[str, tuple[str | None, str | None]]] = {}
    for server_id, guest in store.read()["guests"].items():
        live, persistent = _volumes(guest["live"]), _volumes(guest["persistent"])
        found[server_id] = {
            volume: (live.get(volume), persistent.get(volume)) for volume in live | persistent
        }
    return found


def read_only(store: HostState) -> list[int]:
    """How many volumes' disks of all guests may only be read: live, in definitions."""
    guests = store.read()["guests"].values()
    copies = [[guest[copy] for guest in guests if guest[copy]] for copy in ("live", "persistent")]
    return [
        sum(disk.readonly for domain in domains for disk in disk_xml.parse(domain).disks)
        for domains in copies
    ]


def misplugged(mappings: Iterable[BlockDeviceMapping], host: HostState | None) -> Iterator[str]:
    """A mapping says that its guest has the disk if and only if the guest has it: the mappings of
    one server, and the host where its guest is (None: nowhere).
    """
    guests = plugged(host) if host else {}
    for mapping in mappings:
        disks = guests.get(mapping.server_id or "", {})
        has = mapping.volume_id is not None and mapping.serial in disks
        if has != (mapping.state is MappingState.PLUGGED):
            yield f"mapping {mapping.id} is {mapping.state}, its guest has the disk: {has}"


def _volumes(domain: str | None) -> dict[str, str]:
    disks = disk_xml.parse(domain).disks if domain else ()
    return {disk.serial: disk.target for disk in disks if disk.serial}


def seen_sizes(store: HostState) -> dict[str, dict[str, int]]:
    """Per server and volume: what the running guest has of it, in bytes, and its head of LUKS."""
    found: dict[str, dict[str, int]] = {}
    for server_id, guest in store.read()["guests"].items():
        disks = disk_xml.parse(guest["live"]).disks if guest["live"] else ()
        found[server_id] = {
            disk.serial: guest["sizes"][disk.target]
            + (LUKS_HEAD if disk_xml.secret_of(disk.xml) is not None else 0)
            for disk in disks
            if disk.serial
        }
    return found


def broken_invariants(store: HostState) -> list[str]:
    """What must not be so at rest, in words: empty for a sane host."""
    state = store.read()
    wrong = []
    used, kept = set(), set()
    encrypted = {e["path"] for e in state["connected"].values() if e.get("encrypted")}
    for server_id, guest in state["guests"].items():
        for copy_name in ("live", "persistent"):
            domain = guest[copy_name]
            for disk in disk_xml.parse(domain).disks if domain else ():
                if disk.serial is None:
                    continue
                path, secret = disk_xml.short(disk.place), disk_xml.secret_of(disk.xml)
                used.add(path)
                kept.add(secret)
                if (path in encrypted) != (secret is not None):
                    wrong.append(f"{server_id} has {disk.target} ({copy_name}) as it is on {path}")
                if path not in connected_paths(store):
                    wrong.append(f"{server_id} has {disk.target} ({copy_name}) not connected")
    for server_id, volumes in plugged(store).items():
        guest = state["guests"][server_id]
        both = guest["live"] is not None and guest["persistent"] is not None
        wrong += [
            f"{server_id} has volume {volume} live as {live}, persistent as {persistent}"
            for volume, (live, persistent) in volumes.items()
            if both and live != persistent
        ]
    for server_id, guest in state["guests"].items():
        if guest.get("job") or guest.get("stranded"):
            wrong.append(f"{server_id} is held by a migration")
    wrong += [f"{path} is connected and unused" for path in connected_paths(store) - used]
    wrong += [f"the secret of {name} is kept and unused" for name in state["secrets"].keys() - kept]
    return wrong
