"""attachment-ledger: the service and everything one can ask of it."""

from __future__ import annotations

import sys


def main() -> int:
    try:
        from ledger.cli import shell
    except ModuleNotFoundError as error:
        if str(error.name).startswith("ledger"):
            raise
        print(
            f"attachment-ledger: {error.name} is not installed: the service and its command line "
            "need the extra 'service' (pip install 'attachment-ledger[service]')",
            file=sys.stderr,
        )
        return 1
    return shell.main()


if __name__ == "__main__":
    sys.exit(main())
