"""The report's figures of entropy dynamics, its law section, bands, other trainers' runs."""

import base64
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import entropy

from dynamics_runs import curves, full_line, make_run
from entrostat.law import fit
from entrostat.logs.run import Problem
from entrostat.report import write_comparison, write_report
from entrostat.report.dynamics import dynamics_of
from entrostat.report.dynamics.course import ema
from entrostat.report.dynamics.pooled import pooled_panels
from entrostat.report.dynamics.tokens import shown
from entrostat.report.figures import Band, Bars, Curve, Panel, Points, _plot, _set_axes, draw
from entrostat.report.law import law_of
from entrostat.report.overlays import comparison_panels
from entrostat.report.seeds import common_name, entries_of
from pages import EVIL

pytestmark = pytest.mark.usefixtures("unrendered")


def panels_of(run):
    return {p.title: p for section in dynamics_of(run).sections for p in section.panels}


def lines_of(entropy, reward):
    return [
        {"iteration": i, "entropy/exact": h, "reward/mean": r}
        for i, (h, r) in enumerate(zip(entropy, reward, strict=True), 1)
    ]


# --- figures of one run


def test_nothing_logged_draws_nothing():
    dynamics = dynamics_of(make_run())
    assert (dynamics.sections, dynamics.estimators, dynamics.tokens) == ((), (), ())


def test_moving_average_by_hand():
    assert ema([1.0, 0.0, 0.0, 1.0]) == pytest.approx([1, 0.6, 0.36, 0.616])
    panels = panels_of(make_run(lines_of([1, 0, 0, 1, 0], [0] * 5)))
    x, y = curves(panels["Entropy, smoothed"])["moving average"]
    assert x == [1, 2, 3, 4, 5]
    assert y == pytest.approx([1, 0.6, 0.36, 0.616, 0.3696])


def test_score_against_entropy_and_its_sum():
    # entropy tells the score: I = ln 2 = .693; two cells, two and two bins in use, so that the
    # first order of the bias is (2 - 2 - 2 + 1) / 32, and .693 + .031 = .724
    panels = panels_of(make_run(lines_of([1.0, 2.0] * 8, [0.0, 1.0] * 8)))
    cloud = panels["Score against entropy"]
    assert "Mutual information 0.72 nats (4 by 4 bins" in cloud.caption
    assert [p.label for p in cloud.points] == ["first third", "second", "last"]
    assert [len(p.x) for p in cloud.points] == [5, 5, 6]
    assert list(cloud.points[0].x) == [1, 2, 1, 2, 1]
    assert list(cloud.points[0].y) == [0, 1, 0, 1, 0]
    summed = panels["Score against cumulative entropy"]
    assert "Mutual" not in summed.caption  # of one run it would be that of the iteration
    assert list(summed.points[0].x) == [1, 3, 4, 6, 7]
    assert max(summed.points[-1].x) == 24
    both = curves(panels["Entropy and score"])
    assert both["entropy"][1][:2] == [1, 2]
    assert both["score"][1][:2] == [0, 1]


def test_iterations_without_a_score_are_no_points():
    lines = lines_of([1.0] * 8, [0.5] * 8)
    del lines[2]["reward/mean"], lines[5]["entropy/exact"]
    cloud = panels_of(make_run(lines))["Score against entropy"]
    assert sum(len(p.x) for p in cloud.points) == 6


def test_few_iterations_make_no_cloud():
    assert "Score against entropy" not in panels_of(make_run(lines_of([1.0] * 4, [0.5] * 4)))


def test_a_long_run_is_thinned():
    wave = [1 + 0.5 * math.sin(i) for i in range(3000)]
    cloud = panels_of(make_run(lines_of(wave, [h / 2 for h in wave])))["Score against entropy"]
    assert 300 <= sum(len(p.x) for p in cloud.points) <= 405


def test_flow_has_its_decrease_below_zero():
    lines = [
        {"iteration": 2, "flow": {"influence": {"increase": 3.0, "decrease": 4.0, "net": -1.0,
                                                "balance": 1 / 7}}},
        {"iteration": 4, "flow": {"influence": {"increase": 5.0, "decrease": float("nan")},
                                  "opefo": None}},
    ]  # fmt: skip
    panels = panels_of(make_run(analysis=lines))
    assert list(panels) == ["Flow by influence", "Balance λ"]
    assert curves(panels["Flow by influence"]) == {
        "increase": ([2, 4], [3, 5]), "decrease": ([2], [-4]), "net": ([2], [-1])
    }  # fmt: skip
    assert curves(panels["Balance λ"]) == {"influence": ([2], [1 / 7])}


def test_one_large_iteration_does_not_flatten_the_others():
    def scale(first):
        sizes = [first, 0.1, 0.1, 0.1]
        lines = [{"iteration": i, "flow": {"change": {"net": v}}} for i, v in enumerate(sizes)]
        return panels_of(make_run(analysis=lines))["Flow by true change"].scale

    assert (scale(2.0), scale(2.1)) == ("linear", "symlog")  # above 20 times the median


