"""A process that keeps the projections current until it is killed: `python projecting.py DSN`."""

from __future__ import annotations

import logging
import signal
import sys

from projections.catalog import ALL
from projections.running.runner import ProjectionRunner

if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    ProjectionRunner(sys.argv[1], ALL).start()
    signal.pause()
