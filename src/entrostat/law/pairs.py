"""Extracts from a run the pairs of entropy and score to fit, both of the same policies.

COV's R is the validation score and its H the entropy of the training rollouts (2.4); these are the
defaults. Other entropies and scores give other laws: entropy differs on prompts that are not
trained on, and the training reward is of the prompts just trained on.

Metrics of the rollouts of iteration i are of the policy after i - 1 iterations; an evaluation after
iteration e is of the policy after e iterations. Pairs are joined by policy: an evaluation pairs
with the rollouts of iteration e + 1, and one after the last iteration has no pair. COV does not
define its pairing; veRL, which trained its models, logs at a step the entropy before the step's
updates and the validation after them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from .._names import unknown
from ..logs.lines import number
from ..logs.run import Run, sets_of
from .steps import LawError

TRAINING = "reward/mean"
FIGURE = "avg@k"
EVALUATIONS_FEW = 14  # of fewer, the first 15% are less than the 3 steps that a fit needs
ROLLOUTS = {
    "entropy/exact": "exact",
    "entropy/nll": "sampled, mean of -log p",
    "entropy/logged": "as logged",
}
# other trainers' evaluation metrics, which they log next to those of the rollouts
_EVALUATED = re.compile(r"eval[_/]|val-(core|aux)/")
_FOREIGN_SCORE = re.compile(r"eval_reward$|val-core/")


@dataclass(frozen=True)
class Pairs:
    """n pairs (H, R) of the same policies, in the order of training."""

    entropy: tuple[float, ...]  # [n] H, nats per token
    score: tuple[float, ...]  # [n] R
    entropy_key: str  # metric, or SPLIT/FIGURE of the evaluations
    score_key: str
    entropy_is: str  # the same in words
    score_is: str
    point: str  # the unit of a pair: "iteration" or "evaluation"
    notes: tuple[str, ...] = ()  # reasons for other choices than COV's, and omissions


@dataclass(frozen=True)
class _Figure:
    """A metric by policy: iterations trained -> value."""

    key: str
    words: str
    values: dict[int, float]
    evaluated: bool


def pairs_of(run: Run, entropy: str | None = None, score: str | None = None) -> Pairs:
    """Extract entropy and score from a run.

    Args:
        run: the run.
        entropy: "rollouts" (exact, else sampled, else as logged), "evaluation" (of the evaluation's
            samples), or a metric's name. None takes "rollouts", or "evaluation" if the run logs no
            rollout entropy.
        score: "validation" (avg@k of the first evaluated split; for other trainers eval_reward or
            val-core/...), "training" (reward/mean), a metric's name, or an evaluation metric such
            as "pass@k" (first split) or "SPLIT/pass@k". None takes "validation", or "training" if
            fewer than 14 evaluations pair with an entropy and there are more iterations than that;
            a note reports it.

    Raises:
        LawError: the run logs no such entropy or score.
        ValueError: an unknown name; the message has the nearest one.
    """
    if score is not None:
        return _join(run, entropy, _score(run, score))
    validation, training = (
        None if figure is None else _join(run, entropy, figure)
        for figure in (_validation(run), _training(run))
    )  # fmt: skip
    most = 0 if training is None else len(training.score)
    if validation is not None and len(validation.score) >= min(EVALUATIONS_FEW, most):
        return validation
    if training is None:
        raise _no_score(run)
    count = 0 if validation is None else len(validation.score)
    few = {0: "no evaluation", 1: "1 evaluation"}.get(count, f"{count} evaluations")
    note = (
        f"R is the training reward, not COV's validation score: the run has {few} with an entropy "
        f"of the same policy, and a fit that also predicts from its first 15% takes "
        f"{EVALUATIONS_FEW} or more; eval.every says how often a run evaluates."
    )
    return replace(training, notes=(note, *training.notes))


def _join(run: Run, entropy: str | None, score: _Figure) -> Pairs:
    split = score.key.rpartition("/")[0] if score.evaluated else None
    h, notes = _entropy(run, entropy, split)
    policies, taken = sorted(h.values), []
    for policy, following in pairwise([*sorted(score.values), inf]):
        place = bisect_left(policies, policy)
        # a log may skip steps: then take the next rollouts before the next score
        near = following if score.evaluated and not h.evaluated else policy + 1
        if place < len(policies) and policies[place] < near:
            taken.append((policies[place], policy))
    if lost := len(score.values) - len(taken):
        what = ("evaluation" if score.evaluated else "iteration") + "s" * (lost > 1)
        notes += (f"Left out: {lost} {what} whose policy has no such entropy.",)
    return Pairs(
        tuple(h.values[i] for i, _ in taken), tuple(score.values[j] for _, j in taken),
        h.key, score.key, h.words, score.words,
        "evaluation" if score.evaluated or h.evaluated else "iteration", notes,
    )  # fmt: skip


def _entropy(run: Run, name: str | None, split: str | None) -> tuple[_Figure, tuple[str, ...]]:
    if name in (None, "rollouts"):
        for key, kind in ROLLOUTS.items():
            figure = _metric(run, key, f"entropy of the training rollouts, {kind}")
            if figure is not None:
                return figure, ()
        if name is None and (own := _evaluation_entropy(run, split)) is not None:
            return own, (
                "H is the entropy of the evaluation's samples, not COV's of the training rollouts: "
                "the run logs none of these.",
            )
        raise LawError(
            f"run {run.name!r}",
            f"logs no entropy of its rollouts; the law needs one of {', '.join(ROLLOUTS)}",
            "no entropy is logged",
        )
    own = _evaluation_entropy(run, split) if name == "evaluation" else _metric(run, name)
    if own is not None:
        return own, ()
    if name == "evaluation":
        why = "no evaluation logs its entropy"
        raise LawError(
            f"run {run.name!r}", f"{why}; --entropy rollouts takes that of the rollouts", why
        )
    names = {"rollouts", "evaluation"} | {key for key in _metrics(run) if "entropy" in key}
    raise ValueError(f"run {run.name!r}, --entropy: {unknown('entropy', name, names)}")


def _score(run: Run, name: str) -> _Figure:
    if name == "validation":
        figure = _validation(run)
    elif name in ("training", TRAINING):
        figure = _training(run)
    else:
        figure = _metric(run, name) or _evaluation(run, name)
    if figure is not None:
        return figure
    if name == "validation":
        raise LawError(
            f"run {run.name!r}",
            "logs no evaluation (eval.every says how often a run evaluates); --score training "
            "takes the training reward",
            "no evaluation is logged",
        )
    if name in ("training", TRAINING):
        raise _no_score(run)
    raise ValueError(f"run {run.name!r}, --score: {unknown('score', name, _scores(run))}")


def _no_score(run: Run) -> LawError:
    names = ", ".join(sorted(_scores(run) - {"validation", "training"}))
    return LawError(
        f"run {run.name!r}",
        f"logs no {TRAINING}; name another score with --score: {names}",
        "no score is logged, neither evaluations nor a mean reward",
    )


def _validation(run: Run) -> _Figure | None:
    """avg@k of the first split, else another trainer's evaluation metric."""
    own = _evaluation(run, FIGURE)
    foreign = [key for key in _metrics(run) if _FOREIGN_SCORE.match(key)]
    return own or (_metric(run, foreign[0], f"validation score, {foreign[0]}") if foreign else None)


