"""What the ledger's own steps ask Cinder for when a growth, a conversion or a migration ends; and
what they make of an error that nobody foresaw.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from handlers.engine.verbs import LedgerVerb
from host_agent.shared.contract.lane import LaneSide
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError
from tests.unit.test_effects import LANE, SERVER, VOLUME, Cinder, do, known, row

EXTENSION = {
    LedgerVerb.EXTENSION_COMPLETE: False,
    LedgerVerb.EXTENSION_FAIL: True,
    LedgerVerb.EXTENSION_REVOKE: True,
}


@pytest.mark.parametrize("verb", EXTENSION)
@pytest.mark.parametrize("status", ["extending", "error_extending", "in-use"])
def test_cinder_hears_how_a_growth_ended_if_it_waits_for_that(
    verb: LedgerVerb, status: str
) -> None:
    """Undone too late is done: it has heard, and the volume is in use with its new size."""
    cinder, said = Cinder(status=status), list[tuple[str, bool]]()

    def completion(volume_id: str, *, error: bool) -> None:
        said.append((volume_id, error))

    vars(cinder)["extend_volume_completion"] = completion
    late = verb == LedgerVerb.EXTENSION_REVOKE and status == "in-use"
    assert do(verb, cinder) == ({"passed": True} if late else {})
    assert said == ([(VOLUME, EXTENSION[verb])] if status == "extending" else [])


@pytest.mark.parametrize("has_a_row", [False, True])
def test_a_conversion_puts_a_reservation_in_the_place_of_the_old_calls_row(
    has_a_row: bool,
) -> None:
    """Where Cinder has no row that holds the volume for the server, the old calls make one first;
    what the log knows by its id stays.
    """
    old, ours = row("attached"), row("attached")
    cinder = Cinder(old, ours) if has_a_row else Cinder()
    lane = replace(LANE, legacy=True, access_mode="ro")
    made = do(LedgerVerb.RESERVATION_CONVERT, cinder, known(ours.id), lane=lane)
    create = ("attachment_create", VOLUME, SERVER, "ro")
    first = [] if has_a_row else [("attach", VOLUME, SERVER, "/dev/vdb", "", "ro")]
    last = [("attachment_delete", old.id)] if has_a_row else []
    changing = [asked for asked in cinder.asked if "detaching" not in asked[0]]
    assert changing == [*first, create, *last]
    assert set(made) == {"attachment_id"}


# --- what goes wrong -----------------------------------------------------------------------------


def test_an_error_nobody_foresaw_is_unknown_and_its_text_is_kept_out() -> None:
    """It may hold anything, secrets too."""
    cinder = Cinder()
    cinder.refuses = RuntimeError("password=hunter2")  # type: ignore[assignment]
    lane = replace(LANE, delete_on_termination=True)
    with pytest.raises(PortError) as raised:
        do(LedgerVerb.VOLUME_DELETE, cinder, lane=lane)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.UNKNOWN, "internal")
    assert "RuntimeError" in raised.value.message
    assert "hunter2" not in raised.value.message


@pytest.mark.parametrize("verb", [LedgerVerb.MIGRATION_COMPLETE, LedgerVerb.MIGRATION_FAIL])
def test_cinder_hears_how_its_migration_ended_by_both_ids_of_the_volume(verb: str) -> None:
    new = str(uuid4())
    lane = replace(LANE, volume_id=new, other=LaneSide(volume_id=VOLUME))
    said: list[tuple[str, str, bool]] = []
    cinder = Cinder()

    def completion(old: str, new: str, *, error: bool) -> str:
        said.append((old, new, error))
        return old

    vars(cinder)["migrate_volume_completion"] = completion
    failed = verb is LedgerVerb.MIGRATION_FAIL
    assert do(verb, cinder, lane=lane) == ({} if failed else {"volume_id": VOLUME})
    assert said == [(VOLUME, new, failed)]
