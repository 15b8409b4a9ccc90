"""Run the embedded PostgreSQL for the lab until SIGTERM: postgres.py DIRECTORY DSN-FILE.

A process of its own, so that the service can be killed without its database.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from ledger.trial.embedded import EmbeddedPostgres


def main() -> None:
    directory, dsn_file = map(Path, sys.argv[1:])
    with EmbeddedPostgres() as server:
        dsn_file.write_text(server.start(directory))
        while True:
            signal.pause()


if __name__ == "__main__":
    main()
