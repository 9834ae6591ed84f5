"""Scores, diversity and calibration: by enumeration, by hand, against scipy and sacrebleu."""

import time
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

import entrostat as es
from builders import refused


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
    refused(lambda: es.metrics.avg_at_k(nothing), "avg_at_k:", "no samples")


def test_distinct_correct_by_hand():
    samples = ["a", "b", "a", "c", "d"]  # right: a, a, d; c is half right
    assert es.metrics.distinct_correct(samples, [1, 0, 1, 0.5, 1.0]) == 2
    assert es.metrics.distinct_correct([], []) == 0
    with pytest.raises(ValueError):
        es.metrics.distinct_correct(["a"], [1, 0])


def test_ngram_diversity_by_hand():
    # words: a b c a b | a b. 1-grams: 3 of 7; 2-grams ab bc ca ab ab: 3 of 5; 3-grams abc bca cab:
    # 3 of 3; 4-grams abca bcab: 2 of 2
    texts = ["a b c a b", "a b"]
    assert es.metrics.ngram_diversity(texts, n=1) == pytest.approx(3 / 7)
    assert es.metrics.ngram_diversity(texts) == pytest.approx((3 / 7 + 3 / 5 + 1 + 1) / 4)
    # no 3-gram: orders 1 and 2 alone; "a b" and "b a" share words, not 2-grams
    assert es.metrics.ngram_diversity(["a b", "b a"]) == pytest.approx((2 / 4 + 2 / 2) / 2)
    assert es.metrics.ngram_diversity(["a b", "", "a b"]) == pytest.approx(1 / 2)


def test_ngram_diversity_of_tokens_and_tokenizers():
    assert es.metrics.ngram_diversity([[1, 2], [1, 3]], n=1) == 0.75
    assert es.metrics.ngram_diversity([np.array([1, 2]), np.array([1, 3])], n=1) == 0.75
    # 13a parts 3+4 into three words, "none" does not
    assert es.metrics.ngram_diversity(["3+4", "4+3"], n=1) == pytest.approx(3 / 6)
    assert es.metrics.ngram_diversity(["3+4", "4+3"], n=1, tokenize="none") == 1.0
    assert es.metrics.ngram_diversity(["aab"], n=1, tokenize="char") == pytest.approx(2 / 3)


@pytest.mark.parametrize("name", ["ngram_diversity", "self_bleu"])
def test_diversity_refuses(name):
    function = getattr(es.metrics, name)
    refused(lambda: function("a text"), name, "responses")
    refused(lambda: function(["a", "b"], n=0), name, "got 0")
    refused(lambda: function(["a", "b"], tokenize="13"), name, "'13a'")


def test_diversity_of_nothing_is_an_error():
    refused(lambda: es.metrics.ngram_diversity(["", " "]), "no word in the 2 responses")
    refused(lambda: es.metrics.ngram_diversity([]), "no word in the 0 responses")
    refused(lambda: es.metrics.self_bleu(["a b"]), "responses", "got 1")
    refused(lambda: es.metrics.self_bleu(["a b", "a"], average="order"), "'order'", "'orders'")
    refused(lambda: es.metrics.self_bleu(["a b", "a"], smooth="flor"), "'flor'", "'floor'")


