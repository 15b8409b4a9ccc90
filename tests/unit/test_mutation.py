"""How a mutation run is judged: what counts, what is argued, when it fails."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests.mutation import __main__ as mutation
from tests.mutation.__main__ import Change, change, judge
from tests.mutation.tables.changes import changes

DIFF = """\
--- handlers/engine/engine.py
+++ handlers/engine/engine.py
@@ -3,6 +3,6 @@
     if a:
-        return left(
-            lane,
+        return left(
+            None,
         )
"""


@pytest.fixture(autouse=True)
def _written_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation, "BUILD", tmp_path)
    monkeypatch.setattr(mutation, "argued", lambda: {"argued"})


def test_a_survivor_is_named_by_what_was_changed_and_not_by_a_number() -> None:
    assert str(change("handlers/engine/engine.py decide", DIFF)) == (
        "handlers/engine/engine.py decide: return left( lane, -> return left( None,"
    )


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        ('f(op, "be retried")', 'f(op, "XXbe retriedXX")', True),
        ('f(op, "be retried")', 'f(op, "BE RETRIED")', True),
        ('f(op, "be retried")', "f(op, None)", False),
        ('f(op, "be retried")', "f(op, )", False),
        ('f("host_fenced")', 'f("HOST_FENCED")', False),
        ('f("a b", 1)', 'f("a b", 2)', False),
    ],
)
def test_only_the_words_of_a_message_do_not_count(was: str, now: str, words: bool) -> None:
    assert Change("where", was, now).only_words is words


@pytest.mark.parametrize(
    ("killed", "survivors", "fails"),
    [(9, {"argued"}, 0), (9, {"argued", "another"}, 1), (8, {"argued"}, 1), (10, set(), 0)],
    ids=["argued", "not argued", "too few killed", "all killed"],
)
def test_a_run_fails_below_the_score_or_with_a_survivor_that_nobody_argues(
    killed: int, survivors: set[str], fails: int
) -> None:
    counts = {"handlers/engine/engine.py": Counter(killed=killed, alive=10 - killed)}
    assert judge(counts, survivors, None) == fails


def test_the_page_gets_the_table_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "mutation.md"
    page.write_text("before\n<!-- measured -->\nold\n<!-- end of measured -->\nafter\n")
    judge({"a.py": Counter(killed=3, alive=1, untried=6)}, set(), tmp_path)
    text = page.read_text()
    assert "| a.py | 10 | 4 | 3 | 75.0 % | 30-95 % |" in text
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")


def test_what_was_tried_in_whole_needs_no_interval() -> None:
    assert mutation.bounds(Counter(killed=3, alive=1)) == ""
    assert mutation.bounds(Counter(untried=9)) == ""


GROUPS = tomllib.loads((mutation.HERE / "groups.toml").read_text())


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_names_modules_and_tests_that_are_there(group: str) -> None:
    settings = GROUPS[group]
    for pattern in settings["mutate"]:
        assert mutation.modules(mutation.ROOT, {"mutate": [pattern]}), pattern
    for path in settings["tests"][: settings["tests"].index("-m")]:
        file, _, name = path.partition("::")
        assert (mutation.ROOT / file).exists(), path
        assert not name or f"def {name}(" in (mutation.ROOT / file).read_text(), path


def test_the_core_is_in_a_group() -> None:
    """All that the first of these modules have been split into since, too."""
    core = ["aggregates/*.py", "handlers/*.py", "projections/*.py", "host_agent/verbs/*.py"]
    core += ["host_agent/executor.py", "host_agent/locks.py", "host_agent/storage/brick.py"]
    core += ["ledger/core/dispatcher.py", "ledger/core/effects.py", "ledger/core/steps/*.py"]
    changed = {path for each in GROUPS.values() for path in mutation.modules(mutation.ROOT, each)}
    assert set(mutation.modules(mutation.ROOT, {"mutate": core})) <= changed


def test_a_sample_stays_what_it_is_when_the_module_changes_elsewhere() -> None:
    names = [f"x_decide__mutmut_{number}" for number in range(99)]
    ordered = sorted(names, key=mutation.random_order)
    assert ordered != names
    without = sorted(set(names) - {ordered[50]}, key=mutation.random_order)
    assert without == ordered[:50] + ordered[51:]


def changed(path: str, text: str) -> set[str]:
    return {text[: each.start] + each.new + text[each.end :] for each in changes(path, text)}


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ('S = Step("a", v, undo=w)', {'S = Step("a", v)'}),
        ("F = (Step(1), Step(2))", {"F = (Step(2))", "F = (Step(1))"}),
        ("S = {1, 2, 3}", {"S = {2, 3}", "S = {1, 3}", "S = {1, 2}"}),
        ("x = a and not b", {"x = True and not b", "x = a and True"}),
        ("x = a or (b)", {"x = False or (b)", "x = a or (False)"}),
        ("é = K.A_A, K.BB", {"é = K.BB, K.BB", "é = K.A_A, K.A_A"}),
        ("S = {1}\nx = y or ''", {"S = {1}\nx = False or ''"}),
    ],
)
def test_each_part_of_a_table_or_condition_is_left_out_once(text: str, becomes: set[str]) -> None:
    assert changed("a.py", text) == becomes


def test_a_guard_does_not_stop_anybody() -> None:
    guard = "def f():\n    if a:\n        return 1\n    if b:\n        c()\n"
    assert changed("a.py", guard) == {guard.replace("if a:", "if False:")}


def test_each_condition_of_sql_is_left_out_once() -> None:
    text = "SELECT a FILTER (WHERE b) FROM c\n WHERE d BETWEEN 1 AND 2 AND e = (1) ORDER BY f;"
    assert changed("a.sql", text) == {
        text.replace(" FILTER (WHERE b)", ""),
        text.replace("WHERE d BETWEEN 1 AND 2", "WHERE true"),
        text.replace("AND e = (1)", ""),
    }
