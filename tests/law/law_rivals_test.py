"""What else explains a score, one law for several runs, one size foretold by others."""

from __future__ import annotations

import math

import numpy as np
import pytest

from entrostat.law import LawError, coefficients_by_size, fit, pooled, rivals, sizes_left_out


def test_rivals_agree_with_numpy() -> None:
    rng = np.random.default_rng(0)
    h = np.linspace(1.0, 0.4, 40) + 0.05 * rng.standard_normal(40)
    r = -0.4 * np.exp(h) + 1.3 + 0.02 * rng.standard_normal(40)
    for rival, x in zip(rivals(h, r, 0.3), (np.exp(h), h, np.arange(40.0)), strict=True):
        whole, early = np.polyfit(x, r, 1), np.polyfit(x[:12], r[:12], 1)
        assert rival.rmse == pytest.approx(np.sqrt(np.mean((np.polyval(whole, x) - r) ** 2)))
        error = (np.polyval(early, x) - r)[12:]
        assert rival.rmse_predicted == pytest.approx(np.sqrt(np.mean(error**2)))


def test_each_shape_is_told_from_the_others() -> None:
    h = np.array([2.0, 1.4, 1.5, 0.9, 0.5, 0.6, 0.2, 0.1, 0.3, 0.05])
    step = np.arange(10.0)
    for place, r in enumerate((1 - 0.1 * np.exp(h), 1 - 0.3 * h, 0.1 + 0.05 * step)):
        found = rivals(h, r, 0.5)
        assert found[place].rmse == pytest.approx(0.0, abs=1e-12)
        assert found[place].rmse_predicted == pytest.approx(0.0, abs=1e-12)
        assert all(other.rmse > 0.01 for i, other in enumerate(found) if i != place)


def test_a_start_at_which_entropy_rests_predicts_nothing() -> None:
    exp, straight, step = rivals([1.0, 1.0, 1.0, 0.5, 0.2], [0.1, 0.2, 0.3, 0.4, 0.5], 0.6)
    assert math.isnan(exp.rmse_predicted)
    assert math.isnan(straight.rmse_predicted)
    assert step.rmse_predicted == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("entropy", "share", "words"),
    [
        ([1.0, 0.5, 0.2, 0.1], 0.15, "share=0.15 of 4 steps are 1"),
        ([1.0, 0.5, 0.2, 0.1], 0.99, "share=0.99 of 4 steps are 4"),
        ([1.0, 1.0, 1.0, 1.0], 0.75, "entropy is 1 at all 4 steps"),
    ],
)
def test_rivals_refuse(entropy: list[float], share: float, words: str) -> None:
    with pytest.raises(LawError, match=words):
        rivals(entropy, [0.1, 0.2, 0.3, 0.4], share)


def test_pooled_by_hand() -> None:
    """Three runs on parallel lines in exp(H), at 0, .1 and .3 of the score."""
    h = np.log([1.0, 2.0, 3.0])
    laws = [fit(h, 1 - 0.2 * np.exp(h) + shift) for shift in (0.0, 0.1, 0.3)]
    found = pooled(laws, ["one", "one", "two"])
    assert found.rmse_own == pytest.approx(0.0, abs=1e-12)
    # the shifts' standard deviation: mean .4/3, of squares .1/3
    assert found.rmse_one == pytest.approx(math.sqrt(0.1 / 3 - (0.4 / 3) ** 2))
    assert (found.law.a, found.law.b) == (pytest.approx(0.2), pytest.approx(1 + 0.4 / 3))
    # the first two by each other: .1 each; the third has none like it
    assert found.rmse_alike == pytest.approx(0.1)
    # the first two by the third: .3 and .2; the third by the mean of the first two: .25
    assert found.rmse_others == pytest.approx(math.sqrt((0.3**2 + 0.2**2 + 0.25**2) / 3))


def test_pooled_without_the_like_or_without_others() -> None:
    laws = [fit([0.0, 1.0, 2.0], [0.5, 0.3, 0.1 + i / 10]) for i in range(2)]
    assert math.isnan(pooled(laws).rmse_alike)
    assert math.isnan(pooled(laws, ["same", "same"]).rmse_others)
    assert pooled(laws).rmse_others == pytest.approx(pooled(laws, ["same", "same"]).rmse_alike)
    for arguments, words in (((laws[:1],), "got 1"), ((laws, ["a"]), "1 words for 2")):
        with pytest.raises(ValueError, match=words):
            pooled(*arguments)


def test_a_size_left_out_by_hand() -> None:
    """a = .1 ln N, b = .2 ln N at e, e^2, e^3; the largest is .05 above its line."""
    h = np.log([1.0, 2.0, 3.0])
    sizes = [math.exp(k) for k in (1, 2, 3)]
    laws = [fit(h, 0.2 * k - 0.1 * k * np.exp(h) + 0.05 * (k == 3)) for k in (1, 2, 3)]
    small, middle, large = sizes_left_out(sizes, laws)
    assert (large.a, large.b) == (pytest.approx(0.3), pytest.approx(0.6))
    assert large.rmse == pytest.approx(0.05)
    assert large.rmse_own == pytest.approx(0.0, abs=1e-12)
    # through .2 and .65: the middle .425, the smallest 2 * .4 - .65 = .15
    assert middle.b == pytest.approx(0.425)
    assert (small.b, small.rmse) == (pytest.approx(0.15), pytest.approx(0.05))


def test_sizes_left_out_need_two_others_and_take_all_runs_of_a_size() -> None:
    h = np.log([1.0, 2.0, 3.0])
    laws = [fit(h, 1 - 0.1 * np.exp(h) + shift) for shift in (0.0, 0.0, 0.0, 0.2)]
    assert sizes_left_out([1.0, 2.0], laws[:2]) == ()
    assert sizes_left_out([1.0, 1.0, 2.0, 2.0], laws) == ()
    found = sizes_left_out([1.0, 2.0, 3.0, 3.0], laws)
    assert [one.size for one in found] == [1.0, 2.0, 3.0]
    # the last size has two runs, of which the line through the others misses one by .2
    assert found[-1].rmse == pytest.approx(math.sqrt(0.2**2 / 2))
    line = coefficients_by_size([1.0, 2.0], laws[:2])
    assert found[-1].b == pytest.approx(line.b.predict(3.0))
