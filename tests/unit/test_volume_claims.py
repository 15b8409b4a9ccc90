"""Who may work on a volume beside whom."""

from __future__ import annotations

from typing import Any

import pytest

from aggregates import errors
from aggregates.volume import Volume, VolumeClaim
from tests.unit.test_aggregate_facts import ID


def claimed(**by: Any) -> Volume:
    volume = Volume(ID)
    volume.claim("op", **by)
    return volume


def test_a_claim_says_all_that_the_operation_does() -> None:
    volume = claimed(
        server_id="s", flow="attach", shared=True, reserves=True, takes=["i", "h"], hosts=["j", "h"]
    )
    assert volume.claims == {
        "op": VolumeClaim(
            server_id="s",
            flow="attach",
            shared=True,
            reserves=True,
            takes=frozenset({"h", "i"}),
            hosts=frozenset({"h", "j"}),
        )
    }
    [event] = volume.collect_events()
    assert (vars(event)["takes"], vars(event)["hosts"]) == (["h", "i"], ["h", "j"])


def test_who_works_for_a_server_is_refused_for_it_alone() -> None:
    volume = claimed(server_id="s")
    volume.refuse_working("t")
    with pytest.raises(errors.ClaimedError, match="op"):
        volume.refuse_working("s")


@pytest.mark.parametrize(
    ("server", "shared", "refused"),
    [("s", True, True), ("t", True, False), ("t", False, True)],
    ids=["the same server", "beside on a shared one", "one server at a time"],
)
def test_what_changes_no_connection_goes_on_beside_other_servers_of_a_shared_volume(
    server: str, shared: bool, refused: bool
) -> None:
    volume = claimed(server_id="s", flow="attach", shared=True, takes=["h"], hosts=["h"])
    if refused:
        with pytest.raises(errors.ClaimedError, match="op"):
            volume.refuse_beside(server, shared=shared)
    else:
        volume.refuse_beside(server, shared=shared)


@pytest.mark.parametrize(
    ("flow", "server", "shared", "refused"),
    [
        ("detach", "s", True, True),
        ("delete", "s", True, True),
        ("detach", "t", False, True),
        ("detach", "t", True, False),
        ("attach", "s", False, False),
    ],
)
def test_a_volume_that_leaves_this_server_or_the_only_one_is_awaited(
    flow: str, server: str, shared: bool, refused: bool
) -> None:
    volume = claimed(server_id="s", flow=flow, shared=True)
    if refused:
        with pytest.raises(errors.ClaimedError, match="op"):
            volume.refuse_leaving(server, shared=shared)
    else:
        volume.refuse_leaving(server, shared=shared)


def test_a_parked_operation_takes_no_host_any_more_and_says_so_once() -> None:
    volume = claimed(server_id="s", shared=True, takes=["h"], hosts=["h"])
    volume.narrow("another")
    assert volume.claims["op"].takes == {"h"}
    volume.narrow("op")
    assert (*volume.claims["op"].takes, *volume.claims["op"].hosts) == ("h",)
    version = volume.version
    volume.narrow("op")
    assert volume.version == version
    volume.release("another")
    volume.release("op")
    assert volume.claims == {}
