"""What Cinder shows of a snapshot when it is asked again whether it has heard of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError, SnapshotView
from ledger.core.steps import snapshots

LANE = Lane(
    server_id="s", volume_id="v", bdm_id="b", attachment_id="a", device_name="vdb",
    snapshot={"id": "n", "file": "new"},
)  # fmt: skip


def showing(status: str, progress: str) -> Any:
    """A Cinder that does not wait for us: it refuses what it is told."""
    view = SnapshotView(
        id="n", volume_id="v", size_gb=1, project_id="p", status=status, progress=progress
    )

    def refuses(_snapshot_id: str, _status: str) -> None:
        raise PortError(ErrorKind.FINAL, "refused", "Provided snapshot status not allowed.")

    cinder = SimpleNamespace(snapshot=lambda _: view, tell_snapshot=refuses)
    return SimpleNamespace(cinder=cinder, uncertain=False)


@pytest.mark.parametrize("status", ["available", "deleting", "error_deleting"])
def test_a_snapshot_that_cinder_has_is_not_taken_back_whatever_is_done_to_it_since(
    status: str,
) -> None:
    context = showing(status, "100%")
    assert snapshots.snapshot_taken(LANE, context) == {}
    assert snapshots.snapshot_revoke(LANE, context) == {"passed": True}


@pytest.mark.parametrize("status", ["error", "deleting", "error_deleting"])
def test_a_snapshot_that_cinder_never_had_is_taken_back(status: str) -> None:
    context = showing(status, "0%")
    with pytest.raises(PortError, match=f"it is {status}"):
        snapshots.snapshot_taken(LANE, context)
    assert snapshots.snapshot_revoke(LANE, context) == {}
