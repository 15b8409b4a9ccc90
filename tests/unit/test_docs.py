"""What the documents name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/lab/*.md")])


def test_every_test_that_holds_off_a_bug_exists() -> None:
    tests = "\n".join(path.read_text() for path in ROOT.glob("tests/**/test_*.py"))
    defined = set(re.findall(r"def (test_\w+)\(", tests))
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs/regressions.md").read_text())
    assert len(named) > 40
    assert set(named) - defined == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []
