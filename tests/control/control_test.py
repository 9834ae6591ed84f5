"""Controllers, step by step and by hand, with the parameters that the papers give."""

import json
import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import entrostat as es
from builders import refused
from entrostat.control import (
    Additive,
    ControlState,
    Multiplicative,
    PiState,
    ProportionalIntegral,
    at_limit,
)
from entrostat.logs.limits import saturation
from entrostat.method import METHODS

PROPERTY = settings(derandomize=True, deadline=None, max_examples=100)


def values(controller, entropies: list[float]) -> list[float]:
    """The coefficient after each entropy."""
    state, out = controller.init(), []
    for entropy in entropies:
        state = controller.update(state, entropy)
        out.append(state.value)
    return out


# ---------------------------------------------------------------------------- multiplicative


def test_doubling_by_hand():
    controller = Multiplicative(start=1.0, low=0.5, high=4.0, target=1.0)
    assert controller.init() == ControlState(1.0, 1.0)
    # below: 1 -> 2 -> 4, kept at 4; above: 4 -> 2 -> 1 -> .5, kept at .5; on target: no move
    got = values(controller, [0.9, 0.1, 0.5, 1.0, 1.1, 9.0, 2.0, 2.0, 1.0, 0.0])
    assert got == [2.0, 4.0, 4.0, 4.0, 2.0, 1.0, 0.5, 0.5, 0.5, 1.0]


def test_the_range_clips_a_step_that_would_cross_it():
    # 1 * 2 = 2 > 1.5; then 1.5 / 2 = .75 < .8
    assert values(Multiplicative(1.0, 0.8, 1.5, target=1.0), [0.5, 2.0]) == [1.5, 0.8]


def test_adapo_factor_by_hand():
    got = values(Multiplicative(0.28, 0.2, 0.3, target=1.0, factor=1.01), [0.5, 2.0, 2.0])
    assert got == pytest.approx([0.2828, 0.28, 0.28 / 1.01], rel=1e-12)


@pytest.mark.parametrize("start", [1e-3, 0.05])
def test_the_first_entropy_becomes_the_target(start):
    controller = Multiplicative(start, 1e-5, 1e-1)
    assert controller.init() == ControlState(start, None)
    state = controller.update(controller.init(), 0.7)
    assert state == ControlState(start, 0.7)  # equal to its own target: no move
    assert controller.update(state, 0.6) == ControlState(start * 2, 0.7)
    assert controller.update(state, 0.8) == ControlState(start / 2, 0.7)


def test_a_start_outside_the_range_is_kept_until_the_first_move():
    controller = Multiplicative(10.0, 0.5, 4.0, target=1.0)
    assert controller.init().value == 10.0
    assert values(controller, [1.0, 2.0]) == [10.0, 4.0]  # 10 / 2 = 5, clipped


def test_bidirectional_by_hand():
    controller = Multiplicative(1.0, 0.5, 2.0, target=1.0, bidirectional=True)
    above, below = 3.0, 0.2
    steps = [
        (above, 0.5),  # + while above pushes the wrong way: halve; .5 is still in the range
        (above, -0.5),  # .25 would leave it: the sign flips, the magnitude is low
        (above, -1.0),  # - while above is right: double
        (1.0, -1.0),  # on target: no move
        (above, -2.0),
        (above, -2.0),  # kept at high
        (below, -1.0),  # - while below is wrong: halve
        (below, -0.5),
        (below, 0.5),  # flips back
        (below, 1.0),
        (below, 2.0),
        (below, 2.0),
    ]
    assert values(controller, [e for e, _ in steps]) == [v for _, v in steps]


def test_the_immediate_flip_by_hand():
    controller = Multiplicative(1.0, 0.5, 2.0, target=1.0, bidirectional=True, flip="immediate")
    above, below = 3.0, 0.2
    steps = [
        (above, -0.5),  # + while above is wrong: halve, and the sign flips at once
        (above, -1.0),  # - while above is right: double
        (1.0, -1.0),  # on target: no move
        (above, -2.0),
        (above, -2.0),  # kept at high
        (below, 1.0),
        (below, 2.0),
        (above, -1.0),
        (below, 0.5),
        (above, -0.5),  # .25 would leave the range: kept at low
    ]
    assert values(controller, [e for e, _ in steps]) == [v for _, v in steps]


