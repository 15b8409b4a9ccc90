"""What is accepted is not lost, and how long nothing is accepted, while PostgreSQL's cluster fails.

Two services, two agents, a Cinder over HTTP, and users who attach and detach all the time, beside a
writer that knows nothing but the DSN: its pause is the cluster's own.  Each case twice, in turns.
The figures are in docs/log.md.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Event

import psycopg
import pytest

from ledger.log import schema
from tests.chaos.work import HOSTS, REST_S, Work
from tests.ha.patroni import CASES, OUTAGES, Case, Cluster, running_cluster
from tests.stack import eventually, running_stack

pytestmark = pytest.mark.lab

#: Work before a case; how long it may take until it is accepted again; how long that has to last.
BEFORE_S, AGAIN_S, LASTS_S = 5.0, 150.0, 10.0
HOME = Path("/var/tmp/attachment-ledger-ha")
#: How much longer than the cluster itself the ledger may pause, in seconds.
BESIDE_S = float(os.environ.get("HA_BESIDE_S", "3"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(HOME) as cluster:
        yield cluster


class Writer(threading.Thread):
    """A row each 100 ms, by a new line whenever one fails."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._dsn, self._ended, self.stored = dsn, Event(), list[float]()

    def run(self) -> None:
        while not self._ended.is_set():
            with suppress(psycopg.Error), psycopg.connect(self._dsn, autocommit=True) as line:
                while not self._ended.wait(0.1):
                    line.execute("INSERT INTO beats DEFAULT VALUES")
                    self.stored.append(time.monotonic())
            self._ended.wait(0.1)

    def end(self) -> None:
        self._ended.set()
        self.join()


def pause(moments: Sequence[float], since: float) -> float:
    """The longest time between two of these, of those that end after `since`."""
    return max((b - a for a, b in pairwise(sorted(moments)) if b > since), default=0.0)


@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_nothing_that_was_accepted_is_lost(
    cluster: Cluster, tmp_path: Path, case: Case, turn: int
) -> None:
    """`turn`: a node that was mended may lead now."""
    eventually(cluster.is_whole, "the cluster is whole", REST_S)
    name = f"ledger_{time.time_ns()}"
    with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name}")
    with psycopg.connect(cluster.dsn(name), autocommit=True) as db:
        db.execute("CREATE TABLE beats (at timestamptz DEFAULT now())")
    schema.upgrade(cluster.dsn(name))
    with running_stack(tmp_path, cluster.dsn(name), hosts=HOSTS) as stack:
        run, writer = Work(stack), Writer(cluster.dsn(name))
        run.begin()
        writer.start()
        run.ask(partial(_strike, run, writer, cluster, case))
        writer.end()
        eventually(cluster.is_whole, "the cluster is whole again", REST_S)
        run.rest()
        run.judge()


def _strike(
    run: Work,
    writer: Writer,
    cluster: Cluster,
    case: Case,
) -> None:
    eventually(lambda: len(run.accepted) > 10, "work is done")
    time.sleep(BEFORE_S)  # a time of work, not of waiting
    struck = time.monotonic()
    mend = case(cluster)

    def goes_on() -> bool:
        """Accepted again, for a while, by the ledger and by the writer."""
        now = time.monotonic()
        both = [[at for at in each if at > now - LASTS_S] for each in (run.accepted, writer.stored)]
        return now > struck + LASTS_S and all(
            pause([*each, now], 0) < 5 and len(each) > 5 for each in both
        )

    try:
        eventually(goes_on, "it is accepted again", AGAIN_S)
    finally:
        mend()
    ours, own = pause(run.accepted, struck), pause(writer.stored, struck)
    figures = {"case": case.__name__, "ledger_s": round(ours, 1), "postgresql_s": round(own, 1)}
    figures |= {"accepted": len(run.accepted), "answers": dict(run.told.answers)}
    sys.stderr.write(f"\n{json.dumps(figures)}\n")
    assert ours <= max(own, OUTAGES.get(case, 0.0)) + BESIDE_S
