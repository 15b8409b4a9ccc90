"""A process that appends until it is killed, telling on stdout what was acknowledged.

`python load.py DSN THREADS [APPENDS_PER_THREAD]` - each append has two events of one new
aggregate and one event of another; each line is "position position position".
"""

from __future__ import annotations

import itertools
import sys
import threading
from uuid import uuid4

import structlog
from eventsourcing.persistence import StoredEvent

from ledger.log.recorder import LedgerRecorder


def append_on_and_on(recorder: LedgerRecorder, appends: int | None) -> None:
    for _ in itertools.repeat(None) if appends is None else itertools.repeat(None, appends):
        one, two = uuid4(), uuid4()
        positions = recorder.insert_events(
            [
                StoredEvent(one, 1, "Test.Happened", b"{}"),
                StoredEvent(one, 2, "Test.Happened", b"{}"),
                StoredEvent(two, 1, "Test.Happened", b"{}"),
            ]
        )
        sys.stdout.write(" ".join(map(str, positions)) + "\n")
        sys.stdout.flush()


def main(dsn: str, threads: int, appends: int | None) -> None:
    # stdout is for what was acknowledged; structlog writes there if nobody tells it otherwise.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    recorder = LedgerRecorder(dsn)
    workers = [
        threading.Thread(target=append_on_and_on, args=(recorder, appends)) for _ in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    recorder.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