@pytest.mark.parametrize(("flip", "iterations"), [("gradual", 28), ("immediate", 2)])
def test_how_long_repos_range_takes_from_end_to_end(flip, iterations):
    # gradual: 2^13 < 1e4 < 2^14, so 14 halvings from .1 to the flip at 1e-5, and 14 doublings back
    controller = Multiplicative(0.1, 1e-5, 0.1, target=1.0, bidirectional=True, flip=flip)
    got = values(controller, [2.0] * 30)
    assert got.index(-0.1) + 1 == iterations


@PROPERTY
@given(st.lists(st.floats(0, 3).filter(lambda H: H != 1), min_size=1, max_size=30))
def test_immediate_has_the_sign_of_the_error_after_every_step(entropies):
    controller = Multiplicative(0.01, 1e-3, 0.3, target=1.0, bidirectional=True, flip="immediate")
    for entropy, value in zip(entropies, values(controller, entropies), strict=True):
        assert (value > 0) == (entropy < 1)


@pytest.mark.parametrize("flip", ["gradual", "immediate"])
def test_without_bidirectional_the_sign_never_flips(flip):
    controller = Multiplicative(1.0, 0.5, 2.0, target=1.0, flip=flip)
    assert values(controller, [3.0] * 3) == [0.5, 0.5, 0.5]


@pytest.mark.parametrize(("start", "entropy", "expected"), [(0.1, 0.2, 0.5), (-0.1, 3.0, -0.5)])
def test_pushing_the_right_way_never_flips_the_sign(start, entropy, expected):
    # .1 doubles to .2, below low = .5: the range lifts it; only a halving may flip
    controller = Multiplicative(start, 0.5, 2.0, target=1.0, bidirectional=True)
    assert values(controller, [entropy]) == [expected]


def test_a_negative_start_without_bidirectional_ends_in_the_range_or_is_refused():
    try:
        controller = Multiplicative(-0.5, 0.1, 1.0, target=1.0)
    except ValueError:
        return
    for entropy in (0.5, 2.0):
        assert 0.1 <= values(controller, [entropy])[0] <= 1.0


@PROPERTY
@given(
    st.lists(st.floats(0, 3), max_size=30),
    st.booleans(),
    st.sampled_from([1.01, 2.0, 10.0]),
    st.sampled_from([None, 0.0, 1.0]),
    st.sampled_from(["gradual", "immediate"]),
)
def test_the_magnitude_never_leaves_the_range(entropies, bidirectional, factor, target, flip):
    controller = Multiplicative(0.01, 1e-3, 0.3, target, factor, bidirectional, flip)
    for value in values(controller, entropies):
        assert 1e-3 <= abs(value) <= 0.3
        assert bidirectional or value > 0


# ---------------------------------------------------------------------------- additive


def test_additive_below_by_hand():
    controller = Additive(start=0.0, low=0.0, high=0.375, delta=0.125, target=1.0)
    # below: up thrice to .375, kept; above: down; on target counts as not below: down
    got = values(controller, [0.5, 0.9, 0.0, 0.5, 2.0, 1.0, 1.0, 1.0])
    assert got == [0.125, 0.25, 0.375, 0.375, 0.25, 0.125, 0.0, 0.0]


def test_additive_above_by_hand():
    controller = Additive(1.0, 0.0, 1.0, 0.25, target=1.0, rises="above")
    # below: down; above: up, kept at 1; on target counts as not above: down
    assert values(controller, [0.5, 0.5, 2.0, 2.0, 2.0, 1.0]) == [0.75, 0.5, 0.75, 1.0, 1.0, 0.75]


@pytest.mark.parametrize("rises", ["below", "above"])
def test_additive_takes_the_first_entropy_as_target(rises):
    controller = Additive(0.5, 0.0, 1.0, 0.125, rises=rises)
    assert controller.init() == ControlState(0.5, None)
    state = controller.update(controller.init(), 0.7)
    assert state == ControlState(0.375, 0.7)  # on target: down
    up, down = (0.6, 0.8) if rises == "below" else (0.8, 0.6)
    assert controller.update(state, up) == ControlState(0.5, 0.7)
    assert controller.update(state, down) == ControlState(0.25, 0.7)


