"""The alarm against a filter worked out in full, against simulation, and in runs."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from builders import refused
from entrostat.config import TrainConfig
from entrostat.config.instruments import AlarmBand
from entrostat.control import Alarm
from entrostat.control.trend import _GRID as GRID
from entrostat.control.trend import MEMORY, NOISE, SHIFT, WORTH, Trend
from entrostat.runs.entropy_monitor import EntropyMonitor

H = 0.9 * np.exp(-np.arange(12) / 40) * np.exp(0.03 * np.random.default_rng(0).normal(size=12))


def joint(count, wander, bend, phi):
    """Covariance [count + 1, count + 1] of z_1..z_count and the next level, over that of e.

    Model (1) written out as sums of independent parts, without a recursion: the level and slope
    before the first value, each a and b, and the e of each z.
    """
    n = count + 1
    parts = [np.ones(n) * 1e3, np.array([2.0 * sum(phi**i for i in range(1, t + 1))
                                         for t in range(n)])]  # fmt: skip
    for s in range(n - 1):  # what enters between s and s + 1
        parts.append(np.array([math.sqrt(wander) * (t > s) for t in range(n)]))
        grown = [sum(phi**i for i in range(1, t - s)) for t in range(n)]
        parts.append(math.sqrt(bend) * np.array(grown))
    for t in range(count):
        parts.append(np.eye(n)[t])
    P = np.array(parts)
    return P.T @ P


@pytest.mark.parametrize("place", [0, 7, 20, 35])
def test_the_filters_are_the_gaussian_conditionals(place):
    """The next level given all values, by the joint distribution and numpy's solver."""
    wander, bend, phi = GRID[place]
    trend = Trend()
    for h in H:
        trend = trend.seen(h)
    z = np.log(H / H[0] + SHIFT)
    C = joint(len(H), wander, bend, phi)
    inner, cross, own = C[:-1, :-1], C[:-1, -1], C[-1, -1]
    mean = cross @ np.linalg.solve(inner, z)
    variance = own - cross @ np.linalg.solve(inner, cross)
    slope = phi * trend.mean[place, 1]
    assert trend.mean[place, 0] + slope == pytest.approx(mean, abs=1e-4)
    a, b, c = (trend.cov[place][i] for i in ((0, 0), (0, 1), (1, 1)))
    assert a + 2 * phi * b + phi**2 * c + wander == pytest.approx(variance, rel=1e-3)


def test_weights_are_the_likelihoods_of_one_step_ahead():
    """Student's t of the conjugate scale, by scipy, forgetting as is said."""
    trend, shape, scale = Trend(), WORTH / 2, np.full(36, WORTH / 2 * NOISE**2)
    weight = np.zeros(36)
    for t, h in enumerate(H):
        if t:
            wander, _, phi = GRID.T
            level = trend.mean[:, 0] + phi * trend.mean[:, 1]
            a, b, c = trend.cov[:, 0, 0], trend.cov[:, 0, 1], trend.cov[:, 1, 1]
            spread = a + 2 * phi * b + phi**2 * c + wander + 1
            error = math.log(h / H[0] + SHIFT) - level
            shape, scale = MEMORY * shape, MEMORY * scale
            density = stats.t.logpdf(error, 2 * shape, 0, np.sqrt(scale / shape * spread))
            weight = MEMORY * weight + density
            shape, scale = shape + 0.5, scale + error**2 / spread / 2
        else:
            shape, scale = MEMORY * shape, MEMORY * scale
        trend = trend.seen(h)
    assert trend.weight == pytest.approx(weight)
    assert trend.scale == pytest.approx(scale)
    assert trend.shape == pytest.approx(shape)


def test_what_is_ahead_is_what_simulation_gives():
    trend = Trend()
    for h in H:
        trend = trend.seen(h)
    rng = np.random.default_rng(1)
    weight = np.exp(trend.weight - trend.weight.max())
    filters = rng.choice(36, size=40_000, p=weight / weight.sum())
    wander, bend, phi = GRID[filters].T
    sd = np.sqrt(trend.scale / trend.shape)[filters]
    roots = np.linalg.cholesky(trend.cov)[filters]
    start = trend.mean[filters] + sd[:, None] * np.einsum(
        "nij,nj->ni", roots, rng.normal(size=(40_000, 2))
    )
    level, slope = start.T
    edge, out = math.log(0.5 + SHIFT), []
    for _ in range(30):
        a, b = (sd * np.sqrt(v) * rng.normal(size=len(sd)) for v in (wander, bend))
        level, slope = level + phi * slope + a, phi * slope + b
        out.append(np.mean(level < edge))
    expected = np.maximum.accumulate(out)
    found = trend.outside(0.5 * H[0], math.inf)[1:31]
    assert found == pytest.approx(expected, abs=0.01)


