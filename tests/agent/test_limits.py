"""The limits and block sizes of a disk: from what Cinder says to the guest's XML."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from host_agent.libvirt import disk_xml
from host_agent.libvirt.domain_xml import HostCapabilities, domain_of, for_destination
from host_agent.libvirt.hypervisor import Trouble
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import ErrorKind, Verb
from host_agent.shared.contract.outputs import ConnectedDisk
from host_agent.shared.contract.ports import PHYSICAL, PortError
from host_agent.shared.contract.wire import WireError, read
from host_agent.storage import connection
from host_agent.verbs.disks import disk_for
from ledger.trial.cinder.model import connection as backends
from ledger.trial.cinder.model.rows import StoredVolume
from tests.agent.bench import Bench
from tests.agent.guest_world import SERVER, SHUTDOWN, World, fails, raised
from tests.agent.test_disk_xml import built, disk

#: What an administrator may have written, and the limits that a guest gets of it.
SPECS: dict[str, tuple[Any, dict[str, int]]] = {
    "none": (None, {}),
    "no object": ("total_iops_sec=100", {}),
    "total": ({"total_bytes_sec": "1048576", "total_iops_sec": "500"}, {
        "total_bytes_sec": 1048576, "total_iops_sec": 500,
    }),
    "both ways": ({"read_iops_sec": "100", "write_iops_sec": "50", "write_bytes_sec": "4096"}, {
        "read_iops_sec": 100, "write_iops_sec": 50, "write_bytes_sec": 4096,
    }),
    "per GiB, a number": ({"total_iops_sec": 300}, {"total_iops_sec": 300}),
    "burst": (
        {"total_iops_sec": "500", "total_iops_sec_max": "900", "size_iops_sec": "4096"},
        {"total_iops_sec": 500, "total_iops_sec_max": 900, "size_iops_sec": 4096},
    ),
    "keys of the backend": ({"minIOPS": "5", "total_iops_sec": "7", "total_iops_sec_per_gb": "1"}, {
        "total_iops_sec": 7,
    }),
    "a length, which Nova does not pass on": (
        {"total_iops_sec": "7", "total_iops_sec_max": "8", "total_iops_sec_max_length": "60"},
        {"total_iops_sec": 7, "total_iops_sec_max": 8},
    ),
    "no number": ({"read_iops_sec": "a lot", "write_iops_sec": "50"}, {"write_iops_sec": 50}),
    "XML": ({"read_iops_sec": "1</read_iops_sec><x/>", "<x/>": "1", "write_iops_sec": "50"}, {
        "write_iops_sec": 50,
    }),
    "other digits": ({"read_iops_sec": "١٢", "write_iops_sec": "1e3", "total_bytes_sec": "-1"}, {}),
    "beyond QEMU": (
        {"total_iops_sec": 10**15 + 1, "read_iops_sec": str(10**15), "size_iops_sec": "9" * 17},
        {"read_iops_sec": 10**15},
    ),
    "no limit": ({"total_iops_sec": "0", "read_iops_sec": "5"}, {"read_iops_sec": 5}),
    "total and one way": (
        {"total_bytes_sec": "9", "read_bytes_sec": "5", "write_bytes_sec_max": "7"},
        {"total_bytes_sec": 9},
    ),
    "burst without, and below its limit": (
        {"read_iops_sec_max": "5", "write_iops_sec": "9", "write_iops_sec_max": "8"},
        {"write_iops_sec": 9},
    ),
    "a size of no request": ({"total_bytes_sec": "9", "size_iops_sec": "4096"}, {
        "total_bytes_sec": 9,
    }),
    "objects": ({"total_iops_sec": ["7"], "read_iops_sec": None, "write_iops_sec": True}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
def test_a_disk_is_limited_by_what_qemu_takes_of_a_qos_spec(name: str) -> None:
    specs, limits = SPECS[name]
    assert connection.iotune({"qos_specs": specs})[0] == limits
    element = built(iotune=limits)
    assert {n.tag: n.text for n in element.iterfind("iotune/*")} == {
        name: str(limit) for name, limit in limits.items()
    }
    assert (element.find("iotune") is None) == (not limits)


@pytest.mark.parametrize(("read", "left_out"), [("a lot", ["read_iops_sec"]), ("5", [])])
def test_a_limit_that_is_left_out_is_logged_by_its_name(
    read: str, left_out: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = {"minIOPS": "5", "write_iops_sec": "9", "total_iops_sec": "0", "read_iops_sec": read}

    def says(volume: StoredVolume) -> dict[str, Any]:
        return {"simulated_bytes": volume.size << 30, "qos_specs": specs}

    monkeypatch.setattr(backends, "size_of", says)
    bench = Bench()
    lane = bench.lane()
    bench.run(lane, Verb.ATTACHMENT_UPDATE)
    with capture_logs() as logged:
        bench.run(lane, Verb.VOLUME_CONNECT)
    named = [line for line in logged if line["event"] == "qos_specs_ignored"]
    assert [name for line in named for name in line["names"]] == left_out


def test_a_guest_sees_the_blocks_that_the_backend_wants() -> None:
    info = {"logical_block_size": "512", "physical_block_size": 4096}
    sizes = connection.blockio(info)
    blocks = built(blockio=sizes).find("blockio")
    assert blocks is not None
    assert blocks.attrib == {"logical_block_size": "512", "physical_block_size": "4096"}
    assert connection.blockio({"logical_block_size": None}) == {}
    with pytest.raises(PortError, match="logical_block_size"):
        connection.blockio({"logical_block_size": 4096, "physical_block_size": 512})
    assert built().find("blockio") is None


@pytest.mark.parametrize("size", ["", "4k", 0, 256, 1000, 4 << 20, "512'/><x"])
def test_blocks_that_no_disk_has_are_an_error_of_the_backend(size: Any) -> None:
    with pytest.raises(PortError, match="physical_block_size") as raised:
        connection.blockio({"physical_block_size": size})
    assert raised.value.code == "bad_connection_info"


@pytest.mark.parametrize("size", ["4096", "4k"])
def test_a_backends_blocks_get_to_the_guest_or_nothing_is_connected(
    size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def says(volume: StoredVolume) -> dict[str, Any]:
        return {"simulated_bytes": volume.size << 30, "physical_block_size": size}

    monkeypatch.setattr(backends, "size_of", says)
    bench = Bench()
    lane = bench.lane()
    bench.run(lane, Verb.ATTACHMENT_UPDATE)
    if size == "4k":
        with pytest.raises(PortError, match="physical_block_size"):
            bench.run(lane, Verb.VOLUME_CONNECT)
        assert "brick.connect" not in bench.calls
        assert bench.records == {}
    else:
        bench.run(lane, Verb.VOLUME_CONNECT, Verb.DISK_PLUG)
        guest = bench.store.read()["guests"][lane.server_id]["persistent"]
        assert [each.attrib for each in ET.fromstring(guest).iter("blockio")] == [
            {"physical_block_size": "4096"}
        ]


# --- between hosts of two versions ------------------------------------------------------------

LANE = Lane(server_id="s", volume_id="v", bdm_id="b", attachment_id="a", device_name="vdb")
SOURCE: dict[str, Any] = {
    "type": "block",
    "path": "/dev/sdx",
    "format": "raw",
    "discard": False,
    "readonly": False,
}


def test_a_connected_disk_of_an_older_host_has_no_limits() -> None:
    old = disk_for(LANE, SOURCE, "vdb")
    assert (old.iotune, old.blockio) == ({}, {})
    limited: dict[str, Any] = {
        **SOURCE,
        "iotune": {"total_iops_sec": 7},
        "blockio": {"logical_block_size": 512},
    }
    passed_on: Any = read(limited, ConnectedDisk)
    made = disk_for(LANE, passed_on, "vdb")
    assert (made.iotune, made.blockio) == ({"total_iops_sec": 7}, {"logical_block_size": 512})
    assert made.source == old.source == {"type": "block", "path": "/dev/sdx"}


@pytest.mark.parametrize("limits", [{"x><y": 1}, {"total_iops_sec": "1"}, {"total_iops_sec": -1}])
def test_limits_that_a_host_makes_up_are_no_words_of_the_contract(limits: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        read({**SOURCE, "iotune": limits}, ConnectedDisk)


@pytest.mark.parametrize(
    ("here", "there", "found"),
    [({}, {"a": 1}, {"a": "1"}), ({"a": 1}, {"b": 2}, {"b": "2"}), ({"a": 1}, {}, {"a": "1"})],
    ids=["begin", "change", "stay if the other host says none"],
)
def test_limits_in_a_migration(
    here: dict[str, int], there: dict[str, int], found: dict[str, str]
) -> None:
    one = disk(iotune=here, blockio={"logical_block_size": 512})
    domain = f"<domain><devices>{disk_xml.build(one)}</devices></domain>"
    other = replace(one, iotune=there, blockio={"logical_block_size": 4096})
    made = ET.fromstring(for_destination(domain, [other]))
    assert [{n.tag: n.text for n in each} for each in made.iter("iotune")] == [found]
    assert [each.attrib for each in made.iter("blockio")] == [{"logical_block_size": "512"}]


# --- a disk that stays ------------------------------------------------------------------------


SLOW, FAST = {"total_iops_sec": 7}, {"total_iops_sec": 900}


def _limits(world: World) -> list[dict[str, int]]:
    """In the running guest, if it runs, and in its definition."""
    guest = world.store.read()["guests"][SERVER]
    copies = [guest[copy] for copy in ("live", "persistent") if guest[copy]]
    disks = [disk_xml.parse(copy).disk_of(world.old.serial) for copy in copies]
    return [{n.tag: int(n.text or 0) for n in d.element.iterfind("iotune/*")} for d in disks if d]


def test_the_definition_gets_the_limits_that_cinder_says_now_once() -> None:
    world = World(SHUTDOWN)
    now = replace(world.old, iotune=SLOW)
    for _ in range(2):
        world.guests.replace(SERVER, now)
    assert world.hypervisor.asked == ["update"]
    assert _limits(world) == [now.iotune]
    world.guests.replace(SERVER, world.old)
    assert _limits(world) == [{}]


def test_a_disk_keeps_the_blocks_that_its_data_was_written_with() -> None:
    world = World(SHUTDOWN)
    world.guests.replace(SERVER, replace(world.old, iotune=SLOW, blockio={PHYSICAL: 4096}))
    guest = world.store.read()["guests"][SERVER]["persistent"]
    assert _limits(world) == [SLOW]
    assert "blockio" not in guest
    asked = [replace(world.old, blockio={PHYSICAL: size}) for size in (512, 4096)]
    own = domain_of(guest, SERVER, asked[:1], HostCapabilities()).xml
    for base, sizes in ((None, ["4096"]), (own, ["512"]), (guest, [])):
        made = ET.fromstring(domain_of(guest, SERVER, asked[1:], HostCapabilities(), base).xml)
        assert [each.get(PHYSICAL) for each in made.iter("blockio")] == sizes


def test_a_running_guest_has_new_limits_from_its_next_start() -> None:
    world = World()
    world.guests.replace(SERVER, replace(world.old, iotune=SLOW))
    assert _limits(world) == [{}, SLOW]
    assert world.guests.disk(SERVER, world.old.serial).differs == ()
    world.guests.stop(SERVER, force=True)
    world.guests.start(SERVER)
    assert _limits(world) == [SLOW, SLOW]


def test_after_a_swap_the_definition_has_the_new_volumes_limits() -> None:
    world = World(SHUTDOWN)
    world.guests.replace(SERVER, replace(world.old, iotune=SLOW))
    world.guests.start(SERVER)
    world.new = replace(world.new, iotune=FAST)
    for _ in range(2):  # a killed agent copies again
        world.copy()
        assert (world.sources(), _limits(world)) == (("/new",), [SLOW, FAST])


def test_after_an_aborted_swap_the_definition_has_the_old_volumes_limits() -> None:
    world = World(SHUTDOWN)
    world.guests.replace(SERVER, replace(world.old, iotune=SLOW))
    world.guests.start(SERVER)
    world.new = replace(world.new, iotune=FAST)
    world.hypervisor.before["end_copy"] = [fails(Trouble.LOST)]
    raised(ErrorKind.UNKNOWN, "hypervisor_lost", world.copy)
    assert _limits(world) == [SLOW, FAST]
    assert world.guests.stay_on(SERVER, world.new) is True
    assert _limits(world) == [SLOW, SLOW]
