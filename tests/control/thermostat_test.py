"""The thermostat: its filters against dense linear algebra, made-up plants, targets, every knob."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import entrostat as es
from builders import refused
from entrostat.control import (
    Range,
    Thermostat,
    ThermostatState,
    parse_target,
)
from entrostat.control import kalman_bank as banks
from entrostat.method.compose import built
from entrostat.method.registry import METHODS
from entrostat.method.thermostat import KNOBS
from scripts import load_script

PLANTS = load_script("benchmarks/thermostat_plants.py")
PROPERTY = settings(derandomize=True, deadline=None, max_examples=50)
NAN = math.nan


# ---------------------------------------------------------------------------- the bank


def posterior(y: list[float], known: list[float], q: tuple[float, float]) -> np.ndarray:
    """Mean of (H, d) at the last of the measurements, from the joint Gaussian of all that is drawn.

    z = (H_0, d_0, w_1, w'_1, w_2, w'_2, ...) is independent; H_t and d_t are linear in it. y_0
    alone says H_0 (variance 1 in units of s^2); d_0 has variance 4. `known` is g v_t, added to
    H_t+1.
    """
    n = len(y)
    H, d, fixed = np.zeros((n, 2 * n)), np.zeros((n, 2 * n)), np.zeros(n)
    H[0, 0] = d[0, 1] = 1
    for t in range(1, n):
        H[t] = H[t - 1] + d[t - 1]
        d[t] = d[t - 1]
        H[t, 2 * t] += 1
        d[t, 2 * t + 1] += 1
        fixed[t] = fixed[t - 1] + known[t - 1]
    prior = np.diag([1, 4, *([*q] * (n - 1))])
    seen = H[1:]  # y_0 is the mean of H_0
    off = np.array(y[1:]) - fixed[1:] - y[0]
    S = seen @ prior @ seen.T + np.eye(n - 1)
    z = prior @ seen.T @ np.linalg.solve(S, off)
    return np.array([y[0] + fixed[-1] + H[-1] @ z, d[-1] @ z])


def test_each_candidate_is_the_exact_posterior():
    y, x = [1.0, 0.97, 0.9, 0.93, 0.91, 0.99], [0.5, 0.7, 0.75, 0.9, 0.4]
    bank = banks.begin(np.asarray(y[0]), np.asarray(1.0), np.asarray(0.5))
    for entropy, knob in zip(y[1:], x, strict=True):
        bank = banks.learn(banks.apply(bank, np.asarray(knob)), np.asarray(entropy))
    for m in range(0, len(banks.GAIN), 7):
        delay, lag, acting, known = banks.DELAY[m], banks.LAG[m], 0.0, []
        for t in range(len(x)):
            then = x[t - delay] - 0.5 if t >= delay else 0.0
            acting = lag * acting + (1 - lag) * then
            known.append(banks.GAIN[m] * acting)
        H, d = posterior(y, known, (banks.Q_LEVEL[m], banks.Q_DRIFT[m]))
        assert bank.level[m] == pytest.approx(H, rel=1e-9, abs=1e-9 * banks.GAIN[m])
        assert bank.drift[m] == pytest.approx(d, rel=1e-9, abs=1e-9 * banks.GAIN[m])


def test_weights_are_bayes_with_the_powers_of_student():
    # two measurements: the second's likelihood under each candidate is a t distribution (scipy)
    from scipy.stats import t as student

    bank = banks.begin(np.asarray(1.0), np.asarray(1.0), np.asarray(0.5))
    after = banks.learn(banks.apply(bank, np.asarray(0.75)), np.asarray(0.9))
    delay, lag = banks.DELAY, banks.LAG
    moved = banks.GAIN * np.where(delay == 0, (1 - lag) * 0.25, 0)
    spread = 1 + 1 + 4 + banks.Q_LEVEL  # measurement, H_0, d_0 and a step
    scale = banks.NOISE * np.sqrt(spread)
    log = banks.PRIOR + student.logpdf(0.9, banks.BELIEF, loc=1 + moved, scale=scale)
    wanted = log - np.log(np.exp(log).sum())
    np.testing.assert_allclose(after.weight, wanted, rtol=1e-9)


def test_the_prior_is_a_distribution_around_its_centre():
    assert np.exp(banks.PRIOR).sum() == pytest.approx(1)
    assert banks.GAIN[np.argmax(banks.PRIOR)] == pytest.approx(banks.LIKELY)


@pytest.mark.parametrize(("delay", "lag"), [(0, 0.0), (0, 0.5), (1, 0.0), (2, 0.0)])
def test_a_move_is_the_best_one_in_the_candidates_future(delay, lag):
    # by brute force over moves, playing the candidate's own equations forward
    x = [0.5, 0.6, 0.7]
    bank = banks.begin(np.asarray(1.0), np.asarray(1.0), np.asarray(0.5))
    for knob, y in zip(x, [0.95, 0.93, 0.9], strict=True):
        bank = banks.learn(banks.apply(bank, np.asarray(knob)), np.asarray(y))
    goal = np.array([0.9, 1.0, 1.05, 1.1])
    m = next(
        i for i in range(len(banks.GAIN))
        if banks.GAIN[i] == pytest.approx(1.0) and (banks.DELAY[i], banks.LAG[i]) == (delay, lag)
    )  # fmt: skip
    wish = banks.wanted(bank, goal, 0.1)[m]

    def cost(move: float) -> float:
        H, v, off = bank.level[m], bank.acting[m], 0.0
        inputs = [0.2 + move] * 4
        for j in range(4):
            # the inputs before now were .6 and .7, less .5
            then = inputs[j - delay] if j >= delay else (0.2, 0.1)[delay - j - 1]
            v = lag * v + (1 - lag) * then
            H = H + bank.drift[m] + banks.GAIN[m] * v
            off += (H - goal[j]) ** 2
        return off + 0.1 * 4 * (bank.noise * move) ** 2

    step = 1e-4
    assert cost(wish) <= min(cost(wish - step), cost(wish + step))
    slope = (cost(wish + step) - cost(wish - step)) / (2 * step)
    assert abs(slope) < 1e-9


def test_a_move_is_what_most_would_make_as_far_as_few_find_it_dangerous():
    bank = banks.begin(np.asarray(1.0), np.asarray(1.0), np.asarray(0.5))
    weight = np.full(len(banks.GAIN), -np.inf)
    weight[:3] = np.log([0.04, 0.5, 0.46])
    moves, slack = np.zeros(len(banks.GAIN)), np.ones(len(banks.GAIN))

    def agreed(*three: float, slacks: tuple[float, ...] = (1.0, 1.0, 1.0)) -> float:
        moves[:3], slack[:3] = three, slacks
        return float(banks.agreed(replace(bank, weight=weight), moves, slack, 0.05, 0.01))

    assert agreed(0.1, 0.2, 0.3) == 0.2  # .04 of the weight may be left behind
    assert agreed(-0.1, 0.2, 0.3) == 0.2
    assert agreed(0.3, -0.2, -0.1) == -0.1
    assert agreed(0.1, -0.2, 0.3) == 0  # they do not agree on the direction
    # the one that may be left behind says where harm begins
    assert agreed(0.1, 0.2, 0.3, slacks=(0.05, 1, 1)) == pytest.approx(0.15)
    assert agreed(-0.1, -0.2, -0.3, slacks=(0.05, 1, 1)) == pytest.approx(-0.15)
    assert agreed(-0.1, 0.2, 0.3, slacks=(0.05, 1, 1)) == 0


@pytest.mark.parametrize(("delay", "lag"), [(0, 0.0), (2, 0.0), (0, 0.8)])
def test_the_effect_of_a_move_is_that_of_the_plant(delay, lag):
    bank = banks.begin(np.asarray(1.0), np.asarray(2.0), np.asarray(0.5))
    which = (delay == banks.DELAY) & (lag == banks.LAG) & (banks.GAIN[160] == banks.GAIN)
    H, acting, seen = 0.0, 0.0, []
    for t in range(4):  # the whole range, from now on
        acting = lag * acting + (1 - lag) * (t >= delay)
        H += 2.0 * banks.GAIN[160] * acting
        seen.append(H)
    wanted = np.sqrt(np.mean(np.square(seen)))
    assert_close(banks.effect(bank, 4)[which], np.full(which.sum(), wanted))


# ---------------------------------------------------------------------------- made-up plants


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_no_plant_diverges(seed):
    plants = PLANTS.draw(250, seed)
    H, x = PLANTS.run(plants, 240, seed + 100)
    assert np.isfinite(H).all()
    assert ((x >= 0) & (x <= 1)).all()
    on, off = plants.reachable, np.abs(H - plants.target) / plants.noise

    def rms(first: int, last: int) -> np.ndarray:
        return np.sqrt((off[first:last] ** 2).mean(0))[on]

    # an entropy that is measured has 1; 10^4 plants: docs/thermostat_record.md
    for end in (120, 240):  # the gain changes at 120
        late = rms(end - 20, end)
        assert np.quantile(late, 0.9) < 1.7
        assert np.quantile(late, 0.98) < 4
        assert late.max() < 20  # a gain of hundreds, two iterations late, that changed


@pytest.mark.long
def test_a_knob_without_authority_stays_at_its_end():
    plants = PLANTS.draw(200, 5)
    plants.gain[:], plants.later[:], plants.drift[:] = 2e-3, 1, -0.02
    _, x = PLANTS.run(plants, 80, 6)
    assert (x[-1] > 0.99).mean() > 0.95  # it pushes up as far as it goes


# ---------------------------------------------------------------------------- the controller


def play(controller: Thermostat, gain: float, drift: float, n: int, H: float = 1.0):
    """States of a thermostat on H' = H + drift + gain * knob, without noise."""
    state, out, seen = controller.init(), [], []
    for _ in range(n):
        state = controller.update(state, H)
        out.append(state)
        seen.append(H)
        H += drift + gain * state.value
    return out, seen


