"""What the ledger's own steps ask Cinder for at the end of a growth and of a conversion."""

from __future__ import annotations

from dataclasses import replace

import pytest

from handlers.plan import LedgerVerb
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
