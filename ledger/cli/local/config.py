"""`config show`: the settings in force, without their secrets."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from ledger.cli.base import ShowOne
from ledger.cli.local import settings


class ShowConfig(settings.Configured, ShowOne):
    """Show the settings that 'serve' would use, and check them."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from ledger import config

        shown = config.shown(settings.load(parsed_args))
        if parsed_args.formatter in {"json", "yaml"}:
            return tuple(shown), [_plain(value) for value in shown.values()]
        flat = dict(_flat(_plain(shown)))
        return tuple(flat), tuple(flat.values())


def _plain(value: Any) -> Any:
    """Enums and tuples as what they are in JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, str) else value


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """One row per key, by its dotted name."""
    entries: Any = ()
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        entries = ((str(number), item) for number, item in enumerate(value))
    if not entries:
        yield name, ", ".join(map(str, value)) if isinstance(value, list) else value
    for key, item in entries:
        yield from _flat(item, f"{name}.{key}" if name else key)