@pytest.mark.parametrize(
    ("range", "start", "gain"),
    [
        (Range(-1, 1), 0.0, 0.1),
        (Range(-1, 1), 0.0, 3.0),
        (Range(-1, 1), 0.0, 0.04),
    ],
)
def test_it_reaches_its_target_and_says_what_it_learnt(range, start, gain):
    drift = -0.02 - gain * start
    states, H = play(Thermostat(start, range, "0.8x"), gain, drift, 60)
    assert states[-1].target == 0.8
    assert H[-1] == pytest.approx(0.8, abs=2e-3)
    found = Thermostat(start, range, "0.8x").figures(states[-1])
    whole = abs(gain) * (range.high - range.low)
    assert whole / 2 < found["gain"] < 2 * whole
    assert found["saturated"] == 0
    assert states[-1].value == pytest.approx(-drift / gain, rel=0.1)


def test_at_its_limit_it_says_so_and_nothing_winds_up():
    controller = Thermostat(0.0, Range(-1, 1), 1.0)
    state, H, seen = controller.init(), 1.0, []
    for i in range(80):
        state = controller.update(state, H)
        seen.append(H)
        if i == 29:  # 1 gives .02 where .05 is lost
            assert state.value == 1
            assert controller.figures(state)["saturated"] == 1
            assert H < 0.3
        H += (-0.05 if i < 30 else 0.01) + 0.02 * state.value
    crossed = next(i for i in range(30, 80) if seen[i] >= 1)
    # it had been at its end for tens of iterations; at 1 entropy rises by .03 an iteration
    assert max(seen[crossed:]) < 1.1
    assert seen[-1] == pytest.approx(1, abs=0.03)
    assert state.value == pytest.approx(-0.5, abs=0.2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((2.0, Range(0, 1)), "start must be in"),
        ((0.5, Range(0, 1), "twice"), "got 'twice'"),
        ((0.5, Range(0, 1), -1.0), "entropy in nats >= 0"),
    ],
)
def test_bad_controllers_are_errors(arguments, words):
    with pytest.raises(ValueError, match=words):
        Thermostat(*arguments)