def test_the_flow_of_every_update_is_shown():
    lines = [{"iteration": 1, "flow/increase": 0.5, "flow/decrease": 0.25, "flow/balance": -1 / 3}]
    panels = panels_of(make_run(lines))
    assert curves(panels["Flow of the updates, by Eq. 6"]) == {
        "increase": ([1], [0.5]), "decrease": ([1], [-0.25])
    }  # fmt: skip
    assert curves(panels["Balance λ"]) == {"Eq. 6, every iteration": ([1], [-1 / 3])}


def test_loss_of_entropy_against_covariance():
    # -dH = 2 cov: Pearson 1; the third line has its covariance in the table alone
    lines = [{"iteration": i, "cov/mean": float(i), "change/mean": -2.0 * i} for i in range(1, 7)]
    del lines[2]["cov/mean"]
    lines[2]["covariance"] = {"1": 3.0}
    panel = panels_of(make_run(analysis=lines))["Loss of entropy against covariance"]
    assert [x for p in panel.points for x in p.x] == [1, 2, 3, 4, 5, 6]
    assert [y for p in panel.points for y in p.y] == [2, 4, 6, 8, 10, 12]
    assert panel.caption.endswith("which is to predict it. Pearson 1.00, Spearman 1.00.")
    # of Thm 1's, 1, 4, 9, 16, 25, 36 against 2 to 12 reversed: ranks -1, r -.9790
    pg = [line | {"cov/pg_mean": float((7 - i) ** 2)} for i, line in enumerate(lines, 1)]
    panel = panels_of(make_run(analysis=pg))["Loss of entropy against covariance"]
    assert panel.caption.endswith("(PAR Eq. 16): Pearson -0.98, Spearman -1.00.")
    same = [{"iteration": i, "cov/mean": 1.0, "change/mean": -1.0} for i in range(6)]
    panel = panels_of(make_run(analysis=same))["Loss of entropy against covariance"]
    assert "Pearson" not in panel.caption


def test_covariance_of_whole_responses_is_that_of_every_iteration_where_it_is_logged():
    found = {"mean": 0.25, "prompts": 4, "hard": {"prompts": 2, "reward": 0.1, "cov": 0.125}}
    lines = [{"iteration": 3, "prompt_covariance": found}]
    title = "Covariance of whole responses"
    assert curves(panels_of(make_run(analysis=lines))[title]) == {
        "all prompts": ([3], [0.25]), "hard": ([3], [0.125])
    }  # fmt: skip
    metrics = [{"iteration": i, "cov/prompt": i / 8, "cov/prompt_easy": 1.0} for i in (3, 4)]
    assert curves(panels_of(make_run(metrics, lines))[title]) == {
        "all prompts": ([3, 4], [0.375, 0.5]), "hard": ([3], [0.125]), "easy": ([3, 4], [1, 1])
    }  # fmt: skip


def test_places_are_summed_where_their_bins_do_not_overlap():
    def row(low, high, influence, change=None):
        return {"from": low, "to": high, "influence": influence, "change": change}

    lines = [
        {"iteration": 1, "position": [row(0, 2, 100.0)]},  # other bins
        {"iteration": 2, "position": [row(0, 1, 1.0), row(1, 3, 2.0), row(3, 4, 6.0)]},
        {"iteration": 3, "position": [row(1, 3, 5.0, 0.5), row(0, 1, 3.0)]},
    ]
    panel = panels_of(make_run(analysis=lines))["By place in the completion"]
    influence, change = panel.bars
    assert (list(influence.names), list(influence.values)) == (["1", "2-3", "4"], [4, 7, 6])
    assert (change.label, list(change.values)) == ("change", [0, 0.5, 0])
    assert "2 analysed iterations" in panel.caption


def test_quadrants_outcomes_and_clipped_tokens():
    lines = [
        {
            "iteration": 3,
            "quadrants": {"I": {"share": 0.5, "influence": -0.25, "change": -0.125}},
            "correct": {"wrong": {"influence": 0.5, "change": 0.75}},
            "clipped": {
                "high": {"share": 0.1, "change": 0.0625, "opefo": 8.0},
                "low": {"in_update": -0.25},
            },
            "entropy": {"right": 0.5, "negative": 0.75},
        }
    ]
    panels = panels_of(make_run(analysis=lines))
    for title, label, value in (
        ("Quadrants: share of tokens", "I: A>0, p>.8", 0.5),
        ("Quadrants: influence", "I: A>0, p>.8", -0.25),
        ("Quadrants: change", "I: A>0, p>.8", -0.125),
        ("Right and wrong: influence", "wrong", 0.5),
        ("Right and wrong: change", "wrong", 0.75),
        ("Change at tokens clipped in the end", "high", 0.0625),
        ("Eq. 6 at clipped tokens", "high", 8.0),
        ("Change at clipped tokens, in the update", "low", -0.25),
    ):
        assert curves(panels[title]) == {label: ([3], [value])}
    assert curves(panels["Entropy by outcome"]) == {"right": ([3], [0.5]), "A < 0": ([3], [0.75])}


