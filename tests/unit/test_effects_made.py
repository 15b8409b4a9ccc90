"""What the ledger's own steps do about volumes that they make, and what they leave alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from aggregates.mapping import BlockDeviceMapping
from aggregates.volume import Volume
from handlers.engine.verbs import LedgerVerb
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError
from tests.unit.test_effects import BDM, LANE, MAKES, SERVER, VOLUME, Cinder, do, view


def logged(volume_id: str = VOLUME, mark: str = BDM) -> Volume:
    """A volume that the log has as made."""
    volume = Volume(UUID(volume_id))
    volume.made(SERVER, mark)
    return volume


def test_a_volume_that_the_log_has_is_not_made_again_and_one_with_its_mark_alone_is_not_taken() -> (
    None
):
    cinder = Cinder()
    cinder.made = [view(id=VOLUME)]
    assert do(LedgerVerb.VOLUME_CREATE, cinder, logged(), lane=MAKES)["volume_id"] == VOLUME
    assert cinder.asked == []
    assert do(LedgerVerb.VOLUME_CREATE, cinder, lane=MAKES)["volume_id"] != VOLUME
    assert cinder.asked == [("volume_create", BDM)]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("available", None),
        ("reserved", None),
        ("in-use", None),
        ("creating", ErrorKind.RETRYABLE),
        ("downloading", ErrorKind.RETRYABLE),
        ("error", ErrorKind.FINAL),
        ("error_extending", ErrorKind.FINAL),
    ],
)
def test_a_volume_that_is_made_is_awaited_until_it_can_be_had(
    status: str, kind: ErrorKind | None
) -> None:
    cinder = Cinder(status=status)
    if kind is None:
        assert do(LedgerVerb.VOLUME_AWAIT, cinder, lane=MAKES) == {}
        return
    with pytest.raises(PortError, match=f"{VOLUME}.*{status}") as raised:
        do(LedgerVerb.VOLUME_AWAIT, cinder, lane=MAKES)
    code = "volume_error" if kind is ErrorKind.FINAL else "volume_not_ready"
    assert (raised.value.kind, raised.value.code) == (kind, code)


def test_s3_a_volume_that_was_made_of_a_multi_attach_type_is_not_had() -> None:
    cinder = Cinder()
    cinder.volume = lambda volume_id: view(id=volume_id, multiattach=True)  # type: ignore[method-assign]
    with pytest.raises(PortError, match="multi-attach") as raised:
        do(LedgerVerb.VOLUME_AWAIT, cinder, lane=MAKES)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.FINAL, "made_multiattach")
    assert do(LedgerVerb.VOLUME_AWAIT, cinder, lane=LANE) == {}, "a volume that is there may be"


def test_what_the_log_has_as_made_goes_but_not_before_cinder_has_made_it() -> None:
    cinder, given_up = Cinder(), Volume(UUID(str(uuid4())))
    given_up.record(Volume.VolumeDeleted, server_id=SERVER, why="made twice")
    copy, going, second = str(uuid4()), str(uuid4()), str(given_up.id)
    known = (logged(), given_up, logged(going), logged(copy, str(uuid4())))
    cinder.made = [view(), view(id=second, status="error"), view(id=copy)]
    cinder.made.append(view(id=going, status="deleting"))
    done = do(LedgerVerb.VOLUME_UNMAKE, cinder, *known, lane=MAKES)
    assert done["deleted"] == [VOLUME, second]
    assert done["left"].keys() == {copy}
    cinder.made = [view(status="downloading")]
    with pytest.raises(PortError) as raised:
        do(LedgerVerb.VOLUME_UNMAKE, cinder, logged(), lane=MAKES)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.RETRYABLE, "volume_not_ready")
    assert cinder.asked == [("volume_delete", VOLUME), ("volume_delete", second)]


def test_what_the_log_has_as_made_goes_also_if_somebody_has_taken_its_mark_off() -> None:
    cinder, lane = Cinder(), replace(MAKES, volume_id=VOLUME)
    assert do(LedgerVerb.VOLUME_UNMAKE, cinder, logged(), lane=lane) == {"deleted": [VOLUME]}
    assert do(LedgerVerb.VOLUME_UNMAKE, cinder, lane=lane) == {}, "the log has it not as made"


def test_a_volume_goes_though_cinder_does_not_show_its_reservations() -> None:
    """Whether there are any the deletion tells."""
    cinder = Cinder()
    cinder.made = [view(id=VOLUME)]

    def hidden(*_: Any) -> Any:
        raise PortError(ErrorKind.FINAL, "forbidden", "Policy does not allow it.")

    vars(cinder)["attachments"] = hidden
    assert do(LedgerVerb.VOLUME_UNMAKE, cinder, logged(), lane=MAKES) == {"deleted": [VOLUME]}
    assert cinder.asked == [("volume_delete", VOLUME)]


def test_a_volume_that_the_server_has_is_not_unmade() -> None:
    mapping = BlockDeviceMapping(UUID(BDM))
    mapping.volume_id = VOLUME
    cinder = Cinder()
    cinder.made = [view()]
    assert do(LedgerVerb.VOLUME_UNMAKE, cinder, mapping, lane=MAKES) == {}
    assert cinder.asked == []


@pytest.mark.parametrize(
    "verb", [LedgerVerb.VOLUME_CREATE, LedgerVerb.VOLUME_AWAIT, LedgerVerb.VOLUME_UNMAKE]
)
def test_nothing_is_made_awaited_or_unmade_of_a_disk_that_brings_its_volume(verb: str) -> None:
    cinder = Cinder(status="error")
    assert do(verb, cinder) == {}
    assert cinder.asked == []