# ---------------------------------------------------------------------------- at its limit


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ([0.1, 0.2, 0.4, 0.4, 0.4], 3),  # second half .4 .4 .4
        ([0.4, 0.1, 0.4, 0.4, 0.2], 3),  # 2 of the last 3; the first counts in the sum
        ([0.4, 0.4, 0.4, 0.2], None),  # 1 of the last 2 is not more than half
        ([0.1, 0.1, 0.4, -0.4], 2),  # a bidirectional coefficient has its limit on either side
        ([0.1, 0.2], None),
        ([], None),
    ],
)
def test_at_its_limit_by_hand(values, count):
    assert at_limit(values, 0.4) == count


def log(key: str, values: list[float], **more: float) -> list[dict]:
    return [{"iteration": i, key: v, **more} for i, v in enumerate(values, 1)]


REPO = {"name": "repo_r", "zeta": 1e-3, "zeta_max": 0.1, "controller": "doubling"}


def test_a_saturated_controller_is_named_with_its_parameter():
    rows = log("control/zeta", [0.05] + [0.1] * 5, **{"entropy/exact": 0.3, "control/target": 0.7})
    assert saturation(rows, [{"name": "ppo"}, REPO]) == [
        "zeta was at its limit 0.1 in 5 of 6 iterations: it cannot hold the target (entropy 0.3, "
        "target 0.7 in the second half). Raise --method.zeta_max."
    ]
    assert saturation(log("control/zeta", [0.1, 0.1, 0.05, 0.05]), [REPO]) == []
    assert saturation(rows, [REPO | {"controller": "none"}]) == []
    assert saturation(rows, [REPO | {"zeta_max": "x"}, "y", {"name": 3}]) == []


@pytest.mark.parametrize(
    ("table", "key", "value", "words"),
    [
        ({"name": "adapo", "high_max": 0.3}, "clip_high", 0.3, "Raise --method.high_max."),
        ({"name": "entropy_bonus", "coef_max": 10, "controller": "doubling"}, "entropy_coef", 10.0,
         "limit 10 in 4 of 4"),
        ({"name": "adaptive_entropy", "coef_max": 5e-3}, "entropy_coef", 5e-3, "--method.coef_max"),
        # its weight cannot be raised or lowered any further
        ({"name": "pos_adv", "schedule": "entropy", "weight": 1.0}, "pos_weight", 0.0,
         "pos_weight was at its limit 0 in 4 of 4 iterations: it cannot hold the target."),
    ],
)  # fmt: skip
def test_each_controller_has_its_limit(table, key, value, words):
    (sentence,) = saturation(log(f"control/{key}", [value] * 4), [table])
    assert words in sentence


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        # at the other end of its range a controller has nothing to do
        ({"name": "adaptive_entropy", "coef_max": 5e-3}, "entropy_coef", 0.0),
        ({"name": "adapo", "high_min": 0.2, "high_max": 0.3}, "clip_high", 0.2),
        ({"name": "pos_adv", "schedule": "entropy"}, "pos_weight", 1.0),
        ({"name": "pos_adv", "schedule": "stage"}, "pos_weight", 0.0),
        ({"name": "mine", "zeta_max": 0.1}, "zeta", 0.1),
    ],
)
def test_at_rest_or_without_a_controller_nothing_is_said(table, key, value):
    assert saturation(log(f"control/{key}", [value] * 4), [table]) == []


def test_a_thermostat_says_what_its_knob_can_do():
    held = {"name": "repo_r", "controller": "thermostat", "target": "1x"}
    more = {"entropy/exact": 0.3, "control/target": 0.7, "thermostat/gain": 0.02}
    rows = [
        {"control/zeta": 1.0, "thermostat/saturated": end, "thermostat/drift": -0.03, **more}
        for end in (0.0, 1.0, 0.0, 1.0, 1.0)
    ]
    (sentence,) = saturation(rows, [held])
    assert sentence.startswith(
        "zeta was at an end of its range in 3 of 5 iterations: it cannot hold the target (entropy "
        "0.3, target 0.7 in the second half). All of its range moves entropy by 0.02 nats an "
        "iteration, and where it stands entropy still changes by -0.03."
    )
    free = [row | {"thermostat/saturated": 0.0} for row in rows]
    assert saturation(free, [held]) == []
    near = [row | {"entropy/exact": 0.69} for row in rows]
    assert saturation(near, [held]) == []