def test_the_cloud_is_that_of_the_last_line_which_has_one():
    lines = [
        {"iteration": 1, "cloud": {"before": [[9, 9]], "after": [[9, 9]]}},
        {"iteration": 2, "cloud": {"before": [[1, -2], [None, 1], [1], "x"], "after": [[0.5, -2]]}},
        {"iteration": 3, "cloud": {}},
    ]
    panel = panels_of(make_run(analysis=lines))["Advantage and log-prob"]
    assert "iteration 2" in panel.caption
    assert [(p.label, list(p.x), list(p.y)) for p in panel.points] == [
        ("before", [1], [-2]), ("after", [0.5], [-2])
    ]  # fmt: skip
    one = panels_of(make_run(analysis=lines[:1]))["Advantage and log-prob"]
    assert len(one.points) == 1
    assert "leave as it is" in one.caption
    many = {"iteration": 1, "cloud": {"after": [[i, -i] for i in range(5000)]}}
    (cloud,) = panels_of(make_run(analysis=[many]))["Advantage and log-prob"].points
    assert 200 <= len(cloud.x) <= 400


def test_tokens_changes_against_entropy_and_estimates():
    """STEER Fig. 4, 12 and 13: a point a token, and means of tenths of the tokens."""
    pairs = [[i, -2 * i] for i in range(20)]
    lines = [
        {"iteration": 1, "cloud": {key: [[5, 5]] for key in ("entropy", "omega", "cov")}},
        {"iteration": 4, "cloud": {"entropy": pairs[::-1], "omega": [[1, 3], [None, 2]]}},
    ]
    panels = panels_of(make_run(analysis=lines))
    panel = panels["Entropy of a token and its change"]
    assert "iteration 4" in panel.caption
    assert [(list(p.x), list(p.y)) for p in panel.points] == [([*range(20)], [*range(0, -40, -2)])]
    assert curves(panel) == {"mean": ([0.5 + 2 * i for i in range(10)],
                                      [-1 - 4 * i for i in range(10)])}  # fmt: skip
    assert curves(panels["STEER's estimate and the change"]) == {"mean": ([1], [3])}
    assert "iteration 1" in panels["Covariance and the change"].caption


def test_clipped_tokens_by_probability():
    """STEER Fig. 3a, over the lines: 4 and 2 of 10 above, 5 of 10 below in another bin."""
    lines = [
        {"iteration": 1, "clipped_by_probability": [
            {"from": 0.0, "to": 0.1, "tokens": 4, "high": 4, "low": 0},
            {"from": 0.9, "to": 1.0, "tokens": 10, "high": 0, "low": 5}]},
        {"iteration": 2, "clipped_by_probability": [
            {"from": 0.0, "to": 0.1, "tokens": 6, "high": 2, "low": 0}]},
    ]  # fmt: skip
    panel = panels_of(make_run(analysis=lines))["Clipped tokens by probability"]
    assert panel.across == "probability under the old policy"
    above, below = panel.bars
    assert (above.names, above.values) == (["0-0.1", "0.9-1"], [0.6, 0.0])
    assert below.values == [0.0, 0.5]
    quiet = [{"iteration": 1, "clipped_by_probability": [
        {"from": 0.0, "to": 0.1, "tokens": 4, "high": 0, "low": 0}]}]  # fmt: skip
    assert "Clipped tokens by probability" not in panels_of(make_run(analysis=quiet))


def test_mean_weight_against_the_size_of_the_change():
    """STEER Fig. 9; a method that weighs all tokens 1 has no such figure."""
    weights = [0.9, 0.8, 0.95, 0.7, 0.99]
    lines = [
        {"iteration": i, "weight/mean": w, "change/mean": (-1) ** i * i / 8}
        for i, w in enumerate(weights, 1)
    ]
    panel = panels_of(make_run(analysis=lines))["Mean weight and change"]
    found = {x: y for cloud in panel.points for x, y in zip(cloud.x, cloud.y, strict=True)}
    assert found == {i / 8: w for i, w in enumerate(weights, 1)}
    plain = [line | {"weight/mean": 1.0} for line in lines]
    assert "Mean weight and change" not in panels_of(make_run(analysis=plain))


def test_quantiles_are_a_fan():
    lines = [{"iteration": 5, "quantiles": {"0.05": 0, "0.95": 2, "0.25": 1, "0.5": 1.5}}]
    panel = panels_of(make_run(analysis=lines))["Entropy of tokens"]
    (band,) = panel.bands  # no 0.75: no inner band
    assert (band.label, band.x, band.low, band.high) == ("5 % to 95 %", [5], [0], [2])
    assert curves(panel) == {"median": ([5], [1.5])}


