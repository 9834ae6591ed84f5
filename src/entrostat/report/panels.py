"""Which figures a run's page has: the metrics that go together, their words, their axes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..logs.run import Run
from .curves import coefficient, curves_of, logged, named, say_smoothed, scale_of, smoothed
from .figures import BLACK, BLUE, COLORS, ORANGE, PURPLE, RED, Band, Curve, Panel
from .runs import drawable
from .update_panels import update_panels

SCORES = 7  # of other trainers' evaluations drawn

# other trainers' scores of evaluations, and what is beside them and none
_SCORE = re.compile(r"eval_reward$|eval_rewards/.*mean$|val-core/|eval/|val/|test_score/")
# a mean reward of a part: TRL's and ours of a function or kind, prime-rl's of an environment
_PART = re.compile(r"(?:train/)?rewards?/(?!all/)(.+)/mean$")
_STALE = re.compile(
    r"(.*/)?(off_policy_level(/all)?/|(staleness|version_(offset|gap))[_/])(mean|max)$"
)
_NO_SCORE = re.compile(r"entropy|length|len/|len_|truncat|clip|runtime|std|loss|time|num_|kl")


def run_panels(run: Run) -> list[Panel]:
    """The figures of one run, without those that it logged nothing for."""
    parts = (
        ("Entropy and reward", _outcome(run)),
        ("Updates", _updates(run)),
        ("Rollouts", _rollouts(run)),
        ("Entropy dynamics", update_panels(run)),
        ("PRIME's second model", _prime(run)),
        ("Sampler, trainer and speed", _machine(run)),
    )
    return [
        replace(say_smoothed(panel, [run]), part=part)
        for part, panels in parts
        for panel in panels
        if panel.curves
    ]


def _outcome(run: Run) -> Iterator[Panel]:
    exact, nll, as_logged, target, best = (
        logged(run, key) is not None
        for key in (
            "entropy/exact", "entropy/nll", "entropy/logged", "control/target",
            "reward/best_in_group",
        )
    )  # fmt: skip
    bands = _standard_errors(run) if target else ()
    yield Panel(
        "Entropy",
        " ".join(
            exact * ["Exact: mean of the full next-token entropy."]
            + nll * ["NLL: mean of -log p of the sampled tokens, an estimate of it."]
            + as_logged * [f"Logged: {run.entropy_is}"[:300]]
            + target * ["Dashed: the controller's target."]
            + bool(bands) * ["Shaded: two standard errors between prompts."]
        ),
        "nats per token",
        curves_of(
            run,
            ("entropy/exact", "exact", {"color": BLUE, "width": 2.2}),
            ("entropy/nll", "NLL", {"color": BLACK, "width": 0.6 if exact else 1.7}),
            ("entropy/logged", "logged", {"color": BLUE, "width": 1.7}),
            ("control/target", "target", {"color": RED, "dash": "--", "width": 1.3}),
        ),
        low=0,
        bands=bands,
    )
    yield Panel(
        "Reward",
        "Mean reward of an iteration's rollouts{smooth}."
        + best * " Best: mean over prompts of the group's highest reward.",
        "reward",
        (
            *curves_of(run, ("reward/best_in_group", "best of group", {"color": ORANGE})),
            *smoothed(run, "reward/mean", "mean", BLUE),
        ),
        low=0,
        high=1,
    )
    of_parts = {key: m[1] for key in _names(run) if (m := _PART.match(key))}
    looks = zip(of_parts.items(), COLORS, strict=False)
    yield Panel(
        "Reward by part",
        "Mean reward of each reward function, environment or kind of task.",
        "reward",
        curves_of(run, *((key, part, {"color": color}) for (key, part), color in looks)),
        low=0,
    )
    for key in run.coefficients:
        yield _one(
            run, key, f"Coefficient {key.removeprefix('control/')}",
            "What the controller sets, once per iteration, from the entropy it sees.",
            key.removeprefix("control/"), PURPLE, fit=True, name=coefficient(key),
        )  # fmt: skip
    yield Panel(
        "What the thermostat foretold",
        "Change of entropy by an iteration's updates: foretold by first order, realised (measured "
        "on other prompts), and the bias, an estimate of what first order does not explain.",
        "nats an iteration",
        curves_of(
            run,
            ("thermostat/realised", "realised", {"color": BLACK, "width": 0.8}),
            ("thermostat/foretold", "foretold", {"color": BLUE}),
            ("thermostat/bias", "bias", {"color": RED}),
        ),
        name="foretold",
    )
    yield Panel(
        "What the thermostat has learnt",
        "Gain: change of entropy an iteration by the whole range of its knob. Drift: its change in "
        "the coming iteration if the knob stayed where it is. Noise: standard deviation of an "
        "iteration's entropy as it is measured.",
        "nats",
        curves_of(
            run,
            ("thermostat/gain", "gain", {"color": BLUE}),
            ("thermostat/drift", "drift", {"color": RED}),
            ("thermostat/noise", "noise", {"color": ORANGE}),
        ),
        name="thermostat",
    )
    yield _imported_scores(run)


def _standard_errors(run: Run) -> tuple[Band, ...]:
    """Two standard errors about the entropy, of a run whose iterations have them."""
    key = "entropy/stderr"
    rows = [line for line in run.metrics if key in line and "entropy/exact" in line]
    x, H, error = ([row[k] for row in rows] for k in ("iteration", "entropy/exact", key))
    if not rows:
        return ()
    low, high = ([h + s * 2 * e for h, e in zip(H, error, strict=True)] for s in (-1, 1))
    return (Band("", x, low, high, BLUE),)


def _names(run: Run) -> list[str]:
    """All that its lines have."""
    return list(dict.fromkeys(key for line in run.metrics for key in line))


def _imported_scores(run: Run) -> Panel:
    found = [
        name
        for name in _names(run)
        if _SCORE.match(name) and not _NO_SCORE.search(name) and drawable(run, name)[0]
    ]
    more = f" The first {SCORES} of {len(found)} are drawn." if len(found) > SCORES else ""
    return Panel(
        "Evaluation scores",
        f"Scores of the trainer's own evaluations, under its names.{more}",
        "score",
        tuple(
            replace(curve, marked=True)
            for name, color in zip(found, COLORS, strict=False)
            for curve in curves_of(run, (name, name, {"color": color}))
        ),
        low=0,
        high=1,
    )


def _updates(run: Run) -> Iterator[Panel]:
    tokens = "Means over the tokens of the iteration's updates"
    yield Panel(
        "Clipped tokens",
        "Tokens whose ratio to the old policy is above the upper bound at a positive "
        "advantage (high), below the lower one at a negative (low); of all tokens of the "
        "iteration's updates, of which the first clips none: every ratio is 1 there."
        + named(run, "clip/both"),
        "fraction of tokens",
        curves_of(
            run,
            ("clip/low", "low", {"color": BLUE}),
            ("clip/high", "high", {"color": RED}),
            ("clip/dual", "dual", {"color": PURPLE}),
            ("clip/both", "both", {"color": BLACK, "width": 1.0}),
            ("numerics/clip_low_exact", "low, not rounded", {"color": BLUE, "dash": "--"}),
            ("numerics/clip_high_exact", "high, not rounded", {"color": RED, "dash": "--"}),
        ),
        low=0,
    )
    yield _one(
        run, "ratio/mean", "Ratio to the old policy",
        f"{tokens}, the first among them, where it is 1: the probability now over that when the "
        "token was sampled. An average far from 1 is of a few tokens that moved far.",
        "ratio", name="ratio",
    )  # fmt: skip
    yield _one(
        run, "kl/old_new", "KL divergence from the old policy",
        f"{tokens}, the first among them, where it is 0: how far the updates take the policy from "
        "the one that sampled.", "nats per token", name="kl_old",
    )  # fmt: skip
    yield _one(
        run, "kl/ref", "KL divergence from the reference",
        f"{tokens}: how far the policy is from the reference model.", "nats per token",
        name="kl_reference",
    )  # fmt: skip
    losses = [key for key in ("loss/total", "loss/policy") if logged(run, key) is not None]
    losses += [key for key in run.keys("loss") if key not in losses]
    yield _each(
        run, losses, "Loss",
        "What is minimised (total), its policy part and what is added to it. Its height says "
        "little: advantages are centred, so that a loss near 0 is the rule.", "loss",
    )  # fmt: skip
    yield _one(
        run, "terms/weight", "Weight of the tokens",
        f"{tokens} of the weight that the methods give a token's policy term; 1 where none does.",
        "weight", name="token_weight",
    )  # fmt: skip
    others = [key for key in run.keys("terms") if key != "terms/weight"]
    yield _each(
        run, others, "Tokens that terms hold",
        "Frozen: their gradient is taken away. Penalised: held to the old policy by |log p - log "
        "p old| or a KL divergence.", "fraction of tokens", low=0, name="held_tokens",
    )  # fmt: skip
    yield _one(
        run, "grad/norm", "Gradient norm",
        "Norm of the whole gradient before clipping, mean over the iteration's updates.", "norm",
        fit=True, low=0,
    )  # fmt: skip
    rates = drawable(run, logged(run, "optim/lr") or "")[1]
    if len(set(rates)) > 1:
        yield _one(run, "optim/lr", "Learning rate", "As the schedule has it.", "rate", low=0)


def _rollouts(run: Run) -> Iterator[Panel]:
    prompts = run.config.get("sampling")
    groups = prompts.get("prompts") if isinstance(prompts, dict) else None
    without = "Prompts whose rollouts all earned the same: zero advantage, nothing to learn."
    yield _one(
        run, "rollout/zero_advantage_groups", "Groups without a signal", without,
        f"groups (of {groups})" if isinstance(groups, int) else "groups", low=0,
        name="zero_advantage_groups",
    )  # fmt: skip
    yield _one(
        run, "rollout/zero_advantage_share", "Share of groups without a signal", without,
        "share of groups", low=0, high=1, name="zero_advantage_share",
    )  # fmt: skip
    yield Panel(
        "Group outcomes",
        "Share of the prompts whose rollouts are all right (a reward of 1 or more), all wrong "
        "(0 or less), or neither.",
        "share of groups",
        curves_of(
            run,
            ("groups/mixed", "mixed", {"color": BLUE}),
            ("groups/all_right", "all right", {"color": ORANGE}),
            ("groups/all_wrong", "all wrong", {"color": RED}),
        ),
        low=0,
        high=1,
    )
    yield _advantages(run)
    yield Panel(
        "Completion length",
        "Tokens of a completion, its end included.",
        "tokens",
        curves_of(
            run,
            ("rollout/length_max", "longest", {"color": ORANGE, "width": 0.9}),
            ("rollout/length_mean", "mean", {"color": BLUE}),
        ),
        low=0,
    )
    yield _one(
        run, "rollout/truncated", "Cut-off completions",
        "Completions that reached the length limit before they ended.", "share of completions",
        low=0, name="truncated",
    )  # fmt: skip
    if any(drawable(run, "reward/failed")[1]):
        yield _one(
            run, "reward/failed", "Answers that could not be scored",
            "The scorer raised at them, gave no number, took too long or too much memory: they "
            "score 0.", "answers", low=0, name="failed_answers",
        )  # fmt: skip


def _advantages(run: Run) -> Panel:
    keys = [f"advantage/{name}" for name in ("min", "p10", "p90", "max")]
    rows = [line for line in run.metrics if all(key in line for key in keys)]
    x = [row["iteration"] for row in rows]
    low, p10, p90, high = ([row[key] for row in rows] for key in keys)
    return Panel(
        "Advantages",
        "Distribution of the rollouts' advantages: their range, that of the middle 80 %, and the "
        "median.",
        "advantage",
        curves_of(run, ("advantage/p50", "median", {"color": BLUE})),
        bands=(Band("all", x, low, high, alpha=0.12), Band("middle 80 %", x, p10, p90, alpha=0.25)),
    )


def _prime(run: Run) -> Iterator[Panel]:
    yield _one(
        run, "prime/loss", "PRIME: loss of the second model",
        "Cross-entropy of the outcomes of rollouts that it has yet to learn from; ln 2 = 0.693 is "
        "guessing.", "nats per rollout", name="prime_loss",
    )  # fmt: skip
    yield Panel(
        "PRIME: accuracy of the second model",
        "Rollouts: whose score has the sign of their outcome. Pairs: of one prompt with different "
        "outcomes, in which the better has the larger score. 1/2 is guessing.",
        "share",
        curves_of(
            run,
            ("prime/pair_accuracy", "pairs", {"color": BLUE}),
            ("prime/accuracy", "rollouts", {"color": ORANGE, "width": 1.0}),
        ),
        low=0,
        high=1,
        name="prime_accuracy",
    )
    yield _one(
        run, "prime/reward_mean", "PRIME: mean token reward",
        "beta times the log-ratio of the second model to the reference, mean over tokens.",
        "reward per token", name="prime_reward",
    )  # fmt: skip
    yield _one(
        run, "prime/grad_norm", "PRIME: gradient norm of the second model",
        "Before clipping, mean over its updates.", "norm", low=0, name="prime_gradient_norm",
    )  # fmt: skip


def _machine(run: Run) -> Iterator[Panel]:
    mismatch = curves_of(
        run,
        ("mismatch/logp_abs_max", "largest", {"color": ORANGE, "width": 1.0}),
        ("mismatch/logp_abs_mean", "mean", {"color": BLUE}),
        ("mismatch/kl", "KL", {"color": PURPLE, "width": 1.0}),
    )
    yield Panel(
        "Sampler and trainer",
        "How far the sampler's log-probs are from the trainer's: |difference| per token, and "
        "the KL divergence it amounts to. With the same weights, rounding.",
        "nats",
        mismatch,
        scale_of(y for curve in mismatch for y in curve.y),
        low=0,
        name="mismatch",
    )
    yield Panel(
        "Sampler and trainer: probability ratio",
        "The least and the largest ratio, over an iteration's tokens, of the trainer's "
        "probability to the sampler's (REPO Fig. 6). 1: they agree.",
        "ratio",
        curves_of(
            run,
            ("mismatch/ratio_max", "largest", {"color": ORANGE, "width": 1.0}),
            ("mismatch/ratio_min", "least", {"color": BLUE, "width": 1.0}),
        ),
        name="mismatch_ratio",
    )
    yield _one(
        run, "mismatch/prob_abs_mean", "Sampler and trainer: probability difference",
        "Mean |difference| of a token's probability under sampler and trainer (REPO Fig. 6).",
        "probability", low=0, name="mismatch_probability",
    )  # fmt: skip
    stale = [key for key in _names(run) if _STALE.match(key)]
    looks = zip(stale, COLORS, strict=False)
    yield Panel(
        "Staleness",
        "Versions of the weights between the policy that sampled and the one that trains. Logged "
        f"as {', '.join(stale)}.",
        "versions",
        curves_of(run, *((key, key.rpartition("/")[2], {"color": color}) for key, color in looks)),
        low=0,
    )
    yield _one(
        run, "time/tokens_per_second", "Speed",
        "Completion tokens per second of the whole iteration: sampling, scoring, measuring, "
        "updates.", "tokens per second", low=0,
    )  # fmt: skip


def _one(
    run: Run, key: str, title: str, caption: str, unit: str, color: str = BLUE,
    fit: bool = False, **axis: Any,
) -> Panel:  # fmt: skip
    """A figure of one metric; `fit` chooses the axis that suits it, `axis` is a panel's own."""
    curves = curves_of(run, (key, "", {"color": color}))
    scale = scale_of(y for curve in curves for y in curve.y) if fit else "linear"
    return Panel(title, caption + named(run, key), unit, curves, scale, **axis)


def _each(run: Run, keys: list[str], title: str, caption: str, unit: str, **axis: Any) -> Panel:
    """A figure of several metrics of a group, under their own names; equal ones are drawn once."""
    curves: list[Curve] = []
    for key, color in zip(keys, COLORS, strict=False):
        for curve in curves_of(run, (key, key.partition("/")[2].replace("_", " "), {})):
            if not any((curve.x, curve.y) == (other.x, other.y) for other in curves):
                curves.append(replace(curve, color=color))
    return Panel(title, caption + named(run, *keys), unit, tuple(curves), **axis)
