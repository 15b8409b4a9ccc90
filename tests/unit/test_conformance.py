"""What a run of other people's tests means, and what the page says of it."""

from __future__ import annotations

from tests.lab.conformance import judge

A, B, C = "tempest.api.m.Class.test_a", "tempest.api.m.Class.test_b", "openstack.m.Other.test_c"
KNOWN = judge.reasons(
    """
    [[reason]]
    tests = ["*.test_b"]
    outcome = "fails"
    why = "there are none here"
    """
)
EMPTY = f"before\n{judge.BEGIN}{judge.END}after\n"


def test_a_run_is_as_good_as_the_page_and_its_reasons() -> None:
    assert judge.faults({A: "passes", B: "fails"}, {A: "passes"}, KNOWN) == []


def test_a_test_that_passed_and_does_not_is_a_fault_whatever_the_reasons_say() -> None:
    for outcome in ("fails", "skipped"):
        [fault] = judge.faults({B: outcome}, {B: "passes"}, KNOWN)
        assert fault == f"{B}: {outcome}, and passed before"


def test_a_test_that_does_not_pass_has_a_reason_of_that_outcome() -> None:
    found = judge.faults({A: "fails", B: "skipped"}, {A: "fails"}, KNOWN)
    assert [fault.partition(": ")[0] for fault in found] == [A, B]


def test_a_reason_whose_tests_pass_is_a_fault_and_one_whose_tests_did_not_run_is_none() -> None:
    [fault] = judge.faults({B: "passes"}, {}, KNOWN)
    assert "has a reason" in fault
    assert judge.faults({A: "passes"}, {}, KNOWN) == []
    other = "tempest.api.m.Other.test_b"
    assert judge.faults({B: "passes"}, {B: "passes", other: "fails"}, KNOWN) == []


def test_the_page_is_read_as_it_is_written_and_the_rest_of_it_stays() -> None:
    outcomes = {A: "passes", B: "fails", C: "skipped"}
    page = judge.written(EMPTY, outcomes, KNOWN)
    assert judge.rows(page) == outcomes
    assert (page.startswith("before\n"), page.endswith("after\n")) == (True, True)
    assert "| `Class.test_b` | fails | there are none here |" in page
    assert judge.written(page, outcomes, KNOWN) == page


def test_the_page_of_the_project_is_what_its_reasons_say() -> None:
    page, known = judge.PAGE.read_text(), judge.reasons(judge.REASONS.read_text())
    outcomes = judge.rows(page)
    assert list(outcomes.values()).count(judge.PASSES) > 50
    assert judge.faults(outcomes, {}, known) == []
    assert judge.written(page, outcomes, known) == page, "run tests/lab/conformance.sh"
    unused = [each.tests for each in known if not any(map(each.names, outcomes))]
    assert unused == [], "reasons for no test"