def test_evaluations_relative_to_the_start():
    def line(iteration, split, entropy, avg):
        return {"iteration": iteration, "split": split, "k": 4, "entropy": entropy, "avg@k": avg,
                "prompt_entropy": 8 - iteration if split == "test" else None}  # fmt: skip

    evaluation = [
        line(0, "test", 0.8, 0.1), line(0, "ood", 0.5, 0.2), line(3, "test", 0.4, 0.3),
        line(3, "ood", 0.25, None), line(6, "test", 0.6, 0.5), line(3, "late", 1.0, 0.1),
    ]  # fmt: skip
    panels = panels_of(make_run(evaluation=evaluation))
    assert curves(panels["Entropy of held-out responses"]) == {
        "test": ([0, 3, 6], pytest.approx([1, 0.5, 0.75])), "ood": ([0, 3], [1, 0.5])
    }  # fmt: skip
    assert curves(panels["Entropy on held-out prompts"]) == {"test": ([0, 3, 6], [1, 5 / 8, 1 / 4])}
    assert curves(panels["Scores of held-out prompts"]) == {
        "avg@4, test": ([0, 3, 6], [0.1, 0.3, 0.5])
    }
    assert panels_of(make_run(evaluation=evaluation[:2])) == {}


def test_estimators_are_averaged():
    lines = [
        {"iteration": 1, "estimators": {
            "mine": {"which": {"sign": 0.5}}, "empty": {}, "bad": 3,
            "opefo": {"where": {"mse": 1.0, "pcc": 0.1, "srcc": None}, "which": {"pcc": 0.5},
                      "update": {"mse_eta_l": 0.25, "scaled_mse": 0.5, "mse": 9.0, "pcc": 1.0}}}},
        {"iteration": 2, "estimators": {
            "cov": {"where": {"scaled_mse": 0.75}},
            "opefo": {"where": {"mse": 3.0, "pcc": 0.3, "srcc": float("nan")},
                      "update": {"mse_eta_l": 0.75, "srcc": -0.5}}}},
        {"iteration": 3, "estimators": None},
    ]  # fmt: skip
    dynamics = dynamics_of(make_run(analysis=lines))
    cov, opefo, mine = dynamics.estimators
    assert (cov.name, opefo.name, mine.name, mine.words) == ("cov", "opefo", "mine", "")
    # scaled first, as it stands second
    assert cov.where == (0.75, None, None, None)
    assert opefo.where == (None, 2.0, pytest.approx(0.2), None)
    assert opefo.update == (0.5, 0.5, 9.0, 1.0, -0.5)
    assert (cov.update, dynamics.by_update) == ((None,) * 5, True)
    assert (opefo.which, mine.which) == ((0.5, None, None), (None, None, 0.5))
    assert dynamics.estimator_lines == 2
    panels = {p.title: p for s in dynamics.sections for p in s.panels}
    assert curves(panels["Where: Pearson"]) == {"opefo": ([1, 2], [0.1, 0.3])}
    # one line has no course: its table says it all
    older = [{"iteration": 1, "estimators": {"cov": {"where": {"mse": 1.0}}}}]
    assert not dynamics_of(make_run(analysis=older)).by_update
    alone = dynamics_of(make_run(analysis=lines[:1]))
    assert len(alone.estimators) == 2
    assert [s.panels for s in alone.sections] == [()]


def test_tokens_are_summed_and_their_bars_share_a_zero():
    lines = [
        {"iteration": 1, "tokens": [{"text": "a", "count": 2, "influence": 1.0, "change": 0.5},
                                    {"text": "b", "count": 1, "influence": -1.0}]},
        {"iteration": 2, "tokens": [{"text": "a", "count": 3, "influence": 2.0, "change": 0.25},
                                    {"text": 7, "influence": 9.0}, {"text": "c"}]},
    ]  # fmt: skip
    dynamics = dynamics_of(make_run(analysis=lines))
    a, b = dynamics.tokens
    assert (a.text, a.count, a.influence, a.change) == ("a", 5, 3, 0.75)
    assert (b.text, b.count, b.influence, b.change) == ("b", 1, -1, None)
    # from -1 to 3: zero at a quarter
    assert (a.left, a.width, b.left, b.width, dynamics.zero) == (25, 75, 0, 25, 25)
    assert (dynamics.token_lines, dynamics.token_limit) == (2, 3)


def test_token_texts_are_short_and_visible():
    assert shown(" a\n\t") == "␣a↵⇥"
    assert shown("") == "(no text)"
    assert shown("x" * 100) == "x" * 23 + "…"
    assert shown("\u202eab\ud800\0") == "\\u202eab\\ud800\\u0000"
    assert shown("模型") == "模型"


# --- several runs


def pooled(runs):
    entries = entries_of(runs, [run.name for run in runs])
    return {panel.title: panel for panel in pooled_panels(runs, entries)}


def of_entropies(name, entropies, scores, **more):
    """A run whose checkpoints have these scores; evaluated after every iteration."""
    evaluation = [
        {"iteration": i, "split": "test", "avg@k": score} for i, score in enumerate(scores)
    ]
    return make_run(
        lines_of(entropies, [0.5] * len(entropies)), evaluation=evaluation, path=Path(name),
        config={"method": name}, **more,
    )  # fmt: skip


