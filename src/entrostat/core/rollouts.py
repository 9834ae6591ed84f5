"""What every host does with a rollout batch and its updates; no trainer here.

    describe      how the rollouts look, before any update
    graded        outcome advantages, and which rollouts are idle: their group has no signal
    trainable     the rollouts that have to be trained on
    at_update     the old policy's batch, with the current policy's log-probs and entropies
    Tally         figures of an iteration's updates

Where there are several ranks each has its own rollouts, and figures are those of all of them.

Shapes: B rollouts of this rank, A of all, T completion tokens at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..dynamics import online
from .advantages import NEED_PAIRS, Groups
from .batch import TokenBatch
from .distributed import row_sums
from .objective import Objective

# what each host knows of a token and its rollout, beyond what every batch has
FIELDS = ("rewards", "group", "entropy", "old_entropy", "ref_logp")


def describe(batch: TokenBatch, lengths: Tensor | None = None) -> dict[str, float]:
    """How a rollout batch looks, before any update.

    Args:
        batch: old_logp, old_entropy, mask, rewards (NaN where unknown) and group.
        lengths: [B] tokens of each rollout, where the mask leaves some of them out.
    """
    assert batch.rewards is not None
    assert batch.group is not None
    assert batch.old_entropy is not None
    H = row_sums(batch.old_entropy.detach()) / batch.lengths.clamp(min=1)
    nll = -row_sums(batch.old_logp.detach()) / batch.lengths.clamp(min=1)
    (rewards, group, tokens, lengths, H, nll), _ = batch.whole.gather(
        batch.rewards.double(), batch.group, batch.lengths,
        batch.lengths if lengths is None else lengths, H, nll,
    )  # fmt: skip
    trained, stderr = tokens > 0, standard_error(H, tokens, group)
    known = ~rewards.isnan()
    rewards, group = rewards[known], group[known]
    groups = Groups(group, rewards.dtype)
    entropy, logp = batch.whole.mean(batch.old_entropy, batch.old_logp)
    variance = groups.mean((rewards - groups.mean(rewards)).square())
    best = rewards.new_full(groups.size.shape, -math.inf)
    best = best.scatter_reduce(0, groups.index, rewards, "amax")
    values = {
        "entropy/exact": entropy,
        "entropy/stderr": stderr,
        # OPEFO Eq. 5: short responses count as much as long ones
        "entropy/response_mean": H.sum() / trained.sum().clamp(min=1),
        "entropy/nll": -logp,
        # of the responses that have a token
        "entropy/perplexity": (nll.exp() * trained).sum() / trained.sum().clamp(min=1),
        "reward/mean": rewards.mean(),
        "reward/std_in_group": (variance.sqrt() / groups.own_size).sum() / len(groups.size),
        "reward/best_in_group": best.mean(),
        "rollout/length_mean": lengths.double().mean(),
        "rollout/length_max": lengths.max(),
        "rollout/tokens": lengths.sum(),
    }
    return {key: float(value) for key, value in values.items()}


def standard_error(H: Tensor, tokens: Tensor, group: Tensor) -> float:
    """Standard error between prompts of the mean entropy of a token, nats.

    With S_p the sum of the entropies and N_p the tokens of prompt p, the mean is the ratio of their
    sums, and its variance is P / (P - 1) sum_p (S_p - mean N_p)^2 / (sum_p N_p)^2 (Cochran,
    Sampling Techniques, 6.3). Of a single prompt its rollouts are compared; of one rollout: NaN.

    Args:
        H: [A] mean entropy of each rollout, nats.
        tokens: [A] its tokens.
        group: [A] its prompt.
    """
    units = Groups(group, torch.float64).index
    if int(units.max()) == 0:  # one prompt
        units = torch.arange(len(units), device=units.device)
    P = int(units.max()) + 1
    if P < 2:
        return math.nan
    N = tokens.double()
    mean = (H * N).sum() / N.sum().clamp(min=1)
    off = N.new_zeros(P).index_add_(0, units, (H - mean) * N)
    return float((P / (P - 1) * off.square().sum()).sqrt() / N.sum().clamp(min=1))


def graded(objective: Objective, batch: TokenBatch) -> TokenBatch:
    """The batch with outcome advantages [B] and `idle`: what `Objective.prepare` takes.

    Idle are the rollouts of groups whose advantages are all 0, those without a reward (NaN), which
    have no part in their group either, and those that a method leaves out (`Method.choose`). Under
    TRL's conventions the first two count as rollouts of advantage 0.

    Args:
        objective: says which advantages.
        batch: old_logp, mask, rewards, group.
    """
    assert batch.rewards is not None
    assert batch.group is not None
    known = ~batch.rewards.isnan()
    if objective.advantage in NEED_PAIRS:
        # rollouts of one prompt at one temperature are compared
        compared = batch.group if batch.tempered is None else 2 * batch.group + batch.tempered
        known = known & (batch.whole.group_sums(compared, known.long())[0] >= 2)
    if not batch.whole.count(known):
        none = torch.zeros_like(batch.rewards, dtype=torch.float32)
        return batch.replace(advantages=none, idle=~known & (objective.conventions != "trl"))
    own = known if batch.tempered is None else known & ~batch.tempered
    found = batch.replace(
        advantages=torch.zeros_like(batch.rewards, dtype=torch.float32), idle=torch.ones_like(known)
    )
    # rollouts of another temperature are compared with each other alone
    for some in (own, known & ~own):
        rows = some.nonzero()[:, 0]
        if batch.whole.count(some):
            found = _with_part(found, rows, objective.outcome_advantages(batch[rows]))
    if objective.conventions == "trl":
        found = found.replace(idle=torch.zeros_like(known))
    return objective.chosen(found)


def _with_part(batch: TokenBatch, rows: Tensor, part: TokenBatch) -> TokenBatch:
    """The batch in which some rows have these outcome advantages, and no signal where all are 0."""
    assert part.advantages is not None
    assert part.rewards is not None
    assert part.group is not None
    assert batch.advantages is not None
    assert batch.rewards is not None
    assert batch.idle is not None
    (signals,) = part.whole.group_sums(part.group, (part.advantages != 0).long())
    edited = batch.edited
    if part.edited is not None:
        edited = torch.zeros_like(batch.mask) if edited is None else edited.clone()
        edited[rows] = part.edited
    return batch.replace(
        advantages=batch.advantages.to(part.advantages.dtype).index_copy(0, rows, part.advantages),
        rewards=batch.rewards.to(part.rewards.dtype).index_copy(0, rows, part.rewards),
        idle=batch.idle.index_copy(0, rows, signals == 0), edited=edited,
    )  # fmt: skip


def trainable(objective: Objective, batch: TokenBatch) -> tuple[Tensor, TokenBatch]:
    """Rows [R] of a graded batch that have to be trained on, and the batch of these.

    Those that are not idle; all of them where a penalty acts on every sampled token.
    """
    assert batch.idle is not None
    if objective.penalises:
        return torch.arange(len(batch), device=batch.idle.device), batch
    rows = (~batch.idle).nonzero()[:, 0]
    return rows, batch[rows].replace(idle=None)


def idle_groups(batch: TokenBatch) -> int:
    """How many groups of a graded batch teach nothing: idle, or of advantages that are all 0."""
    assert batch.group is not None
    assert batch.idle is not None
    assert batch.advantages is not None
    A = batch.advantages
    signal = ~batch.idle & (A if A.ndim == 1 else A.abs().sum(-1)).ne(0)
    (group, signal), _ = batch.whole.gather(batch.group, signal)
    return len(group.unique()) - len(group[signal].unique())


def at_update(batch: TokenBatch, logp: Tensor, entropy: Tensor | None, fresh: bool) -> TokenBatch:
    """The batch under the policy that is being updated.

    Args:
        batch: under the policy that sampled.
        logp: [B, T] float with gradient.
        entropy: [B, T] float with gradient; None where it is not computed.
        fresh: the weights are still those that gave `old_logp`. What differs then is the rounding
            of another packing, which |lp - lp0| would turn into a gradient: every ratio is 1.
    """
    batch = batch.replace(logp=logp, entropy=entropy)
    return batch.replace(old_logp=logp.detach()) if fresh else batch


class Tally:
    """Figures of an iteration: what updates count is added up and divided last.

    Sums (`online.of_update`) are over all tokens of the iteration's updates; of any other figure
    the mean over the times that it was added is taken.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._others: dict[str, list[float]] = {}

    def add(self, values: Mapping[str, float]) -> None:
        """Figures of one update, or of anything else in the iteration."""
        for key, value in values.items():
            if key.startswith(online.PART):
                self._sums[key] = self._sums.get(key, 0.0) + value
            else:
                self._others.setdefault(key, []).append(value)

    def figures(self) -> dict[str, float]:
        """What has been added, divided."""
        means = {key: sum(values) / len(values) for key, values in self._others.items()}
        return means | online.figures(self._sums)
