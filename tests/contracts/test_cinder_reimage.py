"""An image is written to a volume: what the simulated Cinders do, as read in cinder 29.0.0
(cinder/volume/api.py and manager.py, reimage; cinder/api/contrib/volume_actions.py).

The lab's Cinder needs a Glance even to refuse: there tests/lab/test_reimage.py does it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from host_agent.shared.contract.messages import ErrorKind
from ledger.trial.cinder.model import work as cinder_work
from ledger.trial.cinder.model.model import VOLUME_STATUSES, CinderModel
from ledger.trial.cinder.model.rows import CinderFault
from ledger.trial.cinder.store import CinderStore
from tests.contracts.cinder_compute import running_compute
from tests.contracts.cinder_worlds import (
    SimulatedWorld,
    client_of,
    connector,
    new_uuid,
    refusal,
    status,
    until,
)
from tests.doubles.direct_cinder import DirectCinder
from tests.doubles.running_cinder import running_cinder


def test_a_reserved_volume_gets_the_image_and_is_reserved_again(simulated: SimulatedWorld) -> None:
    volume, image = simulated.new_volume(), new_uuid()
    simulated.port.attachment_create(volume, new_uuid())
    assert simulated.port.volume(volume).image_id is None
    simulated.port.volume_reimage(volume, image)
    until(lambda: status(simulated, volume) != "downloading", "the image is written")
    seen = simulated.port.volume(volume)
    assert (seen.status, seen.image_id, seen.bootable) == ("reserved", image, True)


def test_a_volume_of_two_attachments_gets_none(simulated: SimulatedWorld) -> None:
    volume, server = simulated.new_volume(), new_uuid()
    for _ in range(2):
        simulated.port.attachment_create(volume, server)
    refused = refusal(lambda: simulated.port.volume_reimage(volume, new_uuid()))
    assert (refused.kind, refused.code) == (ErrorKind.FINAL, "refused")
    assert status(simulated, volume) == "reserved"


def test_nor_does_one_that_somebody_has_or_that_there_is_not(simulated: SimulatedWorld) -> None:
    volume = simulated.new_volume()
    simulated.port.attachment_create(volume, new_uuid(), connector())
    assert refusal(lambda: simulated.port.volume_reimage(volume, new_uuid())).code == "refused"
    assert refusal(lambda: simulated.port.volume_reimage(new_uuid(), new_uuid())).code == (
        "not_found"
    )


@pytest.mark.parametrize("reserved", [False, True])
@pytest.mark.parametrize("state", VOLUME_STATUSES)
def test_the_status_decides_and_comes_back_also_if_it_was_an_error(
    state: str, reserved: bool
) -> None:
    model = CinderModel()
    volume, image = model.add_volume(), new_uuid()
    volume.status = state
    allowed = {"available", "error"} | ({"reserved"} if reserved else set())
    if state not in allowed:
        with pytest.raises(CinderFault) as refused:
            cinder_work.begin_reimage(model, volume, image, reserved=reserved)
        assert (refused.value.status, volume.status) == (400, state)
        return
    cinder_work.begin_reimage(model, volume, image, reserved=reserved)
    assert volume.status == "downloading"
    volume.end_imaging()
    assert (volume.status, volume.image_id) == (state, image)


def test_a_failure_is_an_error_and_leaves_the_image_from_before() -> None:
    model = CinderModel()
    volume = model.add_volume(image_id="before")
    cinder_work.begin_reimage(model, volume, new_uuid())
    volume.end_imaging(error=True)
    assert (volume.status, volume.image_id) == ("error", "before")


def test_the_server_of_a_reserved_volume_is_told_and_nobody_else() -> None:
    with running_compute(202) as compute, running_cinder(compute_endpoint=compute.url) as running:
        port, server = client_of(running), new_uuid()
        alone, reserved = (running.model.add_volume().id for _ in range(2))
        port.attachment_create(reserved, server)
        for volume in (alone, reserved):
            port.volume_reimage(volume, new_uuid())
        until(lambda: running.model.volume(alone).image_id is not None, "the image is written")
        until(lambda: bool(compute.asked), "the server is told")
        port.close()
    [told] = compute.asked
    event = {"name": "volume-reimaged", "server_uuid": server, "tag": reserved}
    assert (told.path, told.version) == ("/v2.1/os-server-external-events", "compute 2.93")
    assert told.body == {"events": [event]}


def test_before_3_68_nothing_is_written() -> None:
    assert DirectCinder(CinderModel()).reimages()
    assert not DirectCinder(CinderModel(), max_version=(3, 67)).reimages()


def test_what_is_written_survives_a_restart(tmp_path: Path) -> None:
    model, again, store = CinderModel(), CinderModel(), CinderStore(tmp_path / "cinder.json")
    volume, image = model.add_volume(), new_uuid()
    cinder_work.begin_reimage(model, volume, image)
    store.save(model)
    store.load(again)
    for _ in range(3):
        again.read_volume(volume.id)
    assert (again.volume(volume.id).status, again.volume(volume.id).image_id) == (
        "available",
        image,
    )