def test_each_controller_is_held_to_its_own_target():
    rows = [
        {"control/zeta": 0.1, "control/target": 0.7, "control/pos_adv_target": 0.2,
         "control/pos_weight": 0.0, "entropy/exact": 0.7}
    ] * 4  # fmt: skip
    (sentence,) = saturation(rows, [REPO, {"name": "pos_adv"}])
    assert sentence.endswith("(entropy 0.7, target 0.2 in the second half).")


def test_a_pi_law_at_the_end_of_its_range_says_so():
    rows = [{"control/zeta": 1.0, "entropy/exact": 0.3, "control/target": 0.7}] * 4
    (sentence,) = saturation(rows, [{"name": "repo_r", "controller": "pi", "target": 0.7}])
    assert sentence == (
        "zeta was at its limit 1 in 4 of 4 iterations: it cannot hold the target (entropy 0.3, "
        "target 0.7 in the second half)."
    )


def test_two_methods_with_a_coefficient_of_one_name():
    rows = [{"control/zeta": 0.1, "control/repo_d_zeta": 10.0}] * 3
    fixed = REPO | {"controller": "none"}
    other = {"name": "repo_d", "zeta_max": 10.0, "controller": "doubling"}
    (sentence,) = saturation(rows, [fixed, other])
    assert "limit 10 in 3 of 3" in sentence
    assert sentence.endswith("Raise --method.repo_d.zeta_max.")


def test_a_method_of_the_user_s_own_has_its_limit_too(monkeypatch):
    @dataclass(frozen=True)
    class Damper(es.Method):
        """Damper: a controller of a coefficient of its own."""

        most: float = 2.0

        actuator = ("damping", "most")

        def controls(self):
            return "the damping"

    rows = log("control/damping", [2.0] * 4)
    assert saturation(rows, [{"name": "damper", "most": 2.0}]) == []  # not registered here
    monkeypatch.setitem(METHODS, "damper", Damper)
    (sentence,) = saturation(rows, [{"name": "damper", "most": 2.0}])
    assert sentence.startswith("damping was at its limit 2 in 4 of 4 iterations")
    assert saturation(rows, [{"name": "damper", "most": 3.0}]) == []
    assert saturation(rows, [{"name": "damper", "gone": 3.0}]) == []  # another version's parameter
    assert saturation(rows, [{"name": "os:system", "most": 2.0}]) == []  # nothing is imported


# ---------------------------------------------------------------------------- state, errors


@pytest.mark.parametrize("target", [None, 0.1 + 0.2])
def test_a_state_survives_json(target):
    state = ControlState(1e-3 / 3, target)
    assert ControlState.from_dict(json.loads(json.dumps(state.to_dict()))) == state


def test_update_is_pure():
    controller = Multiplicative(1.0, 0.5, 2.0)
    state = controller.init()
    controller.update(state, 0.5)
    assert state == controller.init()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"low": 2.0}, r"0 <= low <= high, got \[2.0, 1.0\]"),
        ({"low": -0.1}, "0 <= low <= high"),
        ({"low": math.nan}, "0 <= low <= high"),
        ({"high": math.inf}, "0 <= low <= high"),
        ({"start": math.nan}, "start must be a number, got nan"),
        ({"target": -1.0}, "target must be an entropy in nats >= 0 .*got -1.0"),
        ({"target": math.nan}, "target must be an entropy"),
    ],
)
def test_bad_ranges_are_errors(arguments, words):
    good = {"start": 0.5, "low": 0.1, "high": 1.0}
    with pytest.raises(ValueError, match=words):
        Multiplicative(**good | arguments)
    with pytest.raises(ValueError, match=words):
        Additive(**good | arguments, delta=0.1)


@pytest.mark.parametrize("factor", [1.0, 0.5, -2.0, math.nan, math.inf])
def test_a_factor_that_does_not_grow_is_an_error(factor):
    refused(lambda: Multiplicative(0.5, 0.1, 1.0, factor=factor), "factor")


def test_an_unknown_flip_is_an_error():
    refused(lambda: es.make_objective("repo_r", bidirectional=True, flip="now"), "got 'now'")
    refused(lambda: Multiplicative(0.5, 0.1, 1.0, bidirectional=True, flip="now"), "got 'now'")


def test_an_unknown_direction_is_an_error():
    refused(lambda: Additive(0.5, 0.0, 1.0, 0.1, rises="sideways"), "got 'sideways'")