def _training(run: Run) -> _Figure | None:
    return _metric(run, TRAINING, f"training reward, {TRAINING}")


def _metric(run: Run, key: str, words: str = "") -> _Figure | None:
    evaluated = _EVALUATED.match(key) is not None
    made = 0 if evaluated else -1
    series = run.series(run.renamed.get(key, key))  # the source's name or ours
    values = {i + made: value for i, value in zip(*series, strict=True)}
    return _Figure(key, words or key, values, evaluated) if values else None


def _evaluation(run: Run, name: str) -> _Figure | None:
    """An evaluation metric by policy: FIGURE (of the first split) or SPLIT/FIGURE."""
    split, _, figure = name.rpartition("/")
    split = split or next(iter(sets_of(run)), "")
    rows = [row for row in run.evaluation if str(row.get("split", "")) == split]
    found = [(row, number(row.get(figure))) for row in rows]
    values = {row["iteration"]: value for row, value in found if value is not None}
    if not values:
        return None
    k = next((number(row.get("k")) for row, value in found if value is not None), None)
    shown = figure if k is None else figure.replace("@k", f"@{k:g}")
    return _Figure(f"{split}/{figure}", f"validation score, {shown} of {split}", values, True)


def _evaluation_entropy(run: Run, split: str | None) -> _Figure | None:
    """The entropy of the evaluation's own samples, of a split, else of the first."""
    known = split if split in sets_of(run) else next(iter(sets_of(run)), "")
    figure = _evaluation(run, f"{known}/entropy") or _metric(run, "eval_entropy")
    if figure is None:
        return None
    of = f" of {known}" if known else f", {figure.key}"
    return replace(figure, words=f"entropy of the evaluation's samples{of}")


def _metrics(run: Run) -> list[str]:
    return [key for key in run.names if run.series(key)[1]]


def _scores(run: Run) -> set[str]:
    figures = {key for row in run.evaluation for key in row if key.endswith("@k")}
    of_splits = {f"{split}/{figure}" for split in sets_of(run) for figure in figures}
    metrics = {key for key in _metrics(run) if "/" in key or key.startswith("eval_")}
    return {"validation", "training"} | metrics | figures | of_splits
