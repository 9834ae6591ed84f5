"""Checks of `Subject` for the loss mask and for zero-advantage groups.

Shapes: B rollouts, T completion tokens at most.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad

from ...agents import is_multi_turn
from ...core.batch import TokenBatch
from ...core.rollouts import idle_groups
from ...data.prompts import stop_strings
from ..checks import Finding, ok, skipped, wrong
from .cut import culprit
from .subject import Subject

IDLE = 0.5  # share of groups: above it, more than half of the sampling cost is wasted
_COLUMNS = 7


def padding(subject: Subject) -> Finding:
    """Check for positions after a completion's end that the mask or a method counts as tokens."""
    mask, there = subject.batch.mask, subject.sequences.completed
    beyond = mask & ~there
    if not is_multi_turn(subject.task):
        ends = torch.isin(subject.sequences.completions, _ends(subject))
        ended = (ends & there).long().cumsum(-1) - (ends & there).long() > 0
        beyond = beyond | (mask & ended)
    if bool(beyond.any()):
        H = subject.batch.need("old_entropy")
        return wrong(
            f"{int(beyond.sum())} of {subject.tokens} tokens at mask 1 stand after their "
            f"completion's end: mean entropy {float(H[mask].mean()):.3f} with them, "
            f"{float(H[mask & ~beyond].mean()):.3f} without",
            "end the mask with the first eos, that token included",
        )
    wide = _wider(subject.whole)
    name = culprit(subject.objective, subject.whole, wide)
    if name is not None:
        return wrong(
            f"`{name}` decides otherwise once the batch has {_COLUMNS} more columns of padding",
            "reduce by batch.whole.mean and its like, not over [B, T] (CONTRIBUTING.md)",
        )
    empty = 1 - subject.tokens / mask.numel()
    return ok(
        f"none of the {subject.tokens} tokens at mask 1 is padding, {empty:.0%} of the batch is"
    )


def _wider(batch: TokenBatch) -> TokenBatch:
    """The batch with `_COLUMNS` more columns at mask 0."""
    fields: dict[str, Any] = {name: getattr(batch, name) for name in batch.__dataclass_fields__}
    for name, value in fields.items():
        if isinstance(value, torch.Tensor) and value.ndim == 2:
            fields[name] = pad(value, (0, _COLUMNS))
    return TokenBatch(**fields)


def _ends(subject: Subject) -> torch.Tensor:
    policy = subject.policy
    return torch.tensor(policy.eos, device=policy.device)


def eos(subject: Subject) -> Finding:
    if is_multi_turn(subject.task):
        return skipped("an environment ends these rollouts")
    sequences, mask = subject.sequences, subject.batch.mask
    there, finished = sequences.completed, sequences.finished
    B, T = mask.shape
    if not bool(finished.any()):
        return wrong(
            f"none of {B} rollouts ended: all ran into their limit of {T} tokens, so no eos is "
            f"ever sampled, and none trained",
            "raise sampling.max_new_tokens, give a --sampling.stop, or see that the tokenizer's "
            "eos is the token that the model ends its turns with",
        )
    last = (there.sum(-1) - 1).clamp(min=0)[:, None]
    ends = torch.isin(sequences.completions, _ends(subject)).gather(1, last)[:, 0]
    ends = ends | bool(stop_strings(subject.task, subject.config))
    trained = ends & mask.gather(1, last)[:, 0]
    missing, count = int((finished & ~trained).sum()), int(finished.sum())
    if missing:
        return wrong(
            f"the token that ends the completion is not at mask 1 in {missing} of {count} rollouts "
            "that ended: whether to stop is never learnt",
            "have the mask include the closing eos; where pad and eos are one token, go by length",
        )
    return ok(f"{count} of {B} rollouts ended, the closing token of each at mask 1")


def zero_advantage(subject: Subject) -> Finding:
    """Check for groups whose rewards are all equal."""
    graded = subject.graded
    graded = graded if graded.tempered is None else graded[~graded.tempered]
    groups = len(graded.need("group").unique())
    return idle_share(idle_groups(graded), groups, subject.figures)


def idle_share(
    idle: int, groups: int, figures: dict[str, float], share: str | None = None
) -> Finding:
    """Wrong if more than half of the groups have zero advantage, with 97.5% confidence.

    `share` is the text for the share, if the groups were not counted.
    """
    reward = figures.get("reward/mean")
    mean = "" if reward is None else f"; mean reward {reward:.2f}"
    text = f"{share or f'{idle} of {groups} groups'} have no signal{mean}"
    low = wilson_low(idle, groups)
    if low > IDLE:
        return wrong(
            f"{text}: {idle / groups:.0%} (above {low:.0%} with 97.5% confidence) of what is "
            "sampled teaches nothing",
            "prompts that are neither solved nor hopeless (entrostat subset --by pass_rate), more "
            "rollouts a prompt, or a reward with more than two values",
        )
    return ok(text)


def wilson_low(k: int, n: int) -> float:
    """Lower end of Wilson's 95% interval for k of n."""
    from scipy.stats import binomtest  # takes more than a second to import

    return float(binomtest(k, n).proportion_ci(method="wilson").low) if n else 0.0


def group(subject: Subject) -> Finding:
    _, sizes = subject.batch.need("group").unique(return_counts=True)
    least = int(sizes.min())
    estimator = subject.objective.advantage
    if least == 1 and estimator != "reinforce_pp":
        return wrong(
            f"{int((sizes == 1).sum())} of {len(sizes)} groups hold one rollout, and the advantage "
            f"{estimator!r} compares rollouts of one prompt",
            "sample at least 2 a prompt, or use --advantage reinforce_pp",
        )
    return ok(f"{len(sizes)} groups of {least} or more, advantage {estimator!r}")