def test_bidirectional_without_a_least_magnitude_is_an_error():
    refused(lambda: Multiplicative(0.5, 0.0, 1.0, bidirectional=True), "bidirectional")


@pytest.mark.parametrize("delta", [0.0, -0.1, math.nan, math.inf])
def test_a_delta_that_does_not_move_is_an_error(delta):
    refused(lambda: Additive(0.5, 0.0, 1.0, delta), "delta")


def test_a_limit_that_holds_the_target_is_no_trouble() -> None:
    def rows(entropy: float) -> list[dict[str, float]]:
        return [
            {"control/zeta": 0.1, "control/target": 0.7, "entropy/exact": entropy} for _ in range(4)
        ]

    assert saturation(rows(0.67), [REPO]) == []  # 4% off
    assert len(saturation(rows(0.66), [REPO])) == 1  # 6% off


# ---------------------------------------------------------------------------- PI


def test_pi_by_hand():
    """The law of the hand-tuned run: c = clip(4 e + i, -1, 1), i the sum of .5 e while free."""
    controller = ProportionalIntegral(-1.0, 1.0, target=2.0)
    state, seen = controller.init(), []
    for entropy in (2.0, 1.9, 1.8, 1.0, 1.0, 2.0, 2.2, 3.0):
        state = controller.update(state, entropy)
        seen.append((state.value, state.integral))
    assert seen == [
        (0.0, 0.0),
        pytest.approx((0.2 + 0.025, 0.025)),  # e = .05
        pytest.approx((0.4 + 0.075, 0.075)),  # e = .1
        pytest.approx((1.0, 0.325)),  # e = .5: 2.325
        pytest.approx((1.0, 0.325)),  # at the end that e pushes towards: i waits
        pytest.approx((0.325, 0.325)),  # e = 0
        pytest.approx((-0.4 + 0.275, 0.275)),  # e = -.1
        pytest.approx((-1.0, 0.025)),  # e = -.5
    ]


def test_pi_takes_the_first_entropy_and_comes_back_from_a_checkpoint():
    controller = ProportionalIntegral(-1.0, 1.0)
    state = controller.update(controller.update(controller.init(), 0.8), 0.4)
    assert state.target == 0.8
    again = PiState.from_dict(json.loads(json.dumps(state.to_dict())))
    assert controller.update(again, 0.5) == controller.update(state, 0.5)


def test_pi_refuses_a_range_without_zero_and_schedules():
    refused(lambda: ProportionalIntegral(0.1, 1.0), "low <= 0 <= high")
    refused(lambda: ProportionalIntegral(-1.0, 1.0, kp=-1.0), "gains")
    for nothing in (0.0, "0", "0x"):
        with pytest.raises(ValueError, match="a target of 0 has no relative error"):
            ProportionalIntegral(-1.0, 1.0, nothing)
    refused(lambda: es.make_objective("repo_r", controller="pi", target="0x"), "repo_r:", "zeta's")
    refused(lambda: ProportionalIntegral(-1.0, 1.0, "linear 1x 0.5x"), "are for the thermostat")


def test_pi_moves_the_zeta_of_repo_r():
    objective = es.make_objective("repo_r", controller="pi", target=2.0)
    objective.observe(entropy=1.9)
    assert objective.metrics() == {
        "control/zeta": pytest.approx(0.225), "control/target": 2.0,
    }  # fmt: skip
    objective = es.make_objective("repo_r", controller="pi", target=2.0, zeta_max=0.2)
    objective.observe(entropy=1.9)
    assert objective.metrics()["control/zeta"] == 0.2
    refused(lambda: es.make_objective("repo_r", controller="pi", zeta_min=0.1), "got [0.1, 1.0]")


def test_dual_ascent_by_hand():
    bonus = {"name": "entropy_bonus", "controller": "dual", "target": 1.0, "coef_max": 0.08}
    objective = es.make_objective(bonus)
    # + .1 * (.5, .2, .4), then down by .1 * 1.5 as far as 0
    # which it leaves at once: + .1 * .3
    for entropy, coef in ((0.5, 0.05), (0.8, 0.07), (0.6, 0.08), (2.5, 0.0), (0.7, 0.03)):
        objective.observe(entropy=entropy)
        assert objective.metrics()["control/entropy_coef"] == pytest.approx(coef, abs=1e-12)
