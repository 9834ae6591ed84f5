"""The entropy law by hand and against scipy; its intervals against the truth they should hold."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from builders import refused
from entrostat import law
from entrostat.law.fitting import p_words, runs_test, trend
from entrostat.logs.importers import read
from entrostat.logs.run import Run


def curve(n: int, tau: float = 5.0, start: float = 0.9, end: float = 0.1) -> np.ndarray:
    """Entropies that decay from start towards end."""
    return end + (start - end) * np.exp(-tau * np.arange(n) / n)


def noise(rng: np.random.Generator, n: int, size: float, phi: float = 0.0) -> np.ndarray:
    """Stationary residuals of standard deviation `size` with autocorrelation phi at one step."""
    out = np.empty(n)
    out[0] = size * rng.normal()
    for i in range(1, n):
        out[i] = phi * out[i - 1] + size * math.sqrt(1 - phi**2) * rng.normal()
    return out


def test_fit_by_hand() -> None:
    # exp(H) = 1, 2, 3 and R = 0.9, 0.5, 0.4: means 2 and 0.6, slope (-0.3 - 0.2) / 2 = -0.25
    found = law.fit([0.0, math.log(2), math.log(3)], [0.9, 0.5, 0.4])
    assert found.a == pytest.approx(0.25)
    assert found.b == pytest.approx(0.6 + 0.25 * 2)
    assert found.ceiling == pytest.approx(0.85)
    # residuals 0.05, -0.1, 0.05: squares 0.015; deviations 0.3, -0.1, -0.2: squares 0.14
    assert found.residuals == pytest.approx([0.05, -0.1, 0.05])
    assert found.rmse == pytest.approx(math.sqrt(0.015 / 3))
    assert found.r2 == pytest.approx(1 - 0.015 / 0.14)
    assert found.predict(0.0) == pytest.approx(0.85)
    assert isinstance(found.predict(0.0), float)
    assert found.predict([0.0, math.log(5)]) == pytest.approx([0.85, -0.15])


def test_fit_agrees_with_scipy() -> None:
    rng = np.random.default_rng(0)
    h = curve(80) + 0.02 * rng.random(80)
    r = 0.9 - 0.3 * np.exp(h) + 0.05 * rng.normal(size=80)
    line = stats.linregress(np.exp(h), r)
    found = law.fit(h, r)
    assert found.a == pytest.approx(-line.slope, rel=1e-12)
    assert found.b == pytest.approx(line.intercept, rel=1e-12)
    assert found.r2 == pytest.approx(line.rvalue**2, rel=1e-12)


def test_a_law_that_holds_exactly_is_found_without_a_doubt() -> None:
    h = curve(60)
    found = law.fit(h, 1.1 - 0.4 * np.exp(h))
    assert (found.a, found.b, found.ceiling) == pytest.approx((0.4, 1.1, 0.7))
    assert found.r2 == pytest.approx(1.0)
    assert found.doubts == ()
    for low, high in (found.interval().a, found.interval().b):
        assert high - low < 1e-9


def test_what_was_fitted_cannot_change_later() -> None:
    h = curve(30)
    found = law.fit(h, 1 - h)
    h[0] = 99.0
    assert found.entropy[0] == pytest.approx(0.9)
    with pytest.raises(ValueError, match="read-only"):
        found.entropy[0] = 1.0


@pytest.mark.parametrize(
    ("entropy", "score", "words"),
    [
        ([1.0, 0.5], [0.1, 0.2], r"law.fit: entropy has 2 steps; .* need 3 or more"),
        ([1.0], [0.1], r"law.fit: entropy has 1 step; .* need 3 or more"),
        ([1.0], [0.1, 0.2], r"law.fit: entropy has 1 step and score 2; give both of the same"),
        ([1.0, 0.5, 0.2], [0.1, 0.2], r"entropy has 3 steps and score 2; give both"),
        ([[1.0, 0.5, 0.2]], [0.1], r"entropy must be one list .* shape \(1, 3\)"),
        ([1.0, math.nan, 0.2], [0, 0, 0], r"entropy\[1\] is nan; leave such steps out"),
        ([1.0, 0.5, 0.2], [0, 0, math.inf], r"score\[2\] is inf; leave such steps out"),
        ([1.0, 0.5, -0.2], [0, 0, 0], r"entropy\[2\] is -0.2, below 0; give nats per token"),
        ([1.0, 210.0, 0.2], [0, 0, 0], r"entropy\[1\] is 210, above 20; give nats per token"),
        ([0.5, 0.5, 0.5], [0, 1, 0], r"entropy is 0.5 at all 3 steps, .* cannot be told apart"),
    ],
)
def test_bad_steps_are_refused(entropy: list, score: list, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        law.fit(entropy, score)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"level": 1.0}, "level must be between 0 and 1, got 1.0"),
        ({"level": 95}, "level must be between 0 and 1, got 95"),
        ({"samples": 10}, "samples must be a whole number of 100 or more, got 10"),
        ({"block": 0}, "block must be a whole number from 1 to the 30 steps, got 0"),
        ({"block": 31}, "from 1 to the 30 steps, got 31"),
    ],
)
def test_bad_intervals_are_refused(arguments: dict, words: str) -> None:
    h = curve(30)
    with pytest.raises(ValueError, match=words):
        law.fit(h, 1 - h).interval(**arguments)


def test_intervals_are_repeatable_and_widen_with_their_level() -> None:
    rng = np.random.default_rng(1)
    h = curve(100)
    found = law.fit(h, 1 - 0.3 * np.exp(h) + noise(rng, 100, 0.05))
    assert found.interval() == found.interval()
    assert found.interval(seed=1) != found.interval(seed=2)
    wide, narrow = found.interval(0.99), found.interval(0.5)
    for name in ("a", "b", "ceiling"):
        assert getattr(wide, name)[0] < getattr(narrow, name)[0]
        assert getattr(wide, name)[1] > getattr(narrow, name)[1]
        assert narrow.a[0] < found.a < narrow.a[1]


def test_with_independent_residuals_the_interval_is_that_of_least_squares() -> None:
    # blocks of one step: the ordinary bootstrap of pairs; its width is 2 x 1.96 standard errors
    rng = np.random.default_rng(2)
    h = np.log(rng.uniform(1, 3, 1000))
    r = 1 - 0.3 * np.exp(h) + noise(rng, 1000, 0.1)
    line = stats.linregress(np.exp(h), r)
    low, high = law.fit(h, r).interval(block=1, samples=4000).a
    assert high - low == pytest.approx(2 * 1.96 * line.stderr, rel=0.08)
    assert (low + high) / 2 == pytest.approx(-line.slope, abs=0.2 * line.stderr)


def test_blocks_run_over_the_end_into_the_start() -> None:
    # a block of all steps is a rotation of them: every sample has the fit of the whole
    rng = np.random.default_rng(9)
    h = curve(40)
    found = law.fit(h, 1 - 0.3 * np.exp(h) + noise(rng, 40, 0.1))
    interval = found.interval(block=40)
    assert interval.a == pytest.approx((found.a, found.a))
    assert interval.ceiling == pytest.approx((found.ceiling, found.ceiling))


def test_the_block_grows_with_the_correlation_of_residuals() -> None:
    n, rng = 400, np.random.default_rng(3)
    h = curve(n)

    def chosen(phi: float) -> law.LawInterval:
        return law.fit(h, 1 - 0.3 * np.exp(h) + noise(rng, n, 0.05, phi)).interval()

    # 1.5 * 400^(1/3) = 11.05 without correlation; at r = .8 the factor is (1.9596 / .36)^(2/3)
    # = 3.09, thus 34.2 (r is estimated from 400 steps)
    assert chosen(0.0).block == 12
    assert 24 <= chosen(0.8).block <= 48
    h = curve(20)
    assert law.fit(h, 1 - h).interval().block <= 5  # a quarter of the steps


@pytest.mark.parametrize(("phi", "tau"), [(0.0, 8.0), (0.5, 8.0), (0.5, 20.0)])
def test_95_percent_intervals_hold_the_truth_about_that_often(phi: float, tau: float) -> None:
    rng = np.random.default_rng(4)
    n, runs = 150, 200
    h = curve(n, tau)
    truth = {"a": 0.4, "b": 1.2, "ceiling": 0.8}
    held = dict.fromkeys(truth, 0)
    for _ in range(runs):
        found = law.fit(h, 1.2 - 0.4 * np.exp(h) + noise(rng, n, 0.05, phi))
        interval = found.interval(samples=400)
        for name, value in truth.items():
            low, high = getattr(interval, name)
            held[name] += low <= value <= high
    # the standard error of a share of .95 over 200 runs is .015
    for name, count in held.items():
        assert 0.88 <= count / runs <= 0.995, (name, count / runs)


def test_single_steps_would_give_intervals_that_are_too_narrow() -> None:
    rng = np.random.default_rng(5)
    n, runs = 150, 150
    h = curve(n, 3.0)
    held = [0, 0]
    for _ in range(runs):
        found = law.fit(h, 1.2 - 0.4 * np.exp(h) + noise(rng, n, 0.05, 0.7))
        for i, block in enumerate((1, None)):
            low, high = found.interval(samples=300, block=block).a
            held[i] += low <= 0.4 <= high
    assert held[0] / runs < 0.75
    assert held[1] / runs > held[0] / runs + 0.1


def words_of(entropy: object, score: object) -> str:
    return " ".join(law.fit(entropy, score).doubts)  # type: ignore[arg-type]


def test_doubts_about_the_data() -> None:
    h = curve(40)
    assert "10 steps are few" in words_of(h[::4], 1 - 0.3 * np.exp(h[::4]))
    flat = 0.5 + 0.05 * h
    assert "Entropy moved by 0.04 nats only, less than 0.1" in words_of(flat, 1 - np.exp(flat))
    rising = np.linspace(0, 1, 40)  # an end is 40 // 15 = 2 steps: 0 and 1/39
    assert "Entropy did not fall (start 0.0128, end 0.987)" in words_of(
        rising, 1 - 0.3 * np.exp(rising)
    )
    assert law.fit(h, np.full(40, 0.3)).doubts == (
        "The score never moved; there is nothing to explain.",
    )
    assert math.isnan(law.fit(h, np.full(40, 0.3)).r2)


def test_doubts_about_the_fit() -> None:
    rng = np.random.default_rng(6)
    h = curve(100, 3.0)
    assert "a is -0.2, not above 0" in words_of(h, 0.1 + 0.2 * np.exp(h))
    noisy = words_of(h, 0.5 + 0.1 * rng.normal(size=100))
    assert "holds 0." in noisy or "not above 0" in noisy
    assert "below 0.7: much of what moves the score is not entropy" in noisy
    independent = words_of(h, 1.2 - 0.4 * np.exp(h) + 0.02 * rng.normal(size=100))
    assert independent == ""
    # entropy is held and score goes on rising
    held = 0.5 + 0.3 * rng.random(100)
    rising = 1 - 0.2 * np.exp(held) + 0.004 * np.arange(100)
    assert "A trend is left in the residuals: their Spearman correlation with the step is +" in (
        words_of(held, rising)
    )
    # linear in H over a wide range: residuals of a curve have one sign in the middle
    wide = curve(100, 3.0, start=2.0, end=0.0)
    assert "The residuals stay on one side for long" in words_of(wide, 1 - 0.4 * wide)


def test_doubts_about_the_ceiling() -> None:
    # exp(H) from 7.4 to 5.5: 4.5 to go, 1.9 seen
    far = np.log(np.linspace(7.4, 5.5, 50))
    assert "exp(H) came down to 5.50, and the way from there to 1 is longer than the 1.9" in (
        words_of(far, 0.9 - 0.1 * np.exp(far))
    )
    h = curve(50, start=0.9, end=0.2)
    # at H = .2, exp(H) = 1.22 and R = 1.45 - .4 * 1.22 = .96: all scores are below 1
    assert "The ceiling 1.05 is above 1: if the score is a share" in words_of(
        h, 1.45 - 0.4 * np.exp(h)
    )
    # a score that is no share may have any ceiling
    assert "above 1" not in words_of(h, 14.5 - 4 * np.exp(h))


@pytest.mark.parametrize(
    "values", [[1, 2, 3, 4], [0.3, -1, 2, 0.5, 4], [1, 1, 2, 3, 3, 0], [3, 1, 2, 7, 5, 6, 4]]
)
def test_the_trend_of_few_values_has_the_exact_p(values: list[float]) -> None:
    """Against all n! orders, Spearman's correlation being Pearson's of the mean ranks."""
    place = np.arange(len(values))
    ranks = stats.rankdata(values)
    every = [np.corrcoef(order, place)[0, 1] for order in itertools.permutations(ranks)]
    seen = np.corrcoef(ranks, place)[0, 1]
    expected = np.mean(np.abs(every) >= abs(seen) - 1e-9)
    assert trend(np.array(values, dtype=float)) == pytest.approx((seen, expected))


def test_no_p_is_zero() -> None:
    assert trend(np.arange(4.0))[1] == pytest.approx(2 / 24)  # the t approximation says 0
    assert trend(np.arange(30.0))[1] == pytest.approx(2 / math.factorial(30))
    assert trend(-np.arange(300.0)) == pytest.approx((-1, 0))
    assert trend(-np.arange(300.0))[1] > 0
    rng = np.random.default_rng(10)
    some = rng.normal(size=40) + 0.02 * np.arange(40)
    assert trend(some) == pytest.approx(tuple(stats.spearmanr(some, np.arange(40))))
    assert (p_words(0.0834), p_words(1e-300)) == ("p = 0.08", "p < 1e-06")
    # a score that rises in each of four steps at one entropy or less, in the order of the residuals
    four = law.fit([1.0, 0.9, 1.0, 0.9], [0.1, 0.2, 0.3, 0.4])
    assert trend(four.residuals)[0] > 0.7
    assert not any("trend" in doubt for doubt in four.doubts)


def test_the_runs_test_by_hand() -> None:
    # 10 above and 10 below the median, in two runs: expected 2 * 10 * 10 / 20 + 1 = 11,
    # variance 200 * (200 - 20) / (400 * 19) = 4.736842, z = (2 - 11) / 2.176429 = -4.135214
    found = runs_test(np.array([1.0] * 10 + [-1.0] * 10))
    assert found is not None
    assert found[:2] == (2, 11.0)
    assert found[2] == pytest.approx(stats.norm.cdf(-4.135214), rel=1e-5)
    # alternating: 20 runs, no sign of too few
    found = runs_test(np.tile([1.0, -1.0], 10))
    assert found is not None
    assert found[0] == 20
    assert found[2] > 0.99
    assert runs_test(np.tile([1.0, -1.0], 9)) is None  # too few to be normal


def test_the_runs_test_is_right_about_independent_residuals() -> None:
    rng = np.random.default_rng(7)
    found = [runs_test(rng.normal(size=150)) for _ in range(1000)]
    share = np.mean([f is not None and f[2] < 0.05 for f in found])
    assert 0.03 < share < 0.07  # standard error .007


def test_early_prediction_by_hand() -> None:
    # exp(H) = 1..3 backwards, then 2 and 1: the first three steps give R = 1 - .2 exp(H)
    h = np.log([4.0, 3.0, 2.0, 2.0, 1.0, 1.0])
    r = [0.2, 0.4, 0.6, 0.7, 0.7, 1.0]
    found = law.predict_early(h, r, share=0.5, end=2)
    assert (found.steps, found.rest, found.end) == (3, 3, 2)
    assert (found.law.a, found.law.b, found.ceiling) == pytest.approx((0.2, 1.0, 0.8))
    # predicted .6, .8, .8; errors -.1, .1, -.2
    assert found.rmse == pytest.approx(math.sqrt((0.01 + 0.01 + 0.04) / 3))
    assert found.end_error == pytest.approx(-0.05)
    # the second half of three steps are the last two: .5; errors -.2, -.2, -.5
    assert found.rmse_stay == pytest.approx(math.sqrt((0.04 + 0.04 + 0.25) / 3))
    assert found.reached == pytest.approx(2 / 3)
    assert law.predict_early(h, r, share=0.5).end_error == pytest.approx(-0.2)


def test_the_change_that_the_law_foretells_by_hand() -> None:
    # exp(H) = 10, 9, ..., 2 and R = 1 - exp(H) / 20; then exp(H) = 4 at the score of exp(H) = 2
    sizes = [10.0, 9, 8, 7, 6, 5, 4, 3, 2]
    scores = [1 - x / 20 for x in sizes]
    found = law.foretold_changes([*map(math.log, sizes), math.log(4)], [*scores, 0.9])
    assert found[:8] == [None] * 8
    assert found[8] == pytest.approx(0, abs=1e-12)
    assert found[9] == pytest.approx(math.log(2 / 4))
    # no trade: the score falls with entropy; a score that no entropy reaches
    assert law.foretold_changes([*map(math.log, sizes)], [x / 20 for x in sizes])[8] is None
    assert law.foretold_changes([*map(math.log, sizes)], [*scores[:8], 1.5])[8] is None
    with pytest.raises(law.LawError):
        law.foretold_changes([1.0, 0.5], [0.1, 0.2])


def test_an_exact_law_is_predicted_exactly() -> None:
    h = curve(236)
    found = law.predict_early(h, 1 - 0.3 * np.exp(h))
    assert (found.steps, found.rest) == (36, 200)  # the figures of COV App. B.3
    assert found.rmse == pytest.approx(0, abs=1e-12)
    assert found.ceiling == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("n", "share", "steps"),
    [(236, 0.15, 36), (240, 0.15, 36), (100, 0.15, 15), (100, 0.07, 7), (14, 0.15, 3), (9, 0.5, 5)],
)
def test_the_first_share_is_the_fewest_steps_that_are_no_less(
    n: int, share: float, steps: int
) -> None:
    assert law.early_steps(n, share) == steps


def test_early_doubts() -> None:
    h = np.log(np.linspace(3, 1, 100))
    straight = 1 - 0.3 * np.exp(h)
    bent = np.where(np.arange(100) < 15, straight, straight[15])
    text = " ".join(law.predict_early(h, bent).doubts)
    assert "no better than saying that the score stays as it was" in text
    assert "The first 15 steps span 14% of the range of exp(H)" in text  # 14 of 99 steps of it
    assert "Of the first 15 steps: 15 steps are few" in text
    assert "no better" not in " ".join(law.predict_early(h, straight).doubts)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"share": 0}, "share must be between 0 and 1, got 0; the paper's is 0.15"),
        ({"share": 15}, "share must be between 0 and 1, got 15"),
        ({"share": 0.1}, "share=0.1 of 20 steps are 2"),
        ({"share": 0.99}, r"share=0.99 of 20 steps are all of them; lower share"),
        ({"share": 0.5, "end": 11}, "end must be a whole number from 1 to the 10 steps"),
    ],
)
def test_bad_early_predictions_are_refused(arguments: dict, words: str) -> None:
    h = curve(20)
    refused(lambda: law.predict_early(h, 1 - h, **arguments), words)


def test_the_least_number_of_steps_that_an_error_names_is_the_least() -> None:
    h = curve(21)
    assert law.predict_early(h, 1 - h, 0.1).steps == 3
    with pytest.raises(law.LawError) as caught:
        law.predict_early(curve(3), 1 - curve(3))
    assert caught.value.why == (
        "the first 15% of 3 steps is 1, and a fit needs 3; it takes a run of 14 steps or more"
    )
    assert law.EVALUATIONS_FEW == 14
    for n, works in ((13, False), (14, True)):
        assert (law.early_steps(n) >= 3) == works


# --- which entropy, which score


def logged(metrics: list[dict], evaluation: list[dict] = ()) -> Run:  # type: ignore[assignment]
    return Run(Path("one"), {}, "", "", metrics, list(evaluation), ())


def rollouts(n: int) -> list[dict]:
    """Entropy 2 + .01 i, reward .001 i in iteration i."""
    return [
        {"iteration": i, "entropy/exact": 2 + 0.01 * i, "reward/mean": 0.001 * i}
        for i in range(1, n + 1)
    ]


def evaluated(at: range, k: int = 4) -> list[dict]:
    return [
        {"iteration": e, "split": split, "k": k, "avg@k": shift + e, "entropy": 1 + e / 100}
        for e in at
        for split, shift in (("test", 0.5), ("ood", 0.25))
    ]


def test_the_default_is_the_papers() -> None:
    found = law.pairs_of(logged(rollouts(70), evaluated(range(0, 71, 5))))
    # the policy after 5 iterations samples the rollouts of iteration 6; none follow the last
    assert found.score == tuple(0.5 + e for e in range(0, 70, 5))
    assert found.entropy == pytest.approx([2 + 0.01 * (e + 1) for e in range(0, 70, 5)])
    assert (found.score_key, found.entropy_key) == ("test/avg@k", "entropy/exact")
    assert found.score_is == "validation score, avg@4 of test"
    assert found.entropy_is == "entropy of the training rollouts, exact"
    assert found.point == "evaluation"
    assert found.notes == ("Left out: 1 evaluation whose policy has no such entropy.",)


def test_an_evaluation_may_have_no_split() -> None:
    rows = [row for row in evaluated(range(0, 71, 5)) if row["split"] == "test"]
    bare = [{key: value for key, value in row.items() if key != "split"} for row in rows]
    found = law.pairs_of(logged(rollouts(70), bare), score="validation")
    assert found.score == tuple(0.5 + e for e in range(0, 70, 5))


@pytest.mark.parametrize(
    ("evaluation", "few"),
    [
        ([], "no evaluation"),
        (evaluated(range(0, 71, 70)), "1 evaluation"),
        (evaluated(range(0, 65, 5)), "13 evaluations"),
    ],
)
def test_too_few_evaluations_fall_back_to_the_training_reward_and_say_so(
    evaluation: list[dict], few: str
) -> None:
    run = logged(rollouts(70), evaluation)
    found = law.pairs_of(run)
    assert found.score == tuple(0.001 * i for i in range(1, 71))
    assert (found.score_key, found.point) == ("reward/mean", "iteration")
    assert found.notes[0].startswith(
        f"R is the training reward, not COV's validation score: the run has {few} with an entropy"
    )
    if evaluation:  # what is asked for is taken, however few
        asked = law.pairs_of(run, score="validation")
        assert asked.score_key == "test/avg@k"
        assert not any("training reward" in note for note in asked.notes)
    else:
        refused(lambda: law.pairs_of(run, score="validation"), "'one'", error=law.LawError)
    # as many evaluations as iterations: nothing is won by the training reward
    short = law.pairs_of(logged(rollouts(6), evaluated(range(6))))
    assert (short.score_key, len(short.score), short.notes) == ("test/avg@k", 6, ())


@pytest.mark.parametrize(
    ("entropy", "score", "h", "r"),
    [
        ("evaluation", None, [1 + e / 100 for e in range(0, 71, 5)],
         [0.5 + e for e in range(0, 71, 5)]),
        ("evaluation", "ood/avg@k", [1 + e / 100 for e in range(0, 71, 5)],
         [0.25 + e for e in range(0, 71, 5)]),
        ("evaluation", "training", [1 + e / 100 for e in range(0, 70, 5)],
         [0.001 * (e + 1) for e in range(0, 70, 5)]),
        ("rollouts", "training", [2 + 0.01 * i for i in range(1, 71)],
         [0.001 * i for i in range(1, 71)]),
        ("reward/mean", "entropy/exact", [0.001 * i for i in range(1, 71)],
         [2 + 0.01 * i for i in range(1, 71)]),
    ],
)  # fmt: skip
def test_what_is_asked_for_is_taken_of_the_same_policies(
    entropy: str, score: str | None, h: list[float], r: list[float]
) -> None:
    found = law.pairs_of(logged(rollouts(70), evaluated(range(0, 71, 5))), entropy, score)
    assert (list(found.entropy), list(found.score)) == (pytest.approx(h), pytest.approx(r))


def test_a_run_without_rollout_entropy_takes_the_evaluations_and_says_so() -> None:
    metrics = [{"iteration": i, "reward/mean": 0.1} for i in range(1, 71)]
    found = law.pairs_of(logged(metrics, evaluated(range(0, 71, 5))))
    assert found.entropy_is == "entropy of the evaluation's samples of test"
    assert found.notes[0].startswith("H is the entropy of the evaluation's samples, not COV's")
    refused(
        lambda: law.pairs_of(logged(metrics, evaluated(range(0, 71, 5))), entropy="rollouts"),
        "logs no entropy of its rollouts",
        "entropy/exact",
        error=law.LawError,
    )
    refused(lambda: law.pairs_of(logged(metrics), entropy="rollout"), "'rollout'", "'rollouts'")


@pytest.mark.parametrize("key", ["eval_reward", "val-core/gsm8k/reward/mean@1"])
def test_another_trainers_validation_is_of_the_policy_after_its_step(key: str) -> None:
    # a line every fifth step: the next rollouts logged are the nearest of that policy
    metrics = [
        {"iteration": s, "entropy/exact": 2 - 0.01 * s, "reward/mean": 0.1, key: 0.01 * s}
        for s in range(0, 80, 5)
    ]
    found = law.pairs_of(logged(metrics))
    assert (found.score_key, found.point) == (key, "evaluation")
    assert found.score == pytest.approx([0.01 * s for s in range(0, 75, 5)])
    assert found.entropy == pytest.approx([2 - 0.01 * (s + 5) for s in range(0, 75, 5)])


def test_a_metric_by_the_name_that_its_trainer_gave_it(tmp_path: Path) -> None:
    lines = (
        f"step:{i} - actor/entropy:{1 - 0.01 * i:.3f} - critic/score/mean:{0.01 * i:.3f}\n"
        for i in range(1, 31)
    )
    (tmp_path / "verl.log").write_text("".join(lines))
    run = read(tmp_path / "verl.log")
    found = law.pairs_of(run, score="critic/score/mean", entropy="actor/entropy")
    assert found.score == pytest.approx([0.01 * i for i in range(1, 31)])
    assert found.entropy == pytest.approx([1 - 0.01 * i for i in range(1, 31)])


def of(a: float, b: float) -> law.EntropyLaw:
    h = curve(30)
    return law.fit(h, b - a * np.exp(h))


def test_coefficients_by_size_by_hand() -> None:
    # sizes 1, e, e^2 are 0, 1, 2 in ln: a = .1 + .1 ln(size) exactly, b = .5, .8, .8
    found = law.coefficients_by_size(
        [1.0, math.e, math.e**2], [of(0.1, 0.5), of(0.2, 0.8), of(0.3, 0.8)]
    )
    assert (found.a.slope, found.a.intercept) == pytest.approx((0.1, 0.1))
    assert found.a.residuals == pytest.approx((0, 0, 0), abs=1e-12)
    assert (found.b.slope, found.b.intercept) == pytest.approx((0.15, 0.55))
    assert found.b.residuals == pytest.approx((-0.05, 0.1, -0.05))
    # squares of the residuals .015, of the deviations -.2, .1, .1 from the mean .06
    assert found.b.r2 == pytest.approx(1 - 0.015 / 0.06)
    assert found.a.predict(math.e**3) == pytest.approx(0.4)
    assert found.ceiling(math.e**3) == pytest.approx(1.0 - 0.4)
    assert found.doubts == ("3 sizes are few to tell a line in ln(size) from a curve.",)


def test_coefficients_by_size_agree_with_scipy() -> None:
    rng = np.random.default_rng(8)
    sizes = [0.36, 1.31, 2.77, 6.53, 31.0, 31.0]
    a, b = rng.random(6), 1 + rng.random(6)
    found = law.coefficients_by_size(sizes, [of(x, y) for x, y in zip(a, b, strict=True)])
    for line, values in ((found.a, a), (found.b, b)):
        expected = stats.linregress(np.log(sizes), values)
        assert (line.slope, line.intercept) == pytest.approx((expected.slope, expected.intercept))
        assert line.r2 == pytest.approx(expected.rvalue**2)
        assert line.residuals == pytest.approx(
            values - expected.intercept - expected.slope * np.log(sizes)
        )


def test_a_coefficient_that_never_moves_raises_no_doubt() -> None:
    found = law.coefficients_by_size([1, 2, 4, 8], [of(a, 1.0) for a in (0.1, 0.2, 0.3, 0.4)])
    assert found.b.slope == pytest.approx(0, abs=1e-12)
    assert math.isnan(found.b.r2)
    assert found.doubts == ()


def test_doubts_about_sizes() -> None:
    two = law.coefficients_by_size([1, 2], [of(0.1, 0.5), of(0.2, 0.8)])
    assert two.doubts == (
        "A line through two sizes has nothing left to be tested on; add a third size.",
    )
    laws = [of(a, 1.0) for a in (0.1, 0.3, 0.3, 0.1)]
    assert any(
        d.startswith("a does not follow ln(size): R^2 is 0.00")
        for d in law.coefficients_by_size([1, 2, 4, 8], laws).doubts
    )


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([1.0], "sizes has 1 numbers for 2 laws"),
        ([1.0, 0.0], "sizes must be finite and above 0, got 0.0"),
        ([1.0, math.inf], "sizes must be finite and above 0, got inf"),
        ([7.0, 7.0], r"two different sizes or more, got \[7.0, 7.0\]"),
    ],
)
def test_bad_sizes_are_refused(sizes: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=f"coefficients_by_size: .*{words}"):
        law.coefficients_by_size(sizes, [of(0.1, 0.5), of(0.2, 0.8)])


def test_the_module_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, entrostat.law; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
