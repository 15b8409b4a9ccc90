"""POST /servers in Nova's form: which bodies are taken, which are refused, and in what words.

The forms of clients are as they send them: python-openstackclient 10.5.0, openstacksdk 4.22.0,
python-novaclient 18.13.1, gophercloud (Terraform's provider), Heat.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from aggregates.errors import DomainError
from ledger.http.problem import ApiError, invalid_input
from ledger.nova.flavors import size_wanted
from ledger.nova.servers import properties
from ledger.nova.servers.create import disks_of
from ledger.nova.servers.schemas_create import wanted

VOLUME = "11111111-1111-4111-8111-111111111111"
OTHER = "22222222-2222-4222-8222-222222222222"
OLDEST, NEWEST = (2, 1), (2, 105)

ROOT = {"uuid": VOLUME, "boot_index": 0, "source_type": "volume", "destination_type": "volume"}
BLANK = {"source_type": "blank", "destination_type": "volume", "volume_size": 1}
PLAIN = {"name": "web", "flavorRef": "c1.m512"}
#: What the openstack client sends of what nobody has asked for.
QUIET = {**PLAIN, "imageRef": "", "min_count": 1, "max_count": 1, "networks": "auto"}


def body(*disks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"server": {**QUIET, "block_device_mapping_v2": list(disks or (ROOT,)), **more}}


def made(given: dict[str, Any], version: tuple[int, int] = NEWEST) -> list[tuple[Any, ...]]:
    """What becomes of the disks: the volume, or what is made, and the rest."""
    asked = wanted(given, version)
    return [
        (disk.volume_id or disk.create, disk.boot_index, disk.device, disk.delete_on_termination)
        for disk in disks_of(asked.block_device_mapping_v2, "p")
    ]


def of(size_gb: int | None, **more: Any) -> dict[str, Any]:
    return {"size_gb": size_gb, "volume_type": None, "project_id": "p", **more}


FORMS: dict[str, tuple[tuple[int, int], dict[str, Any], list[tuple[Any, ...]]]] = {
    "openstack --volume": (
        OLDEST,
        {"server": {**QUIET, "networks": [], "block_device_mapping_v2": [ROOT]}},
        [(VOLUME, 0, "vda", False)],
    ),
    "openstack --boot-from-volume --image": (
        NEWEST,
        body(
            {
                "uuid": OTHER,
                "boot_index": 0,
                "source_type": "image",
                "destination_type": "volume",
                "volume_size": 5,
                "delete_on_termination": True,
            }
        ),
        [(of(5, image_id=OTHER), 0, "vda", True)],
    ),
    "openstack --snapshot": (
        NEWEST,
        body({**ROOT, "source_type": "snapshot", "uuid": OTHER, "delete_on_termination": False}),
        [(of(None, snapshot_id=OTHER), 0, "vda", False)],
    ),
    "openstack --volume --block-device": (
        NEWEST,
        body(ROOT, {**BLANK, "volume_size": "7", "volume_type": "fast", "disk_bus": "scsi"}),
        [(VOLUME, 0, "vda", False), (of(7) | {"volume_type": "fast"}, None, "sdb", False)],
    ),
    "openstacksdk boot_volume, volumes": (
        NEWEST,
        body(
            {**ROOT, "boot_index": "0", "delete_on_termination": False},
            {**ROOT, "uuid": OTHER, "boot_index": "-1", "delete_on_termination": True},
        ),
        [(VOLUME, 0, "vda", False), (OTHER, None, "vdb", True)],
    ),
    "novaclient": (
        (2, 79),
        body({**BLANK, "boot_index": "0", "device_type": "disk"}, networks="none"),
        [(of(1), 0, "vda", False)],
    ),
    "gophercloud": (
        OLDEST,
        {
            "server": {
                **PLAIN,
                "imageRef": "",
                "config_drive": False,
                "min_count": 1,
                "security_groups": [{"name": "default"}],
                "block_device_mapping_v2": [{**ROOT, "delete_on_termination": False}],
            }
        },
        [(VOLUME, 0, "vda", False)],
    ),
    "Terraform": (
        (2, 52),
        {
            "server": {
                **PLAIN,
                "availability_zone": "nova",
                "config_drive": False,
                "imageRef": "",
                "metadata": {"role": "web", "owner.name": ""},
                "networks": "none",
                "security_groups": [{"name": "default"}],
                "tags": ["a", "b"],
                "block_device_mapping_v2": [
                    {
                        **BLANK,
                        "source_type": "image",
                        "uuid": OTHER,
                        "boot_index": 0,
                        "delete_on_termination": True,
                    }
                ],
            },
            "os:scheduler_hints": {},
        },
        [(of(1, image_id=OTHER), 0, "vda", True)],
    ),
    "Heat": (
        OLDEST,
        {
            "server": {
                **PLAIN,
                "imageRef": "",
                "min_count": 1,
                "max_count": 1,
                "OS-DCF:diskConfig": "AUTO",
                "config_drive": "",
                "metadata": {"stack": "web"},
                "block_device_mapping_v2": [
                    {**ROOT, "delete_on_termination": False, "device_name": "vda"},
                    {**ROOT, "uuid": OTHER, "boot_index": None, "device_name": "/dev/vdc"},
                    {**BLANK, "boot_index": -1},
                ],
            }
        },
        [(VOLUME, 0, "vda", False), (OTHER, None, "vdc", False), (of(1), None, "vdb", False)],
    ),
    "a flavor's address, hints of nothing": (
        NEWEST,
        {**body(flavorRef="http://nova/v2.1/flavors/c1.m512"), "os:scheduler_hints": {}},
        [(VOLUME, 0, "vda", False)],
    ),
}


@pytest.mark.parametrize("client", list(FORMS))
def test_what_clients_send_of_themselves_is_taken(client: str) -> None:
    version, given, expected = FORMS[client]
    assert made(given, version) == expected
    assert size_wanted((), wanted(given, version).flavorRef) == (1, 512)


NOT_DONE: dict[str, Any] = {
    "imageRef": OTHER,
    "block_device_mapping": [{"device_name": "vda", "volume_id": VOLUME}],
    "networks": [{"uuid": OTHER}],
    "security_groups": [{"name": "web"}],
    "min_count": 2,
    "max_count": 2,
    "return_reservation_id": True,
    "key_name": "mine",
    "user_data": "IyEvYmluL3No",
    "adminPass": "secret",
    "config_drive": True,
    "trusted_image_certificates": [OTHER],
}


@pytest.mark.parametrize("name", list(NOT_DONE))
def test_what_cannot_be_done_is_refused_by_name(name: str) -> None:
    with pytest.raises(ApiError) as refused:
        wanted(body(**{name: NOT_DONE[name]}), NEWEST)
    assert refused.value.status == 400
    assert str(refused.value).startswith(f"Property '{name}' is not supported: ")
    assert NOT_DONE[name] == "secret" or "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"guest_format": "swap"}, "'guest_format' is not supported"),
        ({"device_type": "cdrom"}, "'device_type' is not supported"),
        ({"no_device": True}, "'no_device' is not supported"),
        ({"volume_id": VOLUME}, "'volume_id' is not supported"),
        ({"destination_type": "local"}, "destination_type local is not supported"),
        ({"source_type": "image", "destination_type": None}, "destination_type local"),
        ({"uuid": None}, "Missing device UUID"),
        ({"source_type": "blank"}, "Invalid device UUID"),
        ({"source_type": "image"}, "image needs a volume_size"),
        ({"source_type": "blank", "uuid": None}, "blank needs a volume_size"),
        ({"volume_type": "fast"}, "volume type to existing volume"),
        ({"boot_index": 1}, "Boot sequence"),
        ({"boot_index": -1}, "Boot sequence"),
        ({"boot_index": None}, "Boot sequence"),
        ({"disk_bus": "ide"}, "disk_bus"),
        ({"disk_bus": "scsi", "device_name": "vda"}, "not of disk_bus scsi"),
        ({"device_name": "/dev/sr0"}, "/dev/sr0"),
        ({"volume_size": "five"}, "volume_size"),
        ({"uuid": "boot-1"}, "uuid"),
        ({"source_type": "backup"}, "source_type"),
        ({"sauce": 1}, "'sauce' was unexpected"),
    ],
)
def test_a_disk_that_is_none_is_refused_in_words(change: dict[str, Any], why: str) -> None:
    assert why in refusal(body({**ROOT, **change}))


@pytest.mark.parametrize(
    ("disks", "why"),
    [
        ([ROOT, {**ROOT, "boot_index": 1}], "Two disks have the same uuid"),
        ([{**ROOT, "tag": "a"}, {**BLANK, "tag": "a"}], "Two disks have the same tag"),
        (
            [{**ROOT, "device_name": "vdc"}, {**BLANK, "device_name": "/dev/xvdc"}],
            "Two disks have the same device_name",
        ),
        ([ROOT, {**BLANK, "boot_index": 2}], "Boot sequence"),
        ([ROOT, {**BLANK, "boot_index": 0}], "Boot sequence"),
        ([ROOT, *[BLANK] * 26], "at most 26"),
    ],
    ids=["uuid", "tag", "device", "gap", "roots", "many"],
)
def test_disks_that_cannot_be_together_are_refused(disks: list[Any], why: str) -> None:
    assert why in refusal(body(*disks))


def test_as_many_disks_as_there_may_be_have_a_name_each() -> None:
    names = [device for *_, device, _ in made(body({**BLANK, "boot_index": 0}, *[BLANK] * 25))]
    assert len(set(names)) == 26
    assert names[0] == "vda"


def test_every_disk_may_be_named_and_the_root_take_anothers_letter() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    named = [{**BLANK, "device_name": f"/dev/vd{letter}"} for letter in letters]
    named[0] |= {"boot_index": 0}
    assert [row[2] for row in made(body(*named))] == [f"vd{letter}" for letter in letters]
    taken = [{**ROOT, "device_name": "/dev/vdb"}, *[BLANK] * 25]
    others = [*letters[2:], "aa"]
    assert [row[2] for row in made(body(*taken))] == ["vdb", *(f"vd{each}" for each in others)]


def test_a_server_without_volumes_is_refused_and_told_of_them() -> None:
    for given in ({"server": QUIET}, body() | {"server": {**QUIET, "block_device_mapping_v2": []}}):
        assert "disks are volumes here: give block_device_mapping_v2" in refusal(given)


@pytest.mark.parametrize(
    ("since", "given"),
    [
        ((2, 19), body(description=None)),
        ((2, 42), body({**ROOT, "tag": "root"})),
        ((2, 52), body(tags=[])),
        ((2, 63), body(trusted_image_certificates=None)),
        ((2, 67), body({**BLANK, "boot_index": 0, "volume_type": "fast"})),
        ((2, 74), body(host="compute-1")),
        ((2, 90), body(hostname=None)),
    ],
    ids=lambda value: "" if isinstance(value, dict) else f"2.{value[1]}",
)
def test_a_property_is_known_from_its_microversion_on(since: Any, given: dict[str, Any]) -> None:
    before = (2, since[1] - 1)
    if before < (2, 37):
        given["server"]["networks"] = []
    assert "was unexpected" in refusal(given, before)
    made(given, since)


@pytest.mark.parametrize(
    "given",
    [
        {"metadata": []},
        {"metadata": {"a": 1}},
        {"metadata": {"a/b": "c"}},
        {"metadata": {"": "c"}},
        {"metadata": {"a": "x" * 256}},
        {"metadata": {str(each): "x" for each in range(129)}},
        {"tags": "a"},
        {"tags": ["a,b"]},
        {"tags": ["a/b"]},
        {"tags": [""]},
        {"tags": ["x" * 61]},
        {"tags": [str(each) for each in range(51)]},
        {"description": "x" * 256},
        {"description": "a\x00"},
        {"description": 1},
    ],
    ids=lambda given: str(given)[:30],
)
def test_what_is_to_be_kept_is_of_nova_s_form(given: dict[str, Any]) -> None:
    assert next(iter(given)) in refusal(body(**given))


def test_what_is_to_be_kept_is_read() -> None:
    kept = {"metadata": {"a b:c": "", "d": "ü" * 255}, "tags": ["x y", "ü"], "description": "a\nb"}
    asked = wanted(body(**kept), NEWEST)
    assert (asked.metadata, asked.tags, asked.description) == tuple(kept.values())


def test_a_tag_of_a_disk_is_known_in_2_32_and_then_not_until_2_42() -> None:
    given = body({**ROOT, "tag": "root"}, networks=[])
    made(given, (2, 32))
    assert "'tag' was unexpected" in refusal(given, (2, 33))


def test_files_are_known_before_2_57_and_refused() -> None:
    files = [{"path": "/etc/motd", "contents": "aGk="}]
    assert "'personality' is not supported" in refusal(body(personality=files), (2, 56))
    assert "'personality' was unexpected" in refusal(body(personality=files), (2, 57))


def test_networks_have_to_be_said_from_2_37_on() -> None:
    quiet = {key: value for key, value in QUIET.items() if key != "networks"}
    given = {"server": {**quiet, "block_device_mapping_v2": [ROOT]}}
    made(given, (2, 36))
    assert "'networks' is a required property" in refusal(given, (2, 37))
    assert "'networks' is not supported" in refusal(body(networks="auto"), (2, 36))


@pytest.mark.parametrize("name", ["", " web", "web ", "a\x07b", "x" * 256, 5])
def test_a_name_is_of_nova_s_form(name: Any) -> None:
    assert "name" in refusal(body(name=name))


@pytest.mark.parametrize("flavor", ["m1.small", "c0.m512", "c1025.m512", "c1.m15", "c1.m16777217"])
def test_a_flavor_that_no_server_can_have_is_not_found(flavor: str) -> None:
    with pytest.raises(ApiError, match=f"Flavor {flavor} could not be found") as refused:
        size_wanted((), flavor)
    assert refused.value.status == 400


@pytest.mark.parametrize("given", [{}, {"server": None}, {"server": {}}, {"server": QUIET, "x": 1}])
def test_a_body_that_is_none_is_refused(given: dict[str, Any]) -> None:
    assert refusal(given)


def test_hints_are_refused_beside_the_server() -> None:
    for name in ("os:scheduler_hints", "OS-SCH-HNT:scheduler_hints"):
        assert f"'{name}' is not supported" in refusal({**body(), name: {"group": OTHER}})


def test_all_properties_that_nova_knows_are_in_the_tables() -> None:
    """By nova/api/openstack/compute/schemas/servers.py, create_v294 and what older ones had."""
    known = {where: {each.name for each in table} for where, table in properties.TABLES.items()}
    assert known["server"] == {*PLAIN, *NOT_DONE, "personality", "availability_zone", "host"} | {
        *("hypervisor_hostname", "block_device_mapping_v2"),
        *("metadata", "tags", "description", "accessIPv4", "accessIPv6", "hostname"),
        "OS-DCF:diskConfig",
    }
    assert known["block_device_mapping_v2"] == {
        *("virtual_name", "volume_id", "snapshot_id", "volume_size", "device_name", "no_device"),
        *("delete_on_termination", "connection_info", "source_type", "uuid", "image_id", "tag"),
        *("destination_type", "guest_format", "device_type", "disk_bus", "boot_index"),
        "volume_type",
    }


def refusal(given: dict[str, Any], version: tuple[int, int] = NEWEST) -> str:
    """The message with which it is refused; every one is a 400."""
    with pytest.raises((ApiError, DomainError, ValidationError)) as refused:
        made(given, version)
    error = refused.value
    if isinstance(error, ValidationError):
        return invalid_input(error)
    assert isinstance(error, ApiError | DomainError)
    assert error.status == 400
    return str(error)