def after(values, targets=None, **band):
    alarm = Alarm(**band)
    for i, value in enumerate(values):
        alarm = alarm.seen(value, None if targets is None else targets[i])
    return alarm


def test_a_steady_fall_is_timed():
    # .9 x .98^t is under half of .9 from t = 34.3 on; the last value seen is that of t = 29
    found = after([0.9 * 0.98**t for t in range(30)]).forecast()
    assert found.left == 6
    assert found.early <= 6 <= found.late
    assert found.probability > 0.99
    assert "in 6 (median; 80% interval" in str(found)


def test_a_level_run_gives_none():
    rng = np.random.default_rng(0)
    alarm = Alarm()
    for _ in range(100):
        alarm = alarm.seen(0.9 * math.exp(0.03 * rng.normal()))
        assert not alarm.raised
    assert alarm.forecast().probability < 0.1


def test_it_takes_three_in_a_row():
    values = [0.9 * 0.97**t for t in range(12)]
    raised = [after(values[: n + 1]).raised for n in range(12)]
    # nothing is said of four values, and the third bad one is the first that can raise it
    assert raised.index(True) >= 6
    assert all(raised[raised.index(True) :])


def test_a_controller_is_trusted_until_half_its_margin_is_spent():
    """On the way from .9 to a target of .6 nothing is raised; at .52 of a band from .45 it is."""
    way = [0.9 * 0.97**t for t in range(14)]  # to .61
    assert after(way).raised
    assert not after(way, [0.6] * 14).raised
    below = [*way, *(0.6 * 0.97**t for t in range(10))]  # to .46, under (.45 + .6) / 2
    assert after(below, [0.6] * 24).raised


def test_the_band():
    assert after([0.8]).band == pytest.approx((0.4, 1.2))
    assert after([0.8], low="0.6", high="2x").band == pytest.approx((0.6, 1.6))
    # a target of .4 asks for a quarter about itself
    assert after([0.8], [0.4]).band == pytest.approx((0.3, 1.2))


def test_values_that_say_nothing():
    assert after([0.8, math.nan, -1.0, math.inf]).trend.count == 1
    zero = after([0.0] * 8)
    assert math.isfinite(zero.forecast().probability)


@pytest.mark.parametrize("low", ["linear 1x 0.5x", "much"])
def test_a_band_that_is_none_is_refused(low):
    refused(lambda: TrainConfig(alarm=AlarmBand(low=low)).validate(), "alarm:", "low")


@pytest.mark.parametrize(("low", "high"), [("1.5x", "0.5x"), (0.9, 0.3), ("1x", "1x")])
def test_a_reversed_band_is_refused(low, high):
    refused(lambda: TrainConfig(alarm=AlarmBand(low=low, high=high)).validate(), "got low")
    Alarm(high, "2x" if isinstance(high, str) else 2.0)
    Alarm(0.9, "0.5x")  # which is the lower one the first entropy decides


# ------------------------------------------------------------------ in runs


def rows(values, **more):
    return [{"iteration": i + 1, "entropy/exact": v, **more} for i, v in enumerate(values)]


def test_a_run_that_goes_on_has_the_figures_it_would_have_had():
    values = [0.9 * 0.97**t for t in range(20)]
    told: list[str] = []
    whole = EntropyMonitor(Alarm(), told.append)
    lines = [whole.line(row) for row in rows(values)]
    assert len(told) == 1
    assert told[0].startswith("alarm: entropy leaves [0.45, 1.35]")
    again: list[str] = []
    rest = EntropyMonitor(Alarm(), again.append, lines[:15])
    assert [rest.line(row) for row in rows(values)[15:]] == lines[15:]
    assert again == []  # it was told before the run stopped


def test_it_is_a_callback_of_trl(capsys):
    from entrostat.trainers.trl import EntropyAlarm

    callback, control = EntropyAlarm(stop=True), SimpleNamespace(should_training_stop=False)
    for t in range(20):
        logs = {"entropy": 0.9 * 0.97**t, "reward": 0.5}
        callback.on_log(None, None, control, logs=logs)
    assert logs["alarm/raised"] == 1
    assert control.should_training_stop
    assert "alarm: entropy leaves" in capsys.readouterr().out
    other = {"loss": 0.1}
    callback.on_log(None, None, control, logs=other)
    assert other == {"loss": 0.1}


def test_the_lab_logs_it(tmp_path):
    from entrostat import train

    config = TrainConfig(iterations=6, output=str(tmp_path / "a"))
    config.sampling.prompts, config.sampling.rollouts, config.eval.prompts = 2, 2, 0
    lines = (train(config) / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert ["alarm/probability" in row for row in found] == [False] * 4 + [True] * 2
    values = [row["entropy/exact"] for row in found]
    assert found[-1]["alarm/probability"] == after(values).forecast().probability
