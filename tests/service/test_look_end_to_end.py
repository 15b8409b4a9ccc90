"""Looks through all processes: asked for by the API, while operations run, and across kill -9."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from tests.stack import Stack, eventually

#: Attaches and detaches that run beside the looks.
ROUNDS = 6


def asked(ready: Stack, **scope: str) -> str:
    answer = ready.http.post(ready.url("/v1/drift/runs"), json=scope, timeout=60)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["look_id"])


def ended(ready: Stack, look_id: str, number: int = 0) -> dict[str, Any]:
    def over() -> dict[str, Any] | None:
        answer = ready.get(f"/v1/drift/runs/{look_id}", number)
        shown: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
        return shown if shown.get("state") == "ended" else None

    return eventually(over, "the look's end", 120)


def drift(ready: Stack) -> list[tuple[str, str]]:
    rows = ready.get("/v1/drift").json()["findings"]
    return sorted((row["drift_class"], row["state"]) for row in rows)


def test_a_look_finds_what_somebody_did_to_cinder_and_nothing_before(ready: Stack) -> None:
    [server], volume = ready.servers, ready.add_volume(driver="iscsi")
    ready.completed(ready.attach(server, volume))
    first = ended(ready, asked(ready))
    assert (first["outcome"], first["found"], first["unknown"]) == ("completed", {}, {})
    assert {"attachment": 1, "volume": 1, "server": 1, "disk": 1}.items() <= first[
        "compared"
    ].items()
    [row] = list(ready.cinder.model.attachments.values())
    with ready.cinder.model.lock:
        ready.cinder.model.drop_attachment(row.id)
    second = ended(ready, asked(ready))
    assert second["found"] == {"attachment_lost": 1}
    assert drift(ready) == [("attachment_lost", "suspected")]


def test_what_the_settings_name_is_repaired_when_it_is_confirmed(ready: Stack) -> None:
    ready.components[0].stop()
    ready.settings = '[reconcile]\nautomatic = ["reservation_unknown"]\n'
    ready.start_service()
    [server], volume = ready.servers, ready.add_volume(driver="iscsi")
    ready.completed(ready.attach(server, ready.add_volume(driver="iscsi")))
    with ready.cinder.model.lock:
        row = ready.cinder.model.attachment_create(volume, server)
    assert ended(ready, asked(ready))["found"] == {"reservation_unknown": 1}
    assert drift(ready) == [("reservation_unknown", "suspected")]
    with psycopg.connect(ready.database_url, autocommit=True) as database:
        database.execute("UPDATE findings SET seen_at = seen_at - interval '2 minutes'")
    ended(ready, asked(ready))
    eventually(lambda: row.id not in ready.cinder.model.attachments, "the repair")
    [found] = eventually(
        lambda: ready.get("/v1/drift?state=over").json()["findings"], "the finding's end"
    )
    assert (found["drift_class"], found["over_how"]) == ("reservation_unknown", "repaired")


def test_looks_beside_running_operations_find_nothing(ready: Stack) -> None:
    """Each difference that they meet is claimed, or something has happened to it since."""
    [server], volumes = ready.servers, [ready.add_volume(driver="iscsi") for _ in range(2)]
    ready.completed(ready.attach(server, ready.add_volume(driver="iscsi")))

    def work(volume: str) -> None:
        for _ in range(ROUNDS):
            ready.completed(ready.attach(server, volume))
            ready.completed(ready.detach(server, volume))

    looks = []
    with ThreadPoolExecutor(len(volumes)) as threads:
        at_work = [threads.submit(work, volume) for volume in volumes]
        while not all(each.done() for each in at_work):
            looks.append(ended(ready, asked(ready)))
        for each in at_work:
            each.result()
    looks.append(ended(ready, asked(ready)))
    assert [(look["outcome"], look["found"]) for look in looks] == [("completed", {})] * len(looks)
    assert ready.get("/v1/drift?state=all").json()["findings"] == []


def test_another_process_goes_on_with_the_look_of_one_that_was_killed(ready: Stack) -> None:
    [server] = ready.servers
    ready.completed(ready.attach(server, ready.add_volume(driver="iscsi")))
    ready.cinder.faults.replace(
        [{"call": "volume_list", "do": "delay", "seconds": 1.0, "count": None}]
    )
    look_id = asked(ready)
    eventually(
        lambda: ready.get(f"/v1/drift/runs/{look_id}").json().get("state") == "under_way",
        "its beginning",
    )
    ready.components[0].kill()
    ready.cinder.faults.replace([])
    ready.start_service()  # where the agent finds it again
    shown = ended(ready, look_id)
    assert (shown["outcome"], shown["found"], shown["unknown"]) == ("completed", {}, {})