def test_score_against_cumulative_entropy_pools_runs():
    # one run spends 1 per iteration, the other 3; the score is the sum's alone: below 8, or not
    high, low = [3.0] * 8, [1.0] * 8
    sums = [[h * (i + 1) for i, h in enumerate(run)] for run in (high, low)]
    scores = [[0.0, *[float(total >= 8) for total in run]] for run in sums]
    runs = [of_entropies("a", high, scores[0]), of_entropies("b", low, scores[1])]
    (panel,) = pooled(runs).values()
    assert panel.title == "Score against cumulative entropy, test"
    first, second, best = panel.points
    assert (list(first.x), list(second.x)) == tuple(sums)  # without iteration 0
    assert list(first.y) == scores[0][1:]
    assert (list(best.x), list(best.y)) == ([9, 8], [1, 1])
    # histograms of 4 by 4 equal bins, in scipy's entropies, less (cells - rows - columns + 1) / 2N
    score = scores[0][1:] + scores[1][1:]
    for name, x in (
        ("cumulative entropy", sums[0] + sums[1]), ("the iteration's entropy", high + low),
        ("the iteration's number", [*range(1, 9)] * 2),
    ):  # fmt: skip
        joint = np.histogram2d(x, score, bins=4)[0]
        rows, columns = joint.sum(1), joint.sum(0)
        found = entropy(rows) + entropy(columns) - entropy(joint.ravel())
        excess = (joint > 0).sum() - (rows > 0).sum() - (columns > 0).sum() + 1
        assert f"{found - excess / 32:.2f} with {name}" in panel.caption
    assert "All 16 evaluations after iteration 0 of 2 runs" in panel.caption
    assert pooled(runs[:1]) == {}  # one run says what its iterations say


def test_pooling_leaves_out_what_it_cannot_sum():
    scores = [0.0, 0.1, 0.2, 0.3, 0.4]
    runs = [of_entropies(name, [1.0, 2.0, 4.0, 8.0], scores) for name in ("a", "b", "c", "d")]
    del runs[1].metrics[1]  # its sums are known up to iteration 1 alone
    for line in runs[2].metrics:  # another kind of entropy
        line["entropy/nll"] = line.pop("entropy/exact")
    runs[3].evaluation[2]["avg@k"] = "x"
    runs[3].evaluation[3] = {"iteration": 9, "split": "test", "avg@k": 0.5}  # not logged
    runs[3].evaluation.append("no table")
    (panel,) = pooled(runs).values()
    assert [(p.label, list(p.x)) for p in panel.points] == [
        ("a", [1, 3, 7, 15]), ("b", [1]), ("d", [1, 15]), ("best of each run", [15, 1, 15])
    ]  # fmt: skip
    assert "Fewer than 16 are too few" in panel.caption
    assert pooled([make_run(), make_run()]) == {}


# --- whatever a log holds


JUNK = [float("nan"), float("inf"), None, "x", [], {}, [[]], [None], 10**400, True, -1e308, 1e308,
        {"a": 1}, [1, 2], "", -0.0, 1e-320]  # fmt: skip


def damaged(value, chance, dice):
    """A copy in which parts are missing or something else."""
    if dice.random() < chance:
        return dice.choice(JUNK)
    if isinstance(value, dict):
        return {
            key: damaged(v, chance, dice) for key, v in value.items() if dice.random() > chance / 2
        }
    if isinstance(value, list):
        return [damaged(v, chance / 20, dice) for v in value]
    return value


