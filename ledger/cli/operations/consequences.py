"""Asks what the acts on an operation would do; `ledger.words.consequences` has the words."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ledger.words.consequences import Known, Operation, dry_runs

if TYPE_CHECKING:
    from ledger.cli.client import Client


def learn(client: Client, operation: Operation) -> Known:
    """Where its volumes are attached, and what its acts would leave.  Changes nothing."""
    from ledger.cli.client import ApiError, ClientError

    known = Known()
    if operation["state"] != "parked":
        return known
    with suppress(ClientError):
        found = client.get("/v1/attachments", server=operation["server_id"])["attachments"]
        volumes = operation["volume_ids"]
        known.attachments.extend(each for each in found if each["volume_id"] in volumes)
    path = f"/v1/operations/{operation['operation_id']}/actions?dry_run=true"
    for act, body in dry_runs(operation):
        try:
            acted = client.post(path, body)
            known.leaves[act] = [each["detail"] for each in acted["remnants"]]
        except ApiError as error:
            if error.status == 409:  # noqa: PLR2004
                known.refused[act] = str(error)
        except ClientError:
            pass
    return known
