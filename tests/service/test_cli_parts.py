"""What we do not leave to cliff is confined to one module, and still fits cliff."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import stevedore
from cliff.command import Command

from ledger.cli.shell import main

ROOT = Path(__file__).parents[2]


def test_cliff_still_has_what_we_replace() -> None:
    assert callable(Command._load_hooks)
    assert callable(Command.get_epilog)


def test_no_plug_ins_are_looked_for_but_formats(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    init = stevedore.ExtensionManager.__init__

    def noted(self: Any, namespace: str, *args: Any, **kwargs: Any) -> None:
        asked.append(namespace)
        init(self, namespace, *args, **kwargs)

    monkeypatch.setattr(stevedore.ExtensionManager, "__init__", noted)
    monkeypatch.setattr("cliff.command._get_distributions_by_modules", lambda: pytest.fail("read"))
    with pytest.raises(SystemExit):
        main(["operation", "list", "--help"])
    assert "--parked" in capsys.readouterr().out
    assert {name for name in asked if not name.startswith("cliff.formatter")} == set()


def test_private_parts_of_cliff_are_used_in_one_module() -> None:
    private = re.compile(r"_load_hooks|_load_commands|_hooks\b|cliff\._|import _argparse")
    files = [path for path in (ROOT / "ledger").rglob("*.py") if private.search(path.read_text())]
    assert [path.name for path in files] == ["cliff_parts.py"]
