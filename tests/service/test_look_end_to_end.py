"""Looks through all processes: asked for by the API, while operations run, and across kill -9."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.stack import Stack, eventually, running_stack

#: Attaches and detaches that run beside the looks.
ROUNDS = 6


@pytest.fixture
def stack(tmp_path: Path, database_url: str) -> Iterator[Stack]:
    with running_stack(tmp_path, database_url) as running:
        running.add_server()
        running.start_service()
        running.start_agent()
        running.wait_for_host()
        yield running


def asked(stack: Stack, **scope: str) -> str:
    answer = stack.http.post(stack.url("/v1/drift/runs"), json=scope, timeout=60)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["look_id"])


def ended(stack: Stack, look_id: str, number: int = 0) -> dict[str, Any]:
    def over() -> dict[str, Any] | None:
        answer = stack.get(f"/v1/drift/runs/{look_id}", number)
        shown: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
        return shown if shown.get("state") == "ended" else None

    return eventually(over, "the look's end", 120)


def drift(stack: Stack) -> list[tuple[str, str]]:
    rows = stack.get("/v1/drift").json()["findings"]
    return sorted((row["drift_class"], row["state"]) for row in rows)


def test_a_look_finds_what_somebody_did_to_cinder_and_nothing_before(stack: Stack) -> None:
    [server], volume = stack.servers, stack.add_volume(driver="iscsi")
    stack.completed(stack.attach(server, volume))
    first = ended(stack, asked(stack))
    assert (first["outcome"], first["found"], first["unknown"]) == ("completed", {}, {})
    assert {"attachment": 1, "volume": 1, "server": 1, "disk": 1}.items() <= first[
        "compared"
    ].items()
    [row] = list(stack.cinder.model.attachments.values())
    with stack.cinder.model.lock:
        stack.cinder.model.drop_attachment(row.id)
    second = ended(stack, asked(stack))
    assert second["found"] == {"attachment_lost": 1}
    assert drift(stack) == [("attachment_lost", "suspected")]


def test_what_the_settings_name_is_repaired_when_it_is_confirmed(stack: Stack) -> None:
    stack.components[0].stop()
    stack.settings = '[reconcile]\nautomatic = ["reservation_unknown"]\n'
    stack.start_service()
    [server], volume = stack.servers, stack.add_volume(driver="iscsi")
    stack.completed(stack.attach(server, stack.add_volume(driver="iscsi")))
    with stack.cinder.model.lock:
        row = stack.cinder.model.attachment_create(volume, server)
    assert ended(stack, asked(stack))["found"] == {"reservation_unknown": 1}
    assert drift(stack) == [("reservation_unknown", "suspected")]
    with psycopg.connect(stack.database_url, autocommit=True) as database:
        database.execute("UPDATE findings SET seen_at = seen_at - interval '2 minutes'")
    ended(stack, asked(stack))
    eventually(lambda: row.id not in stack.cinder.model.attachments, "the repair")
    [found] = eventually(
        lambda: stack.get("/v1/drift?state=over").json()["findings"], "the finding's end"
    )
    assert (found["drift_class"], found["over_how"]) == ("reservation_unknown", "repaired")


def test_looks_beside_running_operations_find_nothing(stack: Stack) -> None:
    """Each difference that they meet is claimed, or something has happened to it since."""
    [server], volumes = stack.servers, [stack.add_volume(driver="iscsi") for _ in range(2)]
    stack.completed(stack.attach(server, stack.add_volume(driver="iscsi")))

    def work(volume: str) -> None:
        for _ in range(ROUNDS):
            stack.completed(stack.attach(server, volume))
            stack.completed(stack.detach(server, volume))

    looks = []
    with ThreadPoolExecutor(len(volumes)) as threads:
        at_work = [threads.submit(work, volume) for volume in volumes]
        while not all(each.done() for each in at_work):
            looks.append(ended(stack, asked(stack)))
        for each in at_work:
            each.result()
    looks.append(ended(stack, asked(stack)))
    assert [(look["outcome"], look["found"]) for look in looks] == [("completed", {})] * len(looks)
    assert stack.get("/v1/drift?state=all").json()["findings"] == []


def test_another_process_goes_on_with_the_look_of_one_that_was_killed(stack: Stack) -> None:
    [server] = stack.servers
    stack.completed(stack.attach(server, stack.add_volume(driver="iscsi")))
    stack.cinder.faults.replace(
        [{"call": "volume_list", "do": "delay", "seconds": 1.0, "count": None}]
    )
    look_id = asked(stack)
    eventually(
        lambda: stack.get(f"/v1/drift/runs/{look_id}").json().get("state") == "under_way",
        "its beginning",
    )
    stack.components[0].kill()
    stack.cinder.faults.replace([])
    stack.start_service()  # where the agent finds it again
    shown = ended(stack, look_id)
    assert (shown["outcome"], shown["found"], shown["unknown"]) == ("completed", {}, {})