def damaged_run(seed, count=4):
    dice = random.Random(seed)
    chance = dice.choice([0.02, 0.1, 0.4, 0.9])

    def lines(iterations, **figures):
        return [
            {"iteration": i} | {key: damaged(v, chance, dice) for key, v in figures.items()}
            for i in iterations
        ]

    return make_run(
        lines(range(1, 9), **{"entropy/exact": 0.5, "entropy/nll": 0.4, "reward/mean": 0.1,
                              "flow/balance": 0.1, "flow/increase": 1.0, "control/zeta": 0.1}),
        [damaged(full_line(i), chance, dice) for i in range(1, 1 + count)],
        lines((0, 3, 5), **{"split": "test", "k": 4, "avg@k": 0.5, "pass@k": 0.5, "entropy": 1.0}),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_no_log_is_too_damaged(seed):
    run = damaged_run(seed)
    dynamics = dynamics_of(run)
    law_of(run)
    for section in dynamics.sections:
        for panel in section.panels:
            assert not panel.empty
            assert all(math.isfinite(v) and abs(v) < 1e31 for v in panel.values)
            for curve in (*panel.curves, *panel.points):
                assert len(curve.x) == len(curve.y) > 0
            assert len({len(bars.names) for bars in panel.bars}) <= 1
    for row in dynamics.tokens:
        assert 0 <= row.left <= 100.001
        assert row.left + row.width <= 100.001


@pytest.mark.parametrize("key", sorted(set(full_line(1)) - {"iteration"}))
def test_each_part_stands_alone(key):
    """One key of the lines at a time, and all but that one."""
    lines = [full_line(i) for i in range(1, 4)]
    alone = [{"iteration": line["iteration"], key: line[key]} for line in lines]
    rest = [{k: v for k, v in line.items() if k != key} for line in lines]
    whole = set(panels_of(make_run(analysis=lines)))
    assert set(panels_of(make_run(analysis=alone))) <= whole
    assert set(panels_of(make_run(analysis=rest))) <= whole
    dynamics_of(make_run(analysis=[*alone, "no table", {"iteration": None}, {}]))


# --- the page


def read(path):
    return path.read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.rendered
def test_a_page_of_150_iterations_is_small_and_hostile_texts_are_texts(tmp_path):
    metrics = [
        {"iteration": i, "entropy/exact": 0.2 + math.exp(-i / 40),
         "entropy/nll": 0.21 + math.exp(-i / 40), "reward/mean": 1 - 0.3 * math.exp(-i / 40)}
        for i in range(1, 151)
    ]  # fmt: skip
    analysis = [full_line(i) for i in range(1, 151, 5)]
    run = make_run(metrics, analysis, path=tmp_path)
    page = read(write_report(run, tmp_path / "r.html"))
    assert len(page) < 2e6
    assert "<script>alert" not in page.lower()
    assert "&lt;script&gt;alert(1)&lt;/scrip…" in page
    assert "\u202e" not in page
    for word in (
        "Entropy flow",
        "Which tokens move entropy",
        "Do the estimators agree?",
        "The law",
        "By decoded token",
        "Estimators, averaged over 30 analysed iterations",
    ):
        assert word in page
    # every entry of the contents leads somewhere
    anchors = [part.split('"')[0] for part in page.split('<a href="#')[1:]]
    assert len(anchors) >= 7
    assert all(f'id="{anchor}"' in page for anchor in anchors)
    for part in page.split("data:image/svg+xml;base64,")[1:]:
        ElementTree.fromstring(base64.b64decode(part.split('"')[0]))


@pytest.mark.long
@pytest.mark.rendered
def test_a_damaged_log_has_a_page(tmp_path):
    run = damaged_run(5, count=2)
    assert "The law" in read(write_report(run, tmp_path / "r.html"))


def test_another_trainers_run(tmp_path):
    metrics = [{"iteration": i, "entropy/logged": 1 / i, "reward/mean": i / 9} for i in range(1, 8)]
    problems = tuple(Problem(f"{EVIL}.log", i, f"line {i} is torn") for i in range(1, 300))
    run = make_run(
        metrics, path=tmp_path, source=f"TRL {EVIL}", problems=problems,
        entropy_is="as the trainer's loss reports it; cannot be known better",
    )  # fmt: skip
    page = read(write_report(run, tmp_path / "sub" / "r.html"))
    assert "Entropy: as the trainer&#39;s loss reports it; cannot be known better" in page
    assert "TRL &lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert" not in page
    assert "299 parts of the logs could not be read" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;.log, line 7: line 7 is torn" in page
    assert "and 99 more" in page
    assert "line 250 is torn" not in page
    assert '<details class="problems"><summary>' in page  # collapsed
    assert "1.000 → 0.143" in page  # the entropy that there is
    assert "measured on the iteration" not in page
    few = make_run(metrics[:1], path=tmp_path, problems=(Problem("a.log", None, "is empty"),))
    page = read(write_report(few, tmp_path / "few.html"))
    assert "1 part of the logs could not be read and was left out" in page
    assert "<li>a.log: is empty</li>" in page
    assert '<details class="problems" open>' in page


# --- the law


def lawful(n):
    """R = .7 - .2 exp(H), exactly, with exp(H) from 3 down to 1.5."""
    x = [3 - 1.5 * i / (n - 1) for i in range(n)]
    return lines_of([math.log(v) for v in x], [0.7 - 0.2 * v for v in x])


def test_the_law_of_a_lawful_run():
    section = law_of(make_run(lawful(40)))
    tiles = {tile.name: tile for tile in section.tiles}
    assert (section.why, section.early_why, section.steps) == ("", "", "40 iterations")
    assert [tiles[k].value for k in ("Ceiling b - a", "a", "b")] == ["0.5", "0.2", "0.7"]
    assert tiles["Ceiling b - a"].more == "95%: 0.5 to 0.5"
    early = {tile.name: tile.value for tile in section.early}
    assert early["Ceiling, predicted early"] == "0.5"
    assert float(early["Error at the end"]) == pytest.approx(0, abs=1e-9)
    assert section.early_steps == "6 iterations"  # 15% of 40
    # the two errors side by side, which are different quantities
    errors = [(t.name, t.more) for t in section.tiles if t.name.startswith("RMSE")]
    assert errors == [
        ("RMSE, in-sample", "of all 40 iterations"),
        ("RMSE, predicted", "of the later 34, from the first 6"),
    ]
    assert section.panel is not None
    drawn = curves(section.panel)
    assert drawn["fit, in-sample"] == (pytest.approx([1, 3]), pytest.approx([0.5, 0.1]))
    first, later = section.panel.points
    assert (len(first.x), len(later.x)) == (6, 34)
    assert first.x[0] == pytest.approx(3)
    assert first.y[0] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("metrics", "why"),
    [
        ([{"iteration": 1, "reward/mean": 0.5}], "No fit: no entropy is logged."),
        ([{"iteration": 1, "entropy/nll": 0.5}], "No fit: no score is logged, neither"),
        (lawful(40)[:2], "need 3 or more"),
        (lines_of([0.5] * 9, [0.1] * 9), "never|all 9 steps"),
        (lines_of([30.0, 31.0, 32.0], [0.1, 0.2, 0.3]), "above 20"),
        (lines_of([1e308, 2.0, 1.0], [0.1, 0.2, 0.3]), "need 3 or more"),
    ],
)
def test_no_fit_says_why(tmp_path, metrics, why):
    section = law_of(make_run(metrics))
    assert section.panel is None
    assert any(word in section.why for word in why.split("|"))
    page = read(write_report(make_run(metrics[:1], path=tmp_path), tmp_path / "r.html"))
    assert "The law: score bought with entropy" in page


