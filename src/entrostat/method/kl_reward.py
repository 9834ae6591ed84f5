"""The KL to a reference, subtracted from the reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from ..core.batch import TokenBatch, at_least_float32
from ..core.deterministic import row_sums
from ..core.loss import MAX_LOG_RATIO
from .base import Method, within

# nats. Rounding differs between the reference's and the policy's pass. Without this, a group of
# equal rewards would be normalized by the deviation of that noise while both are equal
ROUNDING = 1e-5


@dataclass(frozen=True)
class KlReward(Method):
    """KL in the reward: a rollout's KL to the reference is subtracted from its reward.

    R - coef * (sum over its tokens of k), before the advantage estimator; d = lp_ref - lp0, k1 =
    -d, k2 = d^2/2, k3 = exp(d) - d - 1 (Ouyang et al., arXiv 2203.02155; RLOO, arXiv 2402.14740;
    veRL's `algorithm.use_kl_in_reward`). In a group of equal rewards only the KL is then a signal.
    Deviation: veRL spreads it over tokens, with the same sum in a group's outcome advantage.

    Parameters:
        coef: coefficient.
        form: "k1", whose mean is the KL, "k2" or "k3".
    """

    coef: float = within(1e-3, 0)
    form: Literal["k1", "k2", "k3"] = "k1"

    paper: ClassVar[str] = "arXiv 2203.02155"
    needs: ClassVar[tuple[str, ...]] = ("ref_logp",)
    reads_current: ClassVar[bool] = False

    def shape(self, batch: TokenBatch, state: Any) -> TokenBatch:
        d = at_least_float32(batch.need("ref_logp")) - at_least_float32(batch.old_logp)
        d = torch.where(d.abs() < ROUNDING, 0, d)
        k = -d if self.form == "k1" else d.square() / 2
        if self.form == "k3":
            k = d.clamp(max=MAX_LOG_RATIO).expm1() - d
        rewards = batch.need("rewards")
        rewards = at_least_float32(rewards if rewards.is_floating_point() else rewards.float())
        drift = row_sums(torch.where(batch.mask, k, 0)).to(rewards.dtype)
        return batch.replace(rewards=rewards - self.coef * drift)
