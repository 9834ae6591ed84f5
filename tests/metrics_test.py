"""Scores against exhaustive enumeration and by hand."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

import entrostat as es


@pytest.mark.parametrize("n", range(1, 9))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(n):
    for c in range(n + 1):
        for k in range(1, n + 1):
            subsets = list(combinations(range(n), k))  # samples 0..c-1 are right
            hits = sum(any(i < c for i in subset) for subset in subsets)
            got = es.metrics.pass_at_k(n, c, k)
            assert got == pytest.approx(float(Fraction(hits, len(subsets))), abs=1e-14), (c, k)


def test_pass_at_k_of_many_samples():
    # one right sample of n is among k drawn with probability k / n
    assert es.metrics.pass_at_k(100_000, 1, 1000) == pytest.approx(0.01, rel=1e-9)
    assert es.metrics.pass_at_k(10**6, 0, 10**5) == 0.0
    assert es.metrics.pass_at_k(10**6, 10**6, 1) == 1.0


@pytest.mark.parametrize("nck", [(4, 5, 1), (4, -1, 1), (4, 1, 0), (4, 1, 5), (0, 0, 1)])
def test_pass_at_k_refuses(nck):
    n, c, k = nck
    with pytest.raises(ValueError, match=f"pass_at_k: need .*n={n}, c={c}, k={k}"):
        es.metrics.pass_at_k(n, c, k)


def test_avg_at_k_by_hand():
    assert es.metrics.avg_at_k([[1, 0, 1, 0], [0, 0, 0, 1]]) == 3 / 8
    assert es.metrics.avg_at_k(np.array([[0.5], [1.0]])) == 0.75


@pytest.mark.parametrize("nothing", [[], [[], []]])
def test_avg_at_k_of_nothing_is_an_error(nothing):
    with pytest.raises(ValueError, match="avg_at_k: no samples"):
        es.metrics.avg_at_k(nothing)


def test_distinct_correct_by_hand():
    samples = ["a", "b", "a", "c", "d"]  # right: a, a, d; c is half right
    assert es.metrics.distinct_correct(samples, [1, 0, 1, 0.5, 1.0]) == 2
    assert es.metrics.distinct_correct([], []) == 0
    with pytest.raises(ValueError):
        es.metrics.distinct_correct(["a"], [1, 0])
