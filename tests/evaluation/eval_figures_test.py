"""The figures of an evaluation: by enumeration, by hand, against nltk, scikit-learn and scipy."""

from __future__ import annotations

import math
import random
import types
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import entrostat as es
from builders import refused
from entrostat.errors import RunStopped
from entrostat.evaluation.canonical import forms, votes
from entrostat.evaluation.evaluator import clusters
from entrostat.evaluation.results import figures, of_problem, shown
from entrostat.evaluation.statistics import auroc, majorities

RNG = np.random.default_rng(15)


def line(scores: list[float], **other: Any) -> dict[str, Any]:
    """A problem's line; `responses` are its samples' numbers unless given."""
    k = len(scores)
    texts = [str(i) for i in range(k)]
    plain = {
        "problem": 0, "prompt": "p", "answer": "a", "responses": texts, "scores": scores,
        "logp": [-1.0] * k, "entropy": [1.0] * k, "tokens": [1] * k, "finished": [True] * k,
        "forms": other.get("responses", texts),
        "votes": other.get("forms", other.get("responses", texts)), "clusters": None,
        "prompt_entropy": None, "base_prompt_entropy": None, "failed": 0,
    }  # fmt: skip
    return plain | other


def vote(answers: list[str | None], right: dict[str, float]) -> float:
    """Chance that a winner of one vote is right."""
    counts = Counter(a for a in answers if a is not None)
    winners = [a for a, c in counts.items() if c == max(counts.values())]
    return sum(right[a] for a in winners) / len(winners) if winners else 0.0


@pytest.mark.parametrize("n", range(1, 9))
def test_maj_at_k_is_the_mean_over_all_subsets(n: int) -> None:
    for _ in range(6):
        answers = [(None, "a", "b", "c", "d")[i] for i in RNG.integers(0, 5, n)]
        right = {a: float(RNG.integers(0, 2)) for a in "abcd"}
        correct = [0.0 if a is None else right[a] for a in answers]
        for k in range(1, n + 1):
            votes = [vote([answers[i] for i in some], right) for some in combinations(range(n), k)]
            expected = pytest.approx(sum(votes) / len(votes), abs=1e-12)
            assert es.metrics.maj_at_k(answers, correct, k) == expected, (answers, correct, k)
            assert majorities(answers, correct)[k - 1] == expected


def test_maj_at_k_by_hand_and_of_many() -> None:
    # of 3 votes for a (right), 2 for b: a loses only to pairs of b alone, ties count half
    answers, correct = ["a", "a", "a", "b", "b"], [1, 1, 1, 0, 0]
    assert es.metrics.maj_at_k(answers, correct, 1) == pytest.approx(3 / 5)
    assert es.metrics.maj_at_k(answers, correct, 2) == pytest.approx((3 + 6 / 2) / 10)
    assert es.metrics.maj_at_k(answers, correct, 3) == pytest.approx((1 + 6) / 10)
    # equal answers that were scored differently count by their share
    assert es.metrics.maj_at_k(["a", "a"], [1, 0], 2) == 0.5
    assert es.metrics.maj_at_k([None, None], [0, 0], 2) == 0.0
    found = majorities([str(i) for i in range(100)], [1.0] * 50 + [0.0] * 50)
    np.testing.assert_allclose(found, 0.5, rtol=1e-9)  # a tie of all: each is as likely
    refused(lambda: es.metrics.maj_at_k(["a"] * 257, [1] * 257, 2), "got n=257", "k=2")
    for bad in (0, 6):
        with pytest.raises(ValueError, match=f"maj_at_k: need 1 <= k <= n, got n=5, k={bad}"):
            es.metrics.maj_at_k(answers, correct, bad)
    refused(lambda: es.metrics.maj_at_k(answers, correct[:4], 1), "5 answers")