@pytest.mark.parametrize(
    ("low", "high"),
    [(1, 1), (2, 1), (0, NAN), (NAN, 1)],
)
def test_bad_ranges_are_errors(low, high):
    refused(lambda: Range(low, high), "range")


@PROPERTY
@given(st.lists(st.floats(0, 5), min_size=2, max_size=12), st.integers(1, 11))
def test_a_state_goes_on_from_its_json(entropies, at):
    controller = Thermostat(0.2, Range(-1, 1), "0.9x")
    state = saved = controller.init()
    for i, H in enumerate(entropies):
        state = controller.update(state, H, i / 20)
        if i < at:
            saved = ThermostatState.from_dict(json.loads(json.dumps(state.to_dict())))
        else:
            saved = controller.update(saved, H, i / 20)
    assert saved.to_dict() == state.to_dict()


# ---------------------------------------------------------------------------- targets


@pytest.mark.parametrize(
    ("spec", "wanted"),  # at 0, .25, .5 and 1 of the run, the first entropy 2
    [
        (None, [2, 2, 2, 2]),
        (0.7, [0.7, 0.7, 0.7, 0.7]),
        ("0.7", [0.7, 0.7, 0.7, 0.7]),
        ("0.8x", [1.6, 1.6, 1.6, 1.6]),
        (" 0.8x\n", [1.6, 1.6, 1.6, 1.6]),
        ("linear 1x 0.5x", [2, 1.75, 1.5, 1]),
        ("cosine 1x 0", [2, 1 + math.cos(math.pi / 4), 1, 0]),
        ("points 0.25:1x 0.5:0.6 1:3", [2, 2, 0.6, 3]),
    ],
)
def test_targets_by_hand(spec, wanted):
    target = parse_target(spec)
    assert [target.at(p, 2.0) for p in (0, 0.25, 0.5, 1)] == pytest.approx(wanted)


