"""The frame of the benchmarks: what is measured is told as it is."""

from __future__ import annotations

import importlib
from operator import attrgetter
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.benchmarks import metered
from tests.benchmarks.__main__ import table, write
from tests.benchmarks.figures import Figure, interleaved, percentile
from tests.benchmarks.region import Sample, cpu_between

PAGE = "# Title\n\n<!-- measured -->\nold\n<!-- end of measured -->\n\nAfter.\n"
DOCS = Path(__file__).parents[2] / "docs"
KEYS = {"row", "name", "value", "unit", "target", "ok", "compared_with", "on"}


def figure(row: int, value: float, **fields: Any) -> dict[str, Any]:
    said = Figure(row=row, name=f"figure {row}", value=value, unit="ms", **fields).as_json()
    assert set(said) == KEYS
    return {**said, "on": "2026-11-28"}


@pytest.mark.parametrize(
    ("value", "more_is_better", "ok"),
    [(4.9, False, True), (5.1, False, False), (5.1, True, True), (4.9, True, False)],
)
def test_a_target_is_met_from_its_own_side(value: float, more_is_better: bool, ok: bool) -> None:
    assert figure(1, value, target=5, more_is_better=more_is_better)["ok"] is ok
    assert figure(1, 5, target=5, more_is_better=more_is_better)["ok"]


def test_what_has_no_target_is_not_judged() -> None:
    said = figure(9, 1e9)
    assert (said["ok"], said["target"]) == (True, None)
    assert table([said]).splitlines()[-1] == "| 9 | figure 9 | 1e+09 ms |  |  | 2026-11-28 |  |"


def test_the_table_is_in_the_order_of_the_rows_and_shows_shortfalls() -> None:
    said = [
        figure(10, 7, target=5),
        figure(2, 30, target=25, more_is_better=True, compared_with="COPY, 100 ms"),
        figure(11, 0, target=0),
    ]
    assert table(said).splitlines()[2:] == [
        "| 2 | figure 2 | 30 ms | ≥ 25 | yes | 2026-11-28 | COPY, 100 ms |",
        "| 10 | figure 10 | 7 ms | ≤ 5 | **no** | 2026-11-28 |  |",
        "| 11 | figure 11 | 0 ms | 0 | yes | 2026-11-28 |  |",
    ]


def test_only_the_rows_that_were_measured_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "benchmarks.md").write_text(PAGE)
    write(tmp_path, [figure(2, 1), figure(1, 1), figure(1, 2)], "a machine")
    write(tmp_path, [figure(1, 3)], "another machine")
    kept = orjson.loads((tmp_path / "benchmarks.json").read_bytes())
    assert [(one["row"], one["value"]) for one in kept] == [(1, 3.0), (2, 1.0)]
    before, _, after = (tmp_path / "benchmarks.md").read_text().partition("another machine")
    assert before == "# Title\n\n<!-- measured -->\n"
    assert after == f"\n\n{table(kept)}\n<!-- end of measured -->\n\nAfter.\n"


def test_a_page_without_a_place_for_the_table_is_not_touched(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text("# Title\n")
    with pytest.raises(ValueError, match="no place for the table"):
        write(tmp_path, [figure(1, 1)], "a machine")
    assert page.read_text() == "# Title\n"
    assert not (tmp_path / "benchmarks.json").exists()


def test_the_page_shows_what_the_data_say() -> None:
    _, begin, rest = (DOCS / "benchmarks.md").read_text().partition("<!-- measured -->\n")
    shown, end, _ = rest.partition("\n<!-- end of measured -->")
    assert begin
    assert end
    data = DOCS / "benchmarks.json"
    assert shown.endswith(table(orjson.loads(data.read_bytes())) if data.exists() else "yet")


def test_the_page_about_scaling_begins_with_figures_that_were_measured() -> None:
    lines = (DOCS / "scaling.md").read_text().partition("| row | what | measured |")[2]
    taken = lines.strip().partition("\n\n")[0].splitlines()[1:]
    measured = (DOCS / "benchmarks.md").read_text()
    assert len(taken) > 10
    assert [line for line in taken if f"\n{line}" not in measured] == [], "measured again?"


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1)) == (
        51,
        100,
        100,
    )
    assert percentile([7.0], 0.99) == 7


def test_ways_take_turns_and_their_medians_are_told() -> None:
    order: list[str] = []
    times = {"a": iter([9.0, 1.0, 2.0]), "b": iter([5.0, 5.0, 6.0])}

    def way(name: str) -> float:
        order.append(name)
        return next(times[name])

    assert interleaved(3, lambda: way("a"), lambda: way("b")) == [2.0, 5.0]
    assert order == ["a", "b"] * 3


def test_cpu_time_is_that_between_the_samples_at_two_moments() -> None:
    samples = [Sample(at=float(at), memory_bytes=0, cpu_s=at / 2) for at in range(10)]
    assert cpu_between(samples, 2.0, 6.0) == 2.0
    assert cpu_between(samples, 8.0, 99.0) == 0.5  # it ended before


@pytest.mark.parametrize(
    ("module", "function"),
    sorted({seam for seams in metered.SEAMS.values() for seam in seams}),
    ids=str,
)
def test_a_seam_between_the_parts_of_a_cycle_exists(module: str, function: str) -> None:
    assert callable(attrgetter(function)(importlib.import_module(module)))