def test_self_bleu_is_nltks() -> None:
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    words = "the a sum of digits is seven eight nine plus".split()
    texts = [[words[i] for i in RNG.integers(0, len(words), n)] for n in (5, 7, 9, 6, 12)]
    smooth = SmoothingFunction(epsilon=0.1).method1
    scores = []
    for i, text in enumerate(texts):
        others = [other for j, other in enumerate(texts) if j != i]
        for order in range(1, 5):
            weights = tuple(1 / order for _ in range(order))
            scores.append(sentence_bleu(others, text, weights, smooth))
    assert es.metrics.self_bleu(texts) == pytest.approx(np.mean(scores), abs=1e-9)


def test_ece_and_auroc_are_scikit_learns() -> None:
    from sklearn.calibration import calibration_curve
    from sklearn.metrics import roc_auc_score

    p = np.round(RNG.random(400), 2)  # some on the edges of bins, many equal
    right = (RNG.random(400) < p**2).astype(float)
    for bins in (5, 10, 15):
        share, confidence = calibration_curve(right, p, n_bins=bins)
        place = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], p)
        weight = np.bincount(place, minlength=bins)
        expected = (weight[weight > 0] * np.abs(share - confidence)).sum() / len(p)
        found = es.metrics.expected_calibration_error(p, right, bins)
        assert found == pytest.approx(expected, abs=1e-12)
    assert auroc(p, right) == pytest.approx(roc_auc_score(right, p), abs=1e-12)
    times = RNG.integers(0, 4, 400)  # weights are repetitions
    assert auroc(p, right, times) == pytest.approx(
        roc_auc_score(np.repeat(right, times), np.repeat(p, times)), abs=1e-12
    )
    assert es.metrics.expected_calibration_error(p, right, weights=times) == pytest.approx(
        es.metrics.expected_calibration_error(np.repeat(p, times), np.repeat(right, times))
    )
    assert math.isnan(auroc([0.5, 0.6], [1, 1]))
    for p, right, words in (
        ([0.1], [1, 0], "lists of equal length"), ([0.1, math.nan], [1, 0], r"value\[1\] is nan"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            auroc(p, right)


def test_ece_by_hand_and_what_it_refuses() -> None:
    # bin (.9, 1]: .95 against 1 right of 2; bin [0, .1]: .1, an edge, against none of 1
    ece = es.metrics.expected_calibration_error
    assert ece([0.95, 0.95, 0.1], [1, 0, 0]) == pytest.approx(2 / 3 * 0.45 + 1 / 3 * 0.1)
    for p, right, words in (
        ([0.5], [1, 0], "lists of equal length"), ([], [], "lists of equal length"),
        ([1.5], [1], "must lie in"), ([math.nan], [1], "must lie in"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            ece(p, right)
    refused(lambda: ece([0.5], [1], bins=0), "bins", "got 0")


@pytest.mark.parametrize("distance", [0.05, 0.3, 0.8])
def test_clusters_are_scikit_learns(distance: float) -> None:
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.metrics import adjusted_rand_score

    x = RNG.normal(size=(40, 3))
    found = clusters(x, distance)
    expected = AgglomerativeClustering(
        n_clusters=None, metric="cosine", linkage="average", distance_threshold=distance
    ).fit_predict(x)
    assert adjusted_rand_score(found, expected) == 1
    assert len(set(found)) > 1
    assert found[0] == 0
    first = [found.index(label) for label in sorted(set(found))]
    assert first == sorted(first)  # numbered as they appear


def test_clusters_of_few_and_of_none() -> None:
    assert clusters([[1.0, 2.0]], 0.1) == [0]
    assert clusters([[1, 0], [2, 0], [0, 0]], 0.1) == [0, 0, 1]  # length is no meaning
    refused(lambda: clusters([[math.inf, 1.0], [1.0, 1.0]], 0.1), "embeddings")


def test_a_problems_figures_by_hand() -> None:
    found = of_problem(
        line(
            [1, 1, 0, 1], responses=["3+4", "4+3", "4+4", "3+4"], forms=["3+4", "4+3", None, "3+4"],
            tokens=[2, 4, 6, 8], finished=[True, True, False, True], clusters=[0, 1, 1, 0],
            prompt_entropy=0.5, failed=1,
        )
    )  # fmt: skip
    assert found["avg@4"] == found["pass@1"] == 0.75
    assert found["pass@2"] == found["pass@4"] == 1.0
    assert found["maj@1"] == 0.75  # the third abstains
    assert found["maj@4"] == 1.0
    assert found["distinct"] == found["clusters"] == 2
    assert (found["length"], found["truncated"], found["failed"]) == (5.0, 0.25, 0.25)
    assert found["prompt_entropy"] == 0.5
    assert found["ngram_diversity"] == es.metrics.ngram_diversity(["3+4", "4+3", "4+4", "3+4"])
    assert [shown(k) for k in (1, 6, 8)] == [[1], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_a_problem_without_any_answer_counts_in_majorities() -> None:
    """One of five problems is right, the others' responses were cut off: maj@1 is pass@1."""
    silent = line([0, 0, 0, 0], forms=[None] * 4)
    found = figures([line([1] * 4, forms=["7"] * 4), *[silent] * 4], resamples=0)
    assert found["pass@1"]["value"] == found["maj@1"]["value"] == found["maj@4"]["value"] == 0.2


def test_entropies_are_per_token_and_prompts_are_set_against_the_base() -> None:
    lines = [
        line([1, 0], tokens=[1, 3], entropy=[2.0, 1], prompt_entropy=1.0, base_prompt_entropy=2.0),
        line([0, 0], tokens=[6, 0], entropy=[0.5, 0], prompt_entropy=0.5, base_prompt_entropy=1.0),
        line([1, 1], tokens=[5, 5], entropy=[0.2, 0.4], prompt_entropy=0.3),
    ]  # fmt: skip
    found = figures(lines, resamples=0)
    assert found["entropy"]["value"] == pytest.approx((2 + 3 + 3 + 1 + 2) / 20)
    assert found["entropy_per_response"]["value"] == pytest.approx((1.5 + 0.25 + 0.3) / 3)
    assert found["prompt_entropy"]["value"] == pytest.approx(1.8 / 3)
    assert found["prompt_entropy_ratio"]["value"] == pytest.approx(1.5 / 3.0)  # those with a base
    rho = stats.spearmanr([1.0, 0.5, 0.3], [0.5, 0.0, 1.0]).statistic
    assert found["spearman_prompt_entropy"]["value"] == pytest.approx(rho)
    assert found["avg@2"] == {"value": 0.5, "low": None, "high": None}


def test_calibration_by_hand() -> None:
    lines = [line([1, 0], logp=[-0.1, -0.5]), line([1, 0], logp=[-0.3, -0.1])]
    found = {key: figure["value"] for key, figure in figures(lines, resamples=0).items()}
    assert found["logp_right"] == pytest.approx(-0.2)
    assert found["logp_wrong"] == pytest.approx(-0.3)
    assert found["logp_gap"] == pytest.approx(0.1)
    assert found["auroc"] == pytest.approx((1 + 0.5 + 1 + 0) / 4)
    p = np.exp([-0.1, -0.5, -0.3, -0.1])
    expected = es.metrics.expected_calibration_error(p, [1, 0, 1, 0])
    assert found["ece"] == pytest.approx(expected)
    silent = figures([line([1, 0], logp=None, entropy=None)], resamples=0)
    assert not {"entropy", "auroc", "ece", "logp_gap"} & set(silent)


def test_intervals_are_those_of_the_mean_over_problems() -> None:
    n = 300
    scores = (RNG.random((n, 2)) < RNG.random((n, 1))).astype(float)
    lines = [line(list(row), prompt_entropy=float(RNG.random())) for row in scores]
    found = figures(lines, 1000, 3, "set")
    mean = scores.mean(1)
    wide = 1.96 * mean.std() / n**0.5  # what problems vary, responses within them included
    figure = found["avg@2"]
    assert figure["value"] == pytest.approx(mean.mean())
    assert figure["low"] == pytest.approx(mean.mean() - wide, abs=0.12 * wide)
    assert figure["high"] == pytest.approx(mean.mean() + wide, abs=0.12 * wide)
    # Fisher's interval of a correlation of 0
    rho = found["spearman_prompt_entropy"]
    assert rho["high"] - rho["low"] == pytest.approx(2 * 1.96 / (n - 3) ** 0.5, rel=0.15)
    few = lines[:20]
    assert figures(few, 50, 3, "set") == figures(few, 50, 3, "set")
    assert figures(few, 50, 3, "set")["avg@2"] != figures(few, 50, 3, "other")["avg@2"]
    assert figures(lines[:1], 50)["avg@2"]["low"] is None


@pytest.mark.parametrize(
    ("grader", "said"),
    [
        ("number", ["so 7", "x = 7.0", "8", "none", "it is 8.0"]),
        ("math", [r"\boxed{\frac12}", "The answer is 0.5", r"$\boxed{ 2 }$", "", r"\boxed{2}"]),
        ("exact", ["a", "<answer>a</answer>", "b", "", "well <answer>b</answer>"]),
    ],
)
def test_what_graded_responses_vote_for(grader: str, said: list[str]) -> None:
    task: Any = types.SimpleNamespace(name="t", grader=grader)
    found = votes(task, said, [1, 1, 0, 0, 0])  # two right ones, however they are written
    assert found[0] == found[1] != found[2] == found[4]
    assert found[2] is not None
    assert found[3] is None


def test_votes_heed_the_graders_options(tmp_path: Path) -> None:
    """Where an answer stands in a box alone, the others abstain, as they score nothing."""
    (tmp_path / "t.jsonl").write_text('{"prompt": "2+2", "answer": "4"}\n')
    task = es.make_task(
        str(tmp_path / "t.jsonl"), grader="math", grader_options={"extract": "boxed"}, test=0
    )
    said = ["The answer is 5.", "The answer is 5.", r"\boxed{4}"]
    assert [task.score(text, task.example(0, "train")) for text in said] == [0, 0, 1]
    found = votes(task, said, [0, 0, 1])
    assert found[:2] == [None, None]
    assert found[2] is not None


def test_what_others_vote_for() -> None:
    gym: Any = types.SimpleNamespace(name="gym:x")
    assert votes(gym, ["so <answer> 3 </answer>", "3", " "], [1, 1, 0]) == ["3", "3", None]
    own: Any = types.SimpleNamespace(name="own", canonical=str.lower)
    assert votes(own, ["A ", "a", "B"], [1, 1, 1]) == ["a", "a", "b"]
    wrong: Any = types.SimpleNamespace(name="own", canonical=lambda text: 1)
    refused(lambda: forms(wrong, ["A"]), "own.canonical", "'A'", error=RunStopped)


def test_of_many_responses_only_all_vote() -> None:
    found = of_problem(line([1.0] * 200 + [0.0] * 100, forms=["a"] * 200 + ["b"] * 100))
    assert found["maj@300"] == 1.0
    assert "maj@256" not in found


def test_a_share_that_is_1_in_all_problems_has_an_interval_below_it() -> None:
    """30 of 30: Clopper and Pearson's 0.884 to 1; 0 of 30 the mirror of it."""
    lines = [line([1.0]) for _ in range(30)]
    found = figures(lines, 200)["avg@1"]
    assert found["value"] == found["high"] == 1.0
    assert found["low"] == pytest.approx(0.8843, abs=1e-4)
    found = figures([line([0.0]) for _ in range(30)], 200)["avg@1"]
    assert (found["value"], found["low"]) == (0.0, 0.0)
    assert found["high"] == pytest.approx(0.1157, abs=1e-4)


def test_all_right_in_many_forms_is_a_share_of_exactly_1() -> None:
    """Whoever wins a vote is right, whatever its sums round to: .025^(1/5) = .4782."""
    chance = random.Random(0)
    lines = [line([1.0] * 32, forms=chance.choices("abcdefgh", k=32)) for _ in range(5)]
    found = figures(lines, 50)
    for j in (1, 2, 4, 8, 16, 32):
        assert found[f"maj@{j}"] == {"value": 1.0, "low": pytest.approx(0.025**0.2), "high": 1.0}