@pytest.mark.parametrize(
    "spec",
    ["", "x", "linear 1x", "cosine 1 2 3", "points 0:1x", "points 0.5:1 0.2:2", "points 0:1 2:1",
     "perplexity 2", "nan", "-1", "1 2", [1], True],
)  # fmt: skip
def test_bad_targets_are_errors(spec):
    refused(lambda: parse_target(spec), "target")


def test_a_schedule_looks_ahead_and_needs_progress():
    controller = Thermostat(0.0, Range(-1, 1), "linear 1x 0")
    state = controller.update(controller.init(), 1.0, 0.0)
    state = controller.update(state, 1.0, 0.1)
    assert state.target == pytest.approx(0.9)
    assert state.value < 0  # entropy stays where it is, the target goes away below
    refused(lambda: controller.update(controller.init(), 1.0), "`progress`")


@pytest.mark.parametrize("name", ["repo_r", "adapo", "adaptive_entropy", "pos_adv"])
def test_the_papers_controllers_take_a_share_and_no_schedule(name):
    if name in ("repo_r", "adapo"):
        objective = es.make_objective(name, target="0.5x")
        objective.observe(entropy=2.0)
        assert objective.metrics()["control/target"] == 1.0
    refused(lambda: es.make_objective(name, target="linear 1x 0.5x"), name, "target")


# ---------------------------------------------------------------------------- relief


# ---------------------------------------------------------------------------- as methods


