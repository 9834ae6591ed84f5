"""How early a run spends its entropy and gains its score, by hand."""

from __future__ import annotations

import math

import pytest

from builders import refused
from entrostat.law import SHARES, LawError, spent


def test_by_hand():
    """13 steps: a twelfth of the run is the second of them, a third the fifth."""
    entropy = [1.0, 0.7, 0.6, 0.5, 0.4, 0.4, 0.4, 0.4, 0.3, 0.3, 0.3, 0.2, 0.2]
    score = [0.2, 0.3, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.7]
    twelfth, third = spent(entropy, score)
    assert (twelfth.share, third.share) == SHARES == (1 / 12, 1 / 3)
    assert twelfth.entropy == pytest.approx(0.3 / 0.8)
    assert twelfth.score == pytest.approx(0.1 / 0.5)
    assert (third.entropy, third.score) == (pytest.approx(0.6 / 0.8), pytest.approx(0.4 / 0.5))


def test_between_steps_a_straight_line():
    (found,) = spent([2.0, 1.0, 0.0], [0.0, 0.4, 1.0], [0.75])
    assert (found.entropy, found.score) == (pytest.approx(0.75), pytest.approx(0.7))


def test_the_end_is_a_mean_and_may_be_passed():
    """Of 30 steps the last two are the end; a run may have spent more than all in between."""
    entropy = [1.0, *[0.0] * 27, 0.4, 0.6]
    (found,) = spent(entropy, list(range(30)), [0.5])
    assert found.entropy == pytest.approx(1.0 / 0.5)
    assert found.score == pytest.approx(14.5 / 28.5)


def test_a_run_that_spends_or_gains_nothing_has_no_share():
    (found,) = spent([1.0, 1.1, 1.2], [0.5, 0.5, 0.5], [0.5])
    assert math.isnan(found.entropy)
    assert math.isnan(found.score)


def test_refusals():
    for share in (0.0, -0.1, 1.5):
        with pytest.raises(ValueError, match="a share is above 0 and at most 1"):
            spent([1.0, 0.5, 0.2], [0.0, 0.1, 0.2], [share])
    refused(lambda: spent([1.0, 0.5], [0.0, 0.1]), "spent:", "entropy", error=LawError)
