"""Observing a large cloud: python -m tests.benchmarks.observe [VOLUMES].

Nova and Cinder are answers from memory, as for the survey's figures; the log and its projections
are real.  So the figures are of our own work.
"""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace
from typing import Any, cast

from ledger.config import Observe
from ledger.log.application import Ledger
from ledger.nova_beside.observer import Observation, Observer, ObserverState
from ledger.nova_beside.reads import CloudReader
from projections.catalog import ALL
from projections.running.runner import ProjectionRunner
from tests.benchmarks.servers import server
from tests.benchmarks.survey import HEADERS, PER_SERVER, VOLUMES, Played, clouds, id_of


class WithMappings:
    """The Nova of the survey's figures, which tells mappings, too."""

    def __init__(self, lists: Played) -> None:
        self._lists, self.session = lists, lists.session

    def get(self, path: str, params: dict[str, Any], headers: dict[str, str]) -> Any:
        if "/os-" not in path:
            return self._lists.get(path, params, headers)
        nth = int(path.split("/")[2].replace("-", ""), 16) & 0xFFFF_FFFF
        if "/os-instance-actions" in path:
            told = {"instanceActions": [_action(nth, each) for each in _ASKED]}
            text = json.dumps(told)
            return SimpleNamespace(headers=HEADERS, json=lambda: json.loads(text))
        rows = [
            {
                "volumeId": id_of(1, number),
                "attachment_id": id_of(2, number),
                "bdm_uuid": id_of(4, number),
                "device": f"/dev/vd{'bcdefg'[number % PER_SERVER]}",
                "tag": None,
                "delete_on_termination": False,
            }
            for number in range(nth * PER_SERVER, (nth + 1) * PER_SERVER)
        ]
        text = json.dumps({"volumeAttachments": rows})
        return SimpleNamespace(headers=HEADERS, json=lambda: json.loads(text))


_ASKED = [*["attach_volume"] * PER_SERVER, "create"]


def _action(nth: int, action: str) -> dict[str, Any]:
    who = {"user_id": id_of(5, nth), "project_id": id_of(6, nth), "request_id": f"req-{nth}"}
    return {"action": action, "start_time": "2026-11-01T12:00:00.000000", "message": None, **who}


def main(volumes: int) -> None:
    nova, cinder = clouds(volumes)
    with server() as dsn:
        ledger, runner = Ledger(dsn), ProjectionRunner(dsn, ALL)
        runner.start()
        settings = Observe(auth={"auth_type": "admin_token", "endpoint": "http://x", "token": "x"})
        observer = Observer(dsn, ledger, settings, time.time)
        observer._reader = CloudReader(
            cast("Any", WithMappings(nova)), cast("Any", cinder), time.time
        )
        state, looks, requests = ObserverState(), 0, 0
        began, cpu = time.monotonic(), time.process_time()
        more = True
        while more:
            look = Observation(id=f"req-{looks}", began=observer._now())
            observer._look(look, state)
            looks, requests = looks + 1, requests + observer._reader.requests
            state, more = ObserverState(looked_at=look.began), look.more
            runner.projected(ledger.log_recorder.max_notification_id() or 0).result(3600)
        took, used = time.monotonic() - began, time.process_time() - cpu
        events = ledger.log_recorder.max_notification_id() or 0
        began, cpu = time.monotonic(), time.process_time()
        again = Observation(id="req-again", began=observer._now())
        observer._look(again, state)
        quiet = (time.monotonic() - began, time.process_time() - cpu)
        runner.stop()
        ledger.close()
    sys.stdout.write(
        f"{volumes} attachments of {volumes // PER_SERVER} servers: first history in {looks} looks,"
        f" {requests} requests, {took:.0f} s ({used:.0f} s of CPU), {events} events; a look that"
        f" sees nothing new: {observer._reader.requests} requests, {quiet[0]:.1f} s"
        f" ({quiet[1]:.1f} s of CPU), {again.recorded} recorded\n"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else VOLUMES)
