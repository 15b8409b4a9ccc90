"""attachment-ledger: the service and everything one can ask of it."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

#: Besides `ledger`.  The agent's program has but the package that it is in itself.
_OURS = ("aggregates", "handlers", "host_agent", "projections", "sql")


def main() -> int:
    if foreign := _foreign():
        return _refuse(
            f"{foreign} is another package, and has the name of one of ours. Install "
            "attachment-ledger in an environment of its own, and start it without PYTHONPATH, and "
            "with 'python -m' from no directory that has a package of that name"
        )
    try:
        from ledger.cli import shell
    except ModuleNotFoundError as error:
        if str(error.name).startswith("ledger"):
            raise
        return _refuse(
            f"{error.name} is not installed: the service and its command line "
            "need the extra 'service' (pip install 'attachment-ledger[service]')"
        )
    return shell.main()


def _foreign() -> str | None:
    """The file that Python would import for a package of ours and is none: python-sql has a
    `sql`, too.

    It lies elsewhere, or an installation into the same directory has written it over ours.  The
    others are only words in their `__init__.py`: written over, they do as well.
    """
    for name in _OURS:
        spec = find_spec(name)
        origin = spec and spec.origin
        if not origin:
            continue
        elsewhere = Path(origin).parents[1] != Path(__file__).parents[1]
        if elsewhere or (name == "sql" and "def query(" not in Path(origin).read_text("utf-8")):
            return origin
    return None


def _refuse(why: str) -> int:
    print(f"attachment-ledger: {why}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
