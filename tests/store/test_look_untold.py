"""A look at a Cinder that answers its lists, and fails for single volumes and attachments."""

from __future__ import annotations

from typing import Any

import pytest

from tests.store.looking import HOST, Cloud
from tests.store.test_look import lost


def fails(cloud: Cloud, *calls: str) -> None:
    """Cinder answers these with 500, and all else as ever."""
    faults = [{"call": call, "do": "fail", "status": 500, "count": None} for call in calls]
    cloud.cinder.faults.replace(faults)


@pytest.mark.parametrize("width", ["volume", "all"])
def test_of_what_cinder_does_not_tell_nothing_is_found_or_over_and_the_look_says_so(
    cloud: Cloud, width: str
) -> None:
    """And it goes on with the rest: what is told in a list, and what it asks others for."""
    row, gone = lost(cloud), cloud.in_cinder(cloud.attached().volume_id, cloud.server(deleted=True))
    cloud.look()
    cloud.later()
    cloud.model.drop_attachment(gone.id)
    stranger = cloud.in_cinder(row.volume_id, row.instance, status="reserved", host=None)
    fails(cloud, "attachment_show")
    volumes = {row.volume_id, gone.volume_id}
    scopes = [{"volume": each} for each in volumes] if width == "volume" else [{}]
    ended = [cloud.look(**scope) for scope in scopes]
    assert {each.outcome for each in ended} == {"completed"}
    assert [each.found for each in ended if each.found] == []
    told = {name: why for each in ended for name, why in each.unknown.items()}
    assert set(told) == {f"volume {each}" for each in volumes}
    assert all("fail of attachment_show" in why for why in told.values())
    assert set(cloud.states().values()) == {"suspected"}
    fails(cloud)
    assert cloud.look().found == {"reservation_unknown": 1}
    assert stranger.id in {row["key"] for row in cloud.findings().values()}
    assert cloud.states()["owner_gone"] == "over"


def test_of_a_volume_that_cinder_refuses_to_show_nothing_is_over(cloud: Cloud) -> None:
    gone = cloud.in_cinder(cloud.attached().volume_id, cloud.server(deleted=True))
    cloud.look()
    refused = {"call": "volume_show", "do": "fail", "status": 400, "count": None}
    cloud.cinder.faults.replace([refused])
    assert set(cloud.look(volume=gone.volume_id).unknown) == {f"volume {gone.volume_id}"}
    assert cloud.states() == {"owner_gone": "suspected"}


@pytest.mark.parametrize("width", ["volume", "all"])
def test_a_cinder_that_fails_everywhere_makes_the_look_void(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    """From the moment on at which it does; a look at a part has no list to ask for after that."""
    monkeypatch.setattr("ledger.reconcile.cinder_side.PATIENCE_S", 0.0)
    monkeypatch.setattr("ledger.reconcile.look.PATIENCE_S", 0.0)
    row, found = lost(cloud), cloud.lists.volume

    def falls(volume_id: str) -> Any:
        fails(cloud, *EVERYWHERE)
        return found(volume_id)

    monkeypatch.setattr(cloud.lists, "volume", falls)
    ended = cloud.look(**({"volume": row.volume_id} if width == "volume" else {}))
    assert (ended.outcome, ended.found, cloud.findings()) == ("void", {}, {})


EVERYWHERE = ("attachment_list", "attachment_show", "volume_list", "volume_show")


def test_one_volume_that_cinder_does_not_tell_of_does_not_keep_a_look_from_being_believed(
    cloud: Cloud,
) -> None:
    cloud.attached()
    fails(cloud, "attachment_show")
    assert cloud.look().outcome == "completed"
    fails(cloud, "attachment_show", "volume_show", "attachment_list")
    ended = cloud.look(host=HOST)
    assert ended.outcome == "void"
    assert "fail of volume_show" in str(ended.trouble)
    assert "role" not in str(ended.trouble)
