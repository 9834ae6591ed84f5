"""The figures of a run's page: metrics that belong together, their captions, their axes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import correlation
from typing import Any

from ..logs.run import Run, moving, paired
from .curves import coefficient, logged, panel, series, smooth_words, smoothed
from .figures import BLACK, BLUE, COLORS, GREEN, ORANGE, PURPLE, RED, Band, Curve, Panel

SCORES = 7  # maximum number of drawn scores from other trainers' evaluations

# other trainers' evaluation scores, and metrics beside them that are not scores
_SCORE = re.compile(r"eval_reward$|eval_rewards/.*mean$|val-core/|eval/|val/|test_score/")
# mean reward of one part: in TRL and ours a function or kind, in prime-rl an environment
_PART = re.compile(r"(?:train/)?rewards?/(?!all/)(.+)/mean$")
_STALE = re.compile(
    r"(.*/)?(off_policy_level(/all)?/|(staleness|version_(offset|gap))[_/])(mean|max)$"
)
_NO_SCORE = re.compile(r"entropy|length|len/|len_|truncat|clip|runtime|std|loss|time|num_|kl")


def run_panels(run: Run) -> list[Panel]:
    """Yield the figures of one run that have data."""
    parts = (
        ("Entropy and reward", _outcome(run)),
        ("Updates", _updates(run)),
        ("Rollouts", _rollouts(run)),
        ("Entropy dynamics", _dynamics(run)),
        ("PRIME's second model", _prime(run)),
        ("Sampler, trainer and speed", _machine(run)),
    )
    return [replace(drawn, part=part) for part, panels in parts for drawn in panels if drawn.curves]


def _outcome(run: Run) -> Iterator[Panel]:
    exact, nll, as_logged, target, best = (
        logged(run, key) is not None
        for key in (
            "entropy/exact", "entropy/nll", "entropy/logged", "control/target",
            "reward/best_in_group",
        )
    )  # fmt: skip
    bands = _standard_errors(run) if target else ()
    yield panel(
        run, "Entropy", "nats per token",
        " ".join(
            exact * ["Exact: mean of the full next-token entropy."]
            + nll * ["NLL: mean of -log p of the sampled tokens, an estimate of it."]
            + as_logged * [f"Logged: {run.entropy_is}"[:300]]
            + target * ["Dashed: the controller's target."]
            + bool(bands) * ["Shaded: two standard errors between prompts."]
        ),
        ("entropy/exact", "exact", BLUE, "-", 2.2),
        ("entropy/nll", "NLL", BLACK, "-", 0.6 if exact else 1.7),
        ("entropy/logged", "logged", BLUE),
        ("control/target", "target", RED, "--", 1.3),
        low=0, bands=bands,
    )  # fmt: skip
    mean = smoothed(run, "reward/mean", "mean", BLUE)
    reward = panel(
        run, "Reward", "reward",
        f"Mean reward of an iteration's rollouts{smooth_words([run], mean)}."
        + best * " Best: mean over prompts of the group's highest reward.",
        ("reward/best_in_group", "best of group", ORANGE), low=0, high=1,
    )  # fmt: skip
    yield replace(reward, curves=(*reward.curves, *mean))
    of_parts = [(key, m[1]) for key in run.names if (m := _PART.match(key))]
    yield panel(
        run, "Reward by part", "reward",
        "Mean reward of each reward function, environment or kind of task.",
        *_colored(of_parts), low=0,
    )  # fmt: skip
    for key in run.coefficients:
        name = key.removeprefix("control/")
        yield panel(
            run, f"Coefficient {name}", name,
            "What the controller sets, once per iteration, from the entropy it sees.",
            (key, "", PURPLE), fit=True, name=coefficient(key),
        )  # fmt: skip
    yield panel(
        run, "What the thermostat foretold", "nats an iteration",
        "Change of entropy by an iteration's updates: foretold by first order, realised (measured "
        "on other prompts), and the bias, an estimate of what first order does not explain.",
        ("thermostat/realised", "realised", BLACK, "-", 0.8),
        ("thermostat/foretold", "foretold", BLUE), ("thermostat/bias", "bias", RED),
        name="foretold",
    )  # fmt: skip
    yield panel(
        run, "What the thermostat has learnt", "nats",
        "Gain: change of entropy an iteration by the whole range of its knob. Drift: its change in "
        "the coming iteration if the knob stayed where it is. Noise: standard deviation of an "
        "iteration's entropy as it is measured.",
        ("thermostat/gain", "gain", BLUE), ("thermostat/drift", "drift", RED),
        ("thermostat/noise", "noise", ORANGE), name="thermostat",
    )  # fmt: skip
    found = [
        name
        for name in run.names
        if _SCORE.match(name) and not _NO_SCORE.search(name) and series(run.metrics, name)[0]
    ]
    more = f" The first {SCORES} of {len(found)} are drawn." if len(found) > SCORES else ""
    scores = panel(
        run, "Evaluation scores", "score",
        f"Scores of the trainer's own evaluations, under its names.{more}",
        *_colored((name, name) for name in found), low=0, high=1,
    )  # fmt: skip
    yield replace(scores, curves=tuple(replace(curve, marked=True) for curve in scores.curves))


def _standard_errors(run: Run) -> tuple[Band, ...]:
    columns = _columns(run, "iteration", "entropy/exact", "entropy/stderr")
    low, high = ([h + s * 2 * e for _, h, e in columns] for s in (-1, 1))
    return (Band("", [x for x, *_ in columns], low, high),) if columns else ()


def _columns(run: Run, *keys: str) -> list[list[float]]:
    return [[line[k] for k in keys] for line in run.metrics if all(k in line for k in keys)]


def _colored(names: Iterable[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """Metrics and their labels, each with the next color, until the colors run out."""
    return [(*pair, color) for pair, color in zip(names, COLORS, strict=False)]


def _updates(run: Run) -> Iterator[Panel]:
    tokens = "Means over the tokens of the iteration's updates"
    yield panel(
        run, "Clipped tokens", "fraction of tokens",
        "Tokens whose ratio to the old policy is above the upper bound at a positive "
        "advantage (high), below the lower one at a negative (low); of all tokens of the "
        "iteration's updates, of which the first clips none: every ratio is 1 there.",
        ("clip/low", "low", BLUE), ("clip/high", "high", RED), ("clip/dual", "dual", PURPLE),
        ("clip/both", "both", BLACK, "-", 1.0),
        ("numerics/clip_low_exact", "low, not rounded", BLUE, "--"),
        ("numerics/clip_high_exact", "high, not rounded", RED, "--"), low=0,
    )  # fmt: skip
    yield panel(
        run, "Ratio to the old policy", "ratio",
        f"{tokens}, the first among them, where it is 1: the probability now over that when the "
        "token was sampled. An average far from 1 is of a few tokens that moved far.",
        "ratio/mean", name="ratio",
    )  # fmt: skip
    yield panel(
        run, "KL divergence from the old policy", "nats per token",
        f"{tokens}, the first among them, where it is 0: how far the updates take the policy from "
        "the one that sampled.", "kl/old_new", name="kl_old",
    )  # fmt: skip
    yield panel(
        run, "KL divergence from the reference", "nats per token",
        f"{tokens}: how far the policy is from the reference model.", "kl/ref",
        name="kl_reference",
    )  # fmt: skip
    losses = [key for key in ("loss/total", "loss/policy") if logged(run, key) is not None]
    losses += [key for key in run.keys("loss") if key not in losses]
    yield _each(
        run, losses, "Loss", "loss",
        "What is minimised (total), its policy part and what is added to it. Its height says "
        "little: advantages are centred, so that a loss near 0 is the rule.",
    )  # fmt: skip
    yield panel(
        run, "Weight of the tokens", "weight",
        f"{tokens} of the weight that the methods give a token's policy term; 1 where none does.",
        "terms/weight", name="token_weight",
    )  # fmt: skip
    others = [key for key in run.keys("terms") if key != "terms/weight"]
    yield _each(
        run, others, "Tokens that terms hold", "fraction of tokens",
        "Frozen: their gradient is taken away. Penalised: held to the old policy by |log p - log "
        "p old| or a KL divergence.", low=0, name="held_tokens",
    )  # fmt: skip
    yield panel(
        run, "Gradient norm", "norm",
        "Norm of the whole gradient before clipping, mean over the iteration's updates.",
        "grad/norm", fit=True, low=0,
    )  # fmt: skip
    rates = series(run.metrics, logged(run, "optim/lr") or "")[1]
    if len(set(rates)) > 1:
        yield panel(run, "Learning rate", "rate", "As the schedule has it.", "optim/lr", low=0)


def _each(run: Run, keys: list[str], title: str, unit: str, caption: str, **axis: Any) -> Panel:
    """A figure of several metrics of a group under their own names; equal ones drawn once."""
    named = ((key, key.partition("/")[2].replace("_", " ")) for key in keys)
    drawn = panel(run, title, unit, caption, *_colored(named), **axis)
    curves: dict[tuple[Any, ...], Curve] = {}
    for curve in drawn.curves:
        curves.setdefault((tuple(curve.x), tuple(curve.y)), curve)
    return replace(drawn, curves=tuple(curves.values()))


def _rollouts(run: Run) -> Iterator[Panel]:
    groups = run.setting("sampling", "prompts")
    without = "Prompts whose rollouts all earned the same: zero advantage, nothing to learn."
    yield panel(
        run, "Groups without a signal",
        f"groups (of {groups})" if isinstance(groups, int) else "groups", without,
        "rollout/zero_advantage_groups", low=0, name="zero_advantage_groups",
    )  # fmt: skip
    yield panel(
        run, "Share of groups without a signal", "share of groups", without,
        "rollout/zero_advantage_share", low=0, high=1, name="zero_advantage_share",
    )  # fmt: skip
    yield panel(
        run, "Group outcomes", "share of groups",
        "Share of the prompts whose rollouts are all right (a reward of 1 or more), all wrong "
        "(0 or less), or neither.",
        ("groups/mixed", "mixed", BLUE), ("groups/all_right", "all right", ORANGE),
        ("groups/all_wrong", "all wrong", RED), low=0, high=1,
    )  # fmt: skip
    names = ("min", "p10", "p90", "max")
    columns = _columns(run, "iteration", *(f"advantage/{name}" for name in names))
    x, low, p10, p90, high = ([row[i] for row in columns] for i in range(5))
    yield panel(
        run, "Advantages", "advantage",
        "Distribution of the rollouts' advantages: their range, that of the middle 80 %, and the "
        "median.",
        ("advantage/p50", "median", BLUE),
        bands=(Band("all", x, low, high, alpha=0.12), Band("middle 80 %", x, p10, p90, alpha=0.25)),
    )  # fmt: skip
    yield panel(
        run, "Completion length", "tokens", "Tokens of a completion, its end included.",
        ("rollout/length_max", "longest", ORANGE, "-", 0.9), ("rollout/length_mean", "mean", BLUE),
        low=0,
    )  # fmt: skip
    yield panel(
        run, "Cut-off completions", "share of completions",
        "Completions that reached the length limit before they ended.", "rollout/truncated",
        low=0, name="truncated",
    )  # fmt: skip
    if any(series(run.metrics, "reward/failed")[1]):
        yield panel(
            run, "Answers that could not be scored", "answers",
            "The scorer raised at them, gave no number, took too long or too much memory: they "
            "score 0.", "reward/failed", low=0, name="failed_answers",
        )  # fmt: skip


def _dynamics(run: Run) -> Iterator[Panel]:
    yield panel(
        run, "Token covariance", "covariance",
        "(log p - mean)(A - mean) of the tokens that are trained on, under the policy that "
        "sampled them, averaged over those where it is largest (COV Table 1)."
        + (logged(run, "cov/update") is not None)
        * " In the updates: over their tokens, each under the policy that its update starts from.",
        ("cov/top_0.02", "top 0.02 %", RED), ("cov/top_0.2", "top 0.2 %", ORANGE),
        ("cov/top_2", "top 2 %", GREEN), ("cov/top_20", "top 20 %", BLUE),
        ("cov/mean", "all", BLACK), ("cov/update", "all, in the updates", PURPLE, ":"), fit=True,
    )  # fmt: skip
    yield panel(
        run, "Touched tokens", "fraction of tokens",
        "Tokens of the iteration's updates that a method touched: weighted, frozen, penalised, "
        "clipped, or given another advantage than the estimator's.", "touched/share", low=0,
    )  # fmt: skip
    if logged(run, "touched/entropy") is not None:
        yield panel(
            run, "Entropy of touched tokens", "nats per token",
            "Mean entropy of the tokens that a method touched, beside that of all sampled tokens.",
            ("touched/entropy", "touched", RED), ("entropy/exact", "all", BLACK, "-", 1.2),
            low=0, name="touched_entropy",
        )  # fmt: skip
    yield panel(
        run, "Quadrants", "fraction of tokens",
        "Tokens of the iteration's updates by advantage and probability (STEER Fig. 2). I: "
        "A > 0, p > .8; II: A > 0, p < .2; III: A < 0, p < .2; IV: A < 0, p > .8. In a softmax "
        "table I and III lower entropy, II and IV raise it.",
        ("quadrant/I", "I", BLUE), ("quadrant/II", "II", GREEN), ("quadrant/III", "III", ORANGE),
        ("quadrant/IV", "IV", RED), low=0,
    )  # fmt: skip
    yield panel(
        run, "Forecast", "nats per iteration",
        "Change of mean entropy over an iteration's updates on fresh prompts, and what was "
        "foretold before them: by the batch's influences, crossed between its halves; by what "
        "AdamW has in motion from earlier batches; by both together, the step that it makes."
        + _came_true(run),
        ("forecast/crossed", "influences", ORANGE, "-", 1.2),
        ("forecast/momentum", "in motion", GREEN, "-", 1.2),
        ("forecast/step", "step", BLUE, "--"), ("forecast/change", "what came", BLACK, "-", 2.2),
    )  # fmt: skip


def _came_true(run: Run) -> str:
    step, change = (
        dict(zip(*run.series(f"forecast/{key}"), strict=True)) for key in ("step", "change")
    )
    pairs = paired(step, change)
    if not moving(pairs):
        return ""
    r = correlation(*zip(*pairs, strict=True))
    return f" Without the first tenth: r = {r:.2f} between step and what came."


def _prime(run: Run) -> Iterator[Panel]:
    yield panel(
        run, "PRIME: loss of the second model", "nats per rollout",
        "Cross-entropy of the outcomes of rollouts that it has yet to learn from; ln 2 = 0.693 is "
        "guessing.", "prime/loss", name="prime_loss",
    )  # fmt: skip
    yield panel(
        run, "PRIME: accuracy of the second model", "share",
        "Rollouts: whose score has the sign of their outcome. Pairs: of one prompt with different "
        "outcomes, in which the better has the larger score. 1/2 is guessing.",
        ("prime/pair_accuracy", "pairs", BLUE), ("prime/accuracy", "rollouts", ORANGE, "-", 1.0),
        low=0, high=1, name="prime_accuracy",
    )  # fmt: skip
    yield panel(
        run, "PRIME: mean token reward", "reward per token",
        "beta times the log-ratio of the second model to the reference, mean over tokens.",
        "prime/reward_mean", name="prime_reward",
    )  # fmt: skip
    yield panel(
        run, "PRIME: gradient norm of the second model", "norm",
        "Before clipping, mean over its updates.", "prime/grad_norm", low=0,
        name="prime_gradient_norm",
    )  # fmt: skip


def _machine(run: Run) -> Iterator[Panel]:
    yield panel(
        run, "Sampler and trainer", "nats",
        "How far the sampler's log-probs are from the trainer's: |difference| per token, and "
        "the KL divergence it amounts to. With the same weights, rounding.",
        ("mismatch/logp_abs_max", "largest", ORANGE, "-", 1.0),
        ("mismatch/logp_abs_mean", "mean", BLUE), ("mismatch/kl", "KL", PURPLE, "-", 1.0),
        fit=True, low=0, name="mismatch",
    )  # fmt: skip
    yield panel(
        run, "Sampler and trainer: probability ratio", "ratio",
        "The least and the largest ratio, over an iteration's tokens, of the trainer's "
        "probability to the sampler's (REPO Fig. 6). 1: they agree.",
        ("mismatch/ratio_max", "largest", ORANGE, "-", 1.0),
        ("mismatch/ratio_min", "least", BLUE, "-", 1.0), name="mismatch_ratio",
    )  # fmt: skip
    yield panel(
        run, "Sampler and trainer: probability difference", "probability",
        "Mean |difference| of a token's probability under sampler and trainer (REPO Fig. 6).",
        "mismatch/prob_abs_mean", low=0, name="mismatch_probability",
    )  # fmt: skip
    stale = [key for key in run.names if _STALE.match(key)]
    yield panel(
        run, "Staleness", "versions",
        "Versions of the weights between the policy that sampled and the one that trains. Logged "
        f"as {', '.join(stale)}.",
        *_colored((key, key.rpartition("/")[2]) for key in stale), low=0,
    )  # fmt: skip
    yield panel(
        run, "Speed", "tokens per second",
        "Completion tokens per second of the whole iteration: sampling, scoring, measuring, "
        "updates.", "time/tokens_per_second", low=0,
    )  # fmt: skip
