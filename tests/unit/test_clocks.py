"""Another machine's clock is told within bounds, whatever this one's wall clock does."""

from __future__ import annotations

import math
import random

import pytest

from host_agent.shared.platform.clocks import DRIFT_MAX, SKEW_MAX_S, FarClock, Skewed


class Two:
    """Two machines; `asks` takes a while there and a while back."""

    def __init__(self) -> None:
        self.real = 500.0
        self.far_set, self.wall_set = 1_000_000.0, 1_000_000.0
        self.clock = FarClock(lambda: self.real + self.wall_set, lambda: self.real)

    def ask(self, there_s: float = 0.01, back_s: float = 0.01, lie_s: float = 0.0) -> float:
        asked_at = self.clock.asking()
        self.real += there_s
        said = self.real + self.far_set + lie_s
        self.real += back_s
        return self.clock.heard(said, asked_at)

    @property
    def wrong_s(self) -> float:
        return abs(self.clock() - (self.real + self.far_set))


def test_the_error_is_within_its_bound_however_long_each_way_takes() -> None:
    draw = random.Random(1)
    two = Two()
    for _ in range(300):
        two.ask(draw.expovariate(20), draw.expovariate(2))
        two.real += draw.uniform(0, 30)
        assert two.wrong_s <= two.clock.error_s + 1e-6


def test_a_slow_answer_makes_it_no_worse_than_time_does() -> None:
    two = Two()
    two.ask()
    for _ in range(3):
        two.ask(0.001, 20.0)  # a long poll
        assert two.clock.error_s <= 0.01 + 70 * DRIFT_MAX
        assert two.wrong_s <= two.clock.error_s


def test_our_own_wall_clock_has_no_part_in_it() -> None:
    two = Two()
    two.ask()
    before = two.clock()
    two.wall_set += 7_200
    assert two.clock() == before
    assert two.clock.skew_s == pytest.approx(7_200, abs=two.clock.error_s)
    two.wall_set -= 7_245
    assert two.clock.skew_s == pytest.approx(-45, abs=two.clock.error_s)


def test_one_that_lies_once_is_not_believed() -> None:
    two = Two()
    two.ask()
    assert two.ask(lie_s=3_600) == 0
    assert two.wrong_s <= two.clock.error_s
    assert two.ask() == 0
    assert two.ask(lie_s=-50) == 0, "what was doubted before is no help to another lie"
    assert two.wrong_s <= two.clock.error_s


def test_what_is_not_a_number_is_no_time() -> None:
    two = Two()
    two.ask()
    for lie_s in (math.nan, math.inf, -math.inf):
        two.ask(lie_s=lie_s)
        assert two.wrong_s <= two.clock.error_s


@pytest.mark.parametrize("by_s", [7_200, -7_200, 0.5])
def test_a_clock_that_was_set_is_followed_and_told_of(by_s: float) -> None:
    two = Two()
    two.ask()
    two.far_set += by_s
    assert two.ask() == 0
    assert two.ask() == pytest.approx(by_s, abs=0.05)
    assert two.wrong_s <= two.clock.error_s
    assert two.ask() == 0


def test_a_reading_is_our_clock_with_its_error() -> None:
    two = Two()
    assert two.clock.reading() is None
    two.ask()
    two.wall_set += 14
    reading = two.clock.reading()
    assert reading is not None
    wall, offset_s, error_s = reading
    assert wall == two.real + two.wall_set
    assert offset_s == pytest.approx(14, abs=error_s)
    assert 0 < error_s < 0.02


def test_a_skew_is_told_when_it_comes_and_when_it_goes() -> None:
    skewed = Skewed()
    limit = SKEW_MAX_S
    told = [skewed.has_become(s) for s in (0.5, limit + 0.1, -2 * limit, 9.0, -0.2, 0.0)]
    assert told == [None, True, None, None, False, None]
