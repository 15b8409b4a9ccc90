"""The lists of the rules fit the code; `make rules` removes them one by one."""

from __future__ import annotations

from tests.rules.table import ROOT, rows, rules, shown_by

#: Rows whose claim is no rule of our code.
WITHOUT = {
    "1.2": "os-brick's, which is asked again",
    "4.4": "that there is a database at all",
    "4.9": "the query of a host's commands has tests of its own, and no line that is the rule",
}


def test_what_removes_a_rule_changes_one_place() -> None:
    """Whoever changes that place says in rules.toml how its rule is removed now."""
    found = {rule: (ROOT / rule.file).read_text().count(rule.old) for rule in rules()}
    assert len(found) > 100
    assert [(rule.row, rule.file, rule.old) for rule, n in found.items() if n != 1] == []
    assert [rule for rule in found if rule.old == rule.new] == []


def test_every_row_that_names_a_test_has_a_rule_to_remove() -> None:
    tested = {row for row in rows() if shown_by(row)}
    ruled = {rule.row for rule in rules() if "." in rule.row}
    assert sorted(tested - ruled - set(WITHOUT)) == []
    assert sorted(ruled - tested) == []


def test_every_rule_of_a_decision_names_decision_and_tests_that_exist() -> None:
    at_borders = [rule for rule in rules() if "." not in rule.row]
    assert len(at_borders) > 40
    decisions = {path.name[:4] for path in (ROOT / "docs/decisions").glob("0*.md")}
    assert {rule.row for rule in at_borders} <= decisions
    named = {test.partition("[")[0].partition("::")[::2] for r in at_borders for test in r.tests}
    texts = {name: (ROOT / name).read_text() for name, _ in named}
    assert [test for name, test in named if f"def {test}" not in texts[name] and test] == []