def test_the_axis_holds_the_ceiling_and_its_interval():
    # exp(H) from 4.5 down to 3.6, noise: the ceiling at exp(H) = 1 is far from the data
    rng = random.Random(0)
    x = [4.5 - 0.03 * i for i in range(30)]
    r = [0.9 - 0.15 * v + 0.05 * rng.gauss(0, 1) for v in x]
    section = law_of(make_run(lines_of([math.log(v) for v in x], r)))
    fitted = fit([math.log(v) for v in x], r)
    low, high = fitted.interval().ceiling
    span = max(r) - min(r)
    assert min(r) - 1.25 * span > low or high > max(r) + 1.25 * span  # the data does not hold it
    panel = section.panel
    assert panel is not None
    drawn = curves(panel)
    assert drawn["ceiling, 95% interval"] == ([1, 1], pytest.approx([low, high]))
    places, values = drawn["fit, in-sample"]
    assert (places[0], values[0]) == (1, pytest.approx(fitted.ceiling))
    figure = Figure()
    axes = figure.add_subplot()
    _plot(axes, panel)
    _set_axes(axes, panel)
    bottom, top = axes.get_ylim()
    assert bottom <= low < high <= top


def test_a_wild_early_line_does_not_set_the_axis():
    # nearly no entropy moved in the first steps: their line is steep, its ceiling far away
    x = [3 - 1e-6 * (i % 7) for i in range(6)] + [3 - 1.5 * i / 34 for i in range(1, 35)]
    r = [0.1 + 0.01 * (i % 3) for i in range(6)] + [0.7 - 0.2 * v for v in x[6:]]
    section = law_of(make_run(lines_of([math.log(v) for v in x], r)))
    early = {tile.name: tile.value for tile in section.early}
    assert abs(float(early["Ceiling, predicted early"])) > 9
    assert section.panel is not None
    assert all(-1 < v < 2 for v in section.panel.values)


def test_the_law_of_evaluations():
    """R avg@k of evaluations e, H of the rollouts of e + 1: what was sampled by one policy."""
    metrics = lawful(81)
    rows = [
        {"iteration": e, "split": "test", "k": 8, "entropy": 1.0,
         "avg@k": 0.9 - 0.3 * math.exp(metrics[e]["entropy/exact"])}
        for e in range(0, 81, 5)
    ]  # fmt: skip
    section = law_of(make_run(metrics, evaluation=rows))
    assert section.steps == "17 evaluations"
    assert section.score == "validation score, avg@8 of test"
    assert section.entropy == "entropy of the training rollouts, exact"
    assert [t.value for t in section.tiles if t.name in "ab"] == ["0.3", "0.9"]
    assert section.panel is not None
    assert section.panel.unit == "test/avg@k"


def test_why_there_is_no_early_prediction_is_a_sentence(tmp_path):
    run = make_run(lawful(3), path=tmp_path)
    assert law_of(run).early_why == (
        "No early prediction: the first 15% of 3 steps is 1, and a fit needs 3; it takes a run of "
        "14 steps or more."
    )
    page = read(write_report(run, tmp_path / "r.html"))
    assert "predict_early" not in page
    assert "share=" not in page


# --- seeds in bands


def seeded(entropy, seed, name, **config):
    lines = lines_of(entropy, entropy)
    config = {"method": "grpo", "task": "t", "output": name} | config | {"seed": seed}
    return make_run(lines, config=config, path=Path(name))


def test_seeds_become_a_mean_in_a_band():
    runs = [
        seeded([1.0, 2.0, 3.0], 0, "a"),
        seeded([5.0, 5.0, 5.0], 9, "lone", method="par"),
        seeded([3.0, 2.0], 1, "b"),
        seeded([5.0, 8.0, 3.0], 2, "c"),
    ]
    group, lone = entries_of(runs, ["a", "par", "b", "c"])
    assert (group.label, group.members, group.is_band) == ("grpo", (0, 2, 3), True)
    assert (lone.label, lone.members, lone.is_band) == ("par", (1,), False)
    assert group.color != lone.color
    entropy = comparison_panels(runs, [group, lone])[0]
    assert curves(entropy) == {
        "grpo (3 seeds)": ([1, 2], [3, 4]),  # b has no third iteration
        "par": ([1, 2, 3], [5, 5, 5]),
    }
    (band,) = entropy.bands
    assert (list(band.x), list(band.low), list(band.high)) == ([1, 2], [1, 2], [5, 8])
    assert band.color == group.color
    assert "the lowest to the highest" in entropy.caption