def some_texts(count, seed):
    rng = np.random.default_rng(seed)
    words = ["so", "we", "get", "3", "+", "4", "=", "7.", "thus,", "x"]
    return [" ".join(rng.choice(words, size=rng.integers(1, 15))) for _ in range(count)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("smooth", ["floor", "exp", "none"])
def test_self_bleu_is_sacrebleus_sentence_bleu_against_the_others(seed, smooth):
    from sacrebleu.metrics.bleu import BLEU

    texts = [*some_texts(7, seed), "we get 3 + 4", "we get 3 + 4", "alone"]

    def mean_bleu(order):
        bleu = BLEU(smooth_method=smooth, max_ngram_order=order, effective_order=True)
        scores = [
            bleu.sentence_score(text, texts[:i] + texts[i + 1 :]).score
            for i, text in enumerate(texts)
        ]
        return sum(scores) / len(scores) / 100

    alone = es.metrics.self_bleu(texts, average="geometric", smooth=smooth)
    assert alone == pytest.approx(mean_bleu(4), rel=1e-12)
    orders = es.metrics.self_bleu(texts, smooth=smooth)
    assert orders == pytest.approx(sum(map(mean_bleu, (1, 2, 3, 4))) / 4, rel=1e-12)
    assert es.metrics.self_bleu(texts, n=2, average="geometric", smooth=smooth) == pytest.approx(
        mean_bleu(2), rel=1e-12
    )


def test_self_bleu_by_hand():
    # "a b" against "a c": 1-grams 1 of 2; 2-grams 0 of 1, which counts as .1; both ways alike
    one, two = 0.5, (0.5 * 0.1) ** 0.5
    assert es.metrics.self_bleu(["a b", "a c"], n=1) == pytest.approx(one)
    assert es.metrics.self_bleu(["a b", "a c"], n=2) == pytest.approx((one + two) / 2)
    assert es.metrics.self_bleu(["a b", "a c"], n=2, average="geometric") == pytest.approx(two)
    # "a" against "a a a": precision 1, brevity exp(1 - 3); back: 1 of 3 after clipping
    assert es.metrics.self_bleu(["a", "a a a"], n=1) == pytest.approx((np.exp(-2) + 1 / 3) / 2)
    assert es.metrics.self_bleu(["a b c d e"] * 3) == 1.0
    assert es.metrics.self_bleu(["a b c d", "e f g h"]) == 0.0
    assert es.metrics.self_bleu(["", ""]) == 0.0
    assert es.metrics.self_bleu([[1, 2], [1, 3]], n=1) == pytest.approx(0.5)


def test_self_bleu_of_many_long_responses_is_quick():
    rng = np.random.default_rng(0)
    responses = rng.integers(0, 50, size=(200, 500)).tolist()
    start = time.process_time()
    es.metrics.self_bleu(responses)
    # about 2 s; pair by pair it would be a hundred times that
    assert time.process_time() - start < 60


def test_mutual_information_by_hand():
    # cells (2, 1; 1, 4) of 8: rows and columns 3 and 5
    x = [0, 0, 0, 1, 1, 1, 1, 1]
    y = [0, 0, 1, 0, 1, 1, 1, 1]
    expected = (
        2 / 8 * np.log((2 / 8) / (9 / 64))
        + 2 * (1 / 8) * np.log((1 / 8) / (15 / 64))
        + 4 / 8 * np.log((4 / 8) / (25 / 64))
    )
    assert es.metrics.mutual_information(x, y, bins=2) == pytest.approx(expected)
    # four cells, two rows, two columns: (4 - 2 - 2 + 1) / 16
    corrected = es.metrics.mutual_information(x, y, bins=2, correct_bias=True)
    assert corrected == pytest.approx(expected - 1 / 16)
    # empty bins in between change nothing
    assert es.metrics.mutual_information(x, y, bins=(7, 3)) == pytest.approx(expected)
    corrected = es.metrics.mutual_information(x, y, bins=(7, 3), correct_bias=True)
    assert corrected == pytest.approx(expected - 1 / 16)
    assert es.metrics.mutual_information(x, y, bins=1) == 0.0
    assert es.metrics.mutual_information([3.0] * 8, y) == 0.0


def test_mutual_information_is_that_of_scipys_entropies():
    rng = np.random.default_rng(1)
    x = rng.normal(size=400)
    y = x**2 + rng.normal(size=400)
    joint = np.histogram2d(x, y, bins=(12, 8))[0]
    expected = (
        stats.entropy(joint.sum(0)) + stats.entropy(joint.sum(1)) - stats.entropy(joint.ravel())
    )
    assert es.metrics.mutual_information(x, y, bins=(12, 8)) == pytest.approx(expected)


def test_mutual_information_of_a_gaussian_and_its_bias():
    rng = np.random.default_rng(2)
    rho = 0.8
    x = rng.normal(size=100_000)
    y = rho * x + np.sqrt(1 - rho**2) * rng.normal(size=100_000)
    # bins lose a little of -ln(1 - rho^2) / 2 = .511
    assert es.metrics.mutual_information(x, y, bins=60) == pytest.approx(0.511, abs=0.025)
    # independent: 9 * 9 / (2 * 1000) = .0405 above 0, which the correction takes away
    draws = [(rng.random(1000), rng.random(1000)) for _ in range(50)]
    plain = np.mean([es.metrics.mutual_information(*d) for d in draws])
    corrected = np.mean([es.metrics.mutual_information(*d, correct_bias=True) for d in draws])
    assert plain == pytest.approx(0.0405, abs=0.004)
    assert corrected == pytest.approx(0.0, abs=0.004)


@pytest.mark.parametrize(
    ("x", "y", "bins", "words"),
    [
        ([1, 2], [1], 10, "x has 2 values and y 1"),
        ([], [], 10, "got the shape (0,)"),
        ([[1, 2]], [1, 2], 10, "got the shape (1, 2)"),
        ([1, 2], [1, np.nan], 10, "y[1] is nan"),
        ([1, 2], [1, 2], 0, "bins must be a whole number of 1 or more, got 0"),
        ([1, 2], [1, 2], (2, 0), "bins must be a whole number of 1 or more, got 0"),
        ([1, 2], [1, 2], (2, 2, 2), "bins must be one number"),
    ],
)
def test_mutual_information_refuses(x, y, bins, words):
    refused(lambda: es.metrics.mutual_information(x, y, bins=bins), words)


def test_calibration_by_hand():
    # right -.1, -.4; wrong -.4, -.8, -1: right above wrong in 5 pairs of 6 and equal in one
    found = es.metrics.calibration([-0.1, -0.8, -0.4, -0.4, -1.0], [1, 0, 1, 0.5, 0], bins=3)
    assert found.right.tolist() == [-0.1, -0.4]
    assert found.wrong.tolist() == [-0.8, -0.4, -1.0]
    assert found.right_mean == pytest.approx(-0.25)
    assert found.wrong_mean == pytest.approx(-2.2 / 3)
    assert found.gap == pytest.approx(-0.25 + 2.2 / 3)
    assert found.auc == pytest.approx(5.5 / 6)
    # bins of .3 nats: -1 to -.7, to -.4, to -.1; -.4 belongs to the last, within rounding
    assert found.edges == pytest.approx([-1.0, -0.7, -0.4, -0.1])
    assert (found.right_density * 0.3).sum() == pytest.approx(1)
    assert found.wrong_density[0] == pytest.approx(2 / 3 / 0.3)


def test_calibration_agrees_with_scipys_u_test():
    rng = np.random.default_rng(3)
    logp = -np.round(rng.exponential(size=300), 1)  # with ties
    score = rng.integers(0, 2, size=300)
    found = es.metrics.calibration(logp, score)
    u = stats.mannwhitneyu(logp[score == 1], logp[score == 0]).statistic
    assert found.auc == pytest.approx(u / (score.sum() * (300 - score.sum())))


def test_calibration_where_all_are_right_has_no_gap():
    found = es.metrics.calibration([-0.5, -0.5], [1, 1], bins=2)
    assert found.right_mean == -0.5
    assert np.isnan([found.wrong_mean, found.gap, found.auc]).all()
    assert np.isnan(found.wrong_density).all()
    assert found.wrong.size == 0


@pytest.mark.parametrize(
    ("logp", "score", "bins", "words"),
    [
        ([-1.0], [1, 0], 30, "logp has 1 values and score 2"),
        ([-1.0, 0.5], [1, 0], 30, "logp[1] is 0.5"),
        ([-1.0, -np.inf], [1, 0], 30, "logp[1] is -inf"),
        ([], [], 30, "logp must be one list"),
        ([-1.0, -2.0], [1, 0], 0, "bins must be a whole number of 1 or more, got 0"),
    ],
)
def test_calibration_refuses(logp, score, bins, words):
    refused(lambda: es.metrics.calibration(logp, score, bins=bins), words)
