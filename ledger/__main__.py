"""attachment-ledger: the service and everything one can ask of it."""

from __future__ import annotations

import sys

from ledger.cli.shell import main

if __name__ == "__main__":
    sys.exit(main())