def batch() -> es.TokenBatch:
    g = torch.Generator().manual_seed(0)

    def numbers(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(6, 5, generator=g, dtype=torch.float64)

    return es.TokenBatch(
        numbers(-2, -0.1), numbers(-2, -0.1), torch.ones(6, 5, dtype=torch.bool),
        numbers(-1, 1), entropy=numbers(0.1, 2), old_entropy=numbers(0.1, 2),
    )  # fmt: skip


FIXED = {  # the same coefficient without a controller, where a method can hold it
    "zeta": lambda value: {"name": "repo_r", "controller": "none", "zeta": value},
    "zeta_d": lambda value: {"name": "repo_d", "controller": "none", "zeta": value},
    "entropy_coef": lambda value: {"name": "entropy_bonus", "coef": value},
}


@pytest.mark.parametrize("knob", KNOBS)
def test_every_knob_moves_the_loss_as_its_coefficient_does(knob):
    objective = es.make_objective("thermostat", knob=knob, target="1.5x")
    for H in (1.0, 0.99, 0.97, 0.94):
        objective.observe(entropy=H)
    key = KNOBS[knob][0]
    name = next(n for n in objective.names if n == key)
    coefficient = objective.methods[objective.names.index(name)].actuator[0]
    figures = objective.metrics()
    value = figures[f"control/{coefficient}"]
    assert figures["control/target"] == 1.5
    assert {f"thermostat/{name}" for name in ("gain", "drift", "noise", "saturated")} <= {*figures}
    at_rest = es.make_objective("thermostat", knob=knob)
    still = at_rest.metrics()[f"control/{coefficient}"]
    assert value > still  # entropy is below the target
    given = batch()
    ready = objective.prepare(given)
    if knob in FIXED:
        surrogate = {"name": "ppo", "low": 0.2, "high": 0.28 if knob != "entropy_coef" else 0.2}
        fixed = es.make_objective(
            [surrogate, FIXED[knob](value)], aggregation=objective.aggregation
        )
        loss = fixed.loss(fixed.prepare(given)).loss
        assert_close(objective.loss(ready).loss, loss, rtol=0, atol=1e-12)
    terms = objective.plan(ready)
    if knob == "balance":
        plain = es.make_objective("opefo").plan(given)
        lam = float(plain.weight[plain.weight != 1].max()) - 1  # |lam|, on one of the two sides
        up = {round(w, 9) for w in plain.weight.flatten().tolist()}
        assert up <= {round(1 + lam, 9), round(1 - lam, 9)}
        moved = terms.weight - plain.weight
        assert_close(moved.abs(), torch.full((6, 5), abs(value), dtype=torch.float64))


@pytest.mark.parametrize(
    ("chain", "words"),
    [
        (
            [{"name": "repo_r", "target": 0.5}, {"name": "pos_adv", "target": "0.8x"}],
            "repo_r steers entropy to 0.5 and pos_adv to '0.8x'",
        ),
        (
            [
                {"name": "repo_r", "controller": "thermostat"},
                {"name": "adapo", "target": 0.4},
            ],
            "adapo steers entropy to 0.4 and repo_r to '1x'",
        ),
        (
            ["adapo", {"name": "thermostat", "target": 0.5}],
            "adapo steers .* '1x' and thermostat to 0.5",
        ),
    ],
)
def test_two_controllers_with_two_targets_are_refused(chain, words):
    with pytest.raises(ValueError, match=words + ".*give both the same target"):
        es.make_objective(chain)


def test_two_controllers_of_one_target_stand_side_by_side():
    for one, other in ((0.5, 0.5), ("1x", None), (None, "1x")):
        chain = [{"name": "repo_r", "target": one}, {"name": "adapo", "target": other}]
        objective = es.make_objective(chain)
        objective.observe(entropy=2.0)
        assert objective.metrics()["control/target"] == (0.5 if one == 0.5 else 2.0)
    # the papers' defaults, of which nobody said that they are to be held
    assert es.make_objective(["repo_r", "pos_adv"]).names == ("ppo", "repo_r", "pos_adv")
    # a gate waits for an entropy, it holds none
    gated = [{"name": "repo_r", "target": 0.7}, {"name": "adaptive_entropy", "target": 0.3}]
    assert es.make_objective(["dapo", *gated]).names == ("ppo", "repo_r", "adaptive_entropy")


@pytest.mark.parametrize("name", ["repo_r", "repo_d", "entropy_bonus", "opefo"])
def test_any_method_with_a_coefficient_takes_it(name):
    objective = es.make_objective(name, controller="thermostat", target="0.8x")
    for H in (1.0, 0.99):
        objective.observe(entropy=H)
    assert objective.metrics()["control/target"] == pytest.approx(0.8)
    saved = json.loads(json.dumps(objective.state_dict()))
    again = es.make_objective(name, controller="thermostat", target="0.8x")
    again.load_state_dict(saved)
    for each in (objective, again):
        each.observe(entropy=0.97)
    assert again.metrics() == objective.metrics()


@pytest.mark.parametrize(
    ("name", "given", "ends"),
    [
        ("repo_r", {}, (-1, 1)),
        ("repo_r", {"zeta_max": 0.5}, (-0.5, 0.5)),
        ("repo_r", {"zeta_max": 0.1}, (-0.1, 0.1)),  # the default of `doubling`
        ("repo_r", {"zeta_min": 1e-5}, (1e-5, 1)),
        ("repo_r", {"zeta_max": 5.0}, (-5, 5)),
        ("repo_r", {"zeta_min": 0.0, "zeta_max": 0.25}, (0, 0.25)),
        ("repo_d", {}, (0, 10)),
        ("repo_d", {"zeta_max": 0.5}, (0, 0.5)),
        ("repo_d", {"zeta_min": 1e-4, "zeta_max": 20.0}, (1e-4, 20)),
        ("repo_d", {"zeta_min": 1e-3, "zeta_max": 10.0}, (1e-3, 10)),
        ("entropy_bonus", {}, (-0.5, 0.5)),
        ("entropy_bonus", {"coef_max": 0.1}, (-0.1, 0.1)),
        ("entropy_bonus", {"coef_min": 0.0}, (0, 0.5)),
        ("entropy_bonus", {"coef_min": 1e-3, "coef": 0.01}, (1e-3, 0.5)),
        ("entropy_bonus", {"coef_max": 10.0}, (-10, 10)),
    ],
)
def test_the_range_that_a_user_gives_is_kept(name, given, ends):
    method = built(name, METHODS[name], given | {"controller": "thermostat"})
    range = method.law().range
    assert (range.low, range.high) == pytest.approx(ends)


@pytest.mark.parametrize("most", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("controller", ["thermostat", "pi"])
def test_a_sweep_over_the_range_reaches_what_it_asks_for(most, controller):
    objective = es.make_objective("repo_r", controller=controller, target=1.0, zeta_max=most)
    for _ in range(40):
        objective.observe(entropy=0.5)
    assert objective.metrics()["control/zeta"] == pytest.approx(most)


@pytest.mark.parametrize("name", ["repo_r", "repo_d", "entropy_bonus"])
def test_a_description_says_the_range_and_builds_the_same_again(name):
    objective = es.make_objective(name, controller="thermostat", target=1.0)
    (table,) = (t for t in objective.describe()["methods"] if t["name"] == name)
    again = built(name, METHODS[name], {k: v for k, v in table.items() if k != "name"})
    (method,) = (m for m in objective.methods if "controller" in m.parameters())
    assert again.law() == method.law()


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("repo_r", {"zeta_min": 0.5, "zeta_max": 0.2}),
        ("repo_r", {"zeta_max": NAN}),
        ("repo_d", {"zeta_min": NAN}),
        ("repo_d", {"zeta_min": 11.0}),
        ("entropy_bonus", {"coef_min": 0.2, "coef_max": 0.1}),
        ("entropy_bonus", {"coef_max": -0.1}),
        ("entropy_bonus", {"coef_max": NAN}),
    ],
)
def test_a_range_that_is_none_is_refused(name, given):
    refused(lambda: es.make_objective(name, controller="thermostat", **given), name, "range")


def test_a_checkpoint_from_before_a_parameter_was_there_is_read():
    objective = es.make_objective("opefo")
    saved = json.loads(json.dumps(objective.state_dict()))
    for key in ("controller", "target"):
        del saved["objective"]["methods"][1][key]
    objective.load_state_dict(saved)
    held = es.make_objective("opefo", controller="thermostat")
    refused(lambda: held.load_state_dict(saved), "'none'", "'thermostat'")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"knob": "eta"}, "thermostat: knob must be 'multiplier'"),
        ({"target": "much"}, "thermostat: target must be .*got 'much'"),
        ({"gain": 2}, "thermostat: .*unknown parameter|thermostat: .*gain"),
    ],
)
def test_errors_name_the_parameter(given, words):
    with pytest.raises(ValueError, match=words):
        es.make_objective("thermostat", **given)