def test_what_is_no_sample_of_seeds_stays_lines():
    def members(*runs):
        return [e.members for e in entries_of(runs, [str(i) for i in range(len(runs))])]

    one, two = seeded([1.0], 0, "a"), seeded([1.0], 1, "b")
    assert members(one, two) == [(0, 1)]
    assert members(one, seeded([1.0], 0, "b")) == [(0,), (1,)]  # the same seed again
    assert members(one, seeded([1.0], 1, "b", lr=1e-3)) == [(0,), (1,)]
    assert members(make_run(), make_run()) == [(0,), (1,)]  # settings unknown
    of_a_study = [replace(run, group="grpo") for run in (one, two, make_run())]
    assert members(*of_a_study) == [(0, 1), (2,)]
    # disjoint iterations have no mean
    late = make_run([{"iteration": 9, "entropy/exact": 1.0}], config=two.config)
    panel = comparison_panels([one, late], entries_of([one, late], ["a", "b"]))[0]
    assert panel.bands == ()
    assert set(curves(panel)) == {"grpo (seed 0)", "grpo (seed 1)"}


def test_two_groups_of_one_method_have_names_of_their_own():
    runs = [seeded([1.0], s, f"x{lr}-{s}", lr=lr) for lr in (1, 2) for s in (0, 1)]
    labels = [run.path.name for run in runs]
    assert [e.label for e in entries_of(runs, labels)] == ["x1", "x2"]
    assert [e.label for e in entries_of(runs, ["p", "q", "p", "q"])] == ["p (1)", "p (2)"]
    assert common_name(["grpo-s3", "grpo-s4"]) == "grpo"


def test_the_comparison_says_which_runs_are_in_a_band(tmp_path):
    for seed, last in ((0, 0.2), (1, 0.3), (2, 0.7)):
        path = tmp_path / f"run-{seed}"
        path.mkdir()
        lines = lines_of([1.0, last], [0.0, 1.0])
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (path / "config.toml").write_text(f'method = "grpo"\nseed = {seed}\n')
    paths = sorted(tmp_path.iterdir())
    page = read(write_comparison(paths, tmp_path / "c.html"))
    assert "0.400 [0.200, 0.700]" in page
    assert "40.0 [20.0, 70.0]" in page
    assert page.count("in band grpo") == 3
    for seed in range(3):
        assert f'run-{seed} <span class="soft">(seed {seed})</span>' in page
    alone = read(write_comparison(paths[:1], tmp_path / "d.html"))
    assert "in band" not in alone
    assert "Over seeds" not in alone


# --- figures


def svg_of(panel):
    return base64.b64decode(draw(panel).src.partition(",")[2]).decode("utf-8")


@pytest.mark.rendered
def test_bands_points_and_bars_are_drawn_and_described():
    mixed = Panel(
        "Mixed", "C", "u", (Curve("line", [1, 2], [3.0, 4.0]),),
        bands=(Band("range", [1, 2], [0.5, 1.0], [5.0, 6.0]),),
        points=(Points("cloud", [1.0, 9.0], [2.0, 7.0]),),
    )  # fmt: skip
    image = draw(mixed)
    assert "line goes from 3 at iteration 1 to 4 at 2" in image.alt
    assert "range reaches from 0.5 to 6" in image.alt
    assert "cloud: 2 points, 2 to 7 over 1 to 9" in image.alt
    svg = svg_of(mixed)
    for label in ("line", "range", "cloud"):
        assert f"<!-- {label} -->" in svg
    names = ["$x_{$", "<b>", "--", "模", "long " * 30]
    bars = Panel("Bars", "C", "u", bars=(Bars("one", names, [1.0, -2.0, 0.0, 3.0, 1.5]),),
                 across="$kind$")  # fmt: skip
    assert draw(bars).alt.startswith("Bars of bars (u) by $kind$: one: $x_{$ 1, <b> -2")
    svg = svg_of(bars)
    ElementTree.fromstring(svg)
    assert "<!-- $x_{$ -->" in svg
    alone = Panel("Fan", "C", "u", bands=(Band("r", [1, 2], [0.0, 0.0], [1.0, 1.0]),))
    assert draw(alone).alt == "Ranges of fan (u) by iteration: r reaches from 0 to 1."


@pytest.mark.rendered
def test_a_figure_has_no_needless_digits():
    svg = svg_of(Panel("T", "C", "u", (Curve("", [1, 2, 3], [1 / 3, 2 / 7, 0.9]),)))
    root = ElementTree.fromstring(svg)
    paths = [e.get("d") for e in root.iter() if e.tag.endswith("path") and e.get("d")]
    digits = [len(n.partition(".")[2]) for d in paths for n in d.split() if "." in n]
    assert max(digits) == 2
