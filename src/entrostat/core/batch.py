"""`TokenBatch`, a trainer's data on its sampled tokens, and `Terms`, the methods' decisions.

Shapes: B sequences, T completion tokens at most; N = number of tokens at mask 1.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from .distributed import Communicator, GlobalBatch

_PER_TOKEN = (
    "logp", "old_logp", "entropy", "old_entropy", "ref_logp", "sum_p2", "sum_p2_logp",
    "process_rewards", "influence", "correction", "edited",
)  # fmt: skip
Ratio = Literal["token", "sequence", "none"]
# the fields that every batch has
ALWAYS = ("logp", "old_logp", "mask", "advantages")


@dataclass
class TokenBatch:
    """The statistics of one batch of rollouts; the input of an objective.

    Entries at mask 0 (NaN included) are replaced by 0 on construction, so nothing downstream reads
    them and no gradient flows into them.

    Args:
        logp: [B, T] float. log pi(y_t | s_t) of the current policy; carries the gradient.
        old_logp: [B, T] float. The same under the policy at the start of the iteration.
        mask: [B, T] bool, int or float. 1 where a token was sampled and is trained on.
        advantages: [B] or [B, T] float, or None before `Objective.prepare`.
        rewards: [B] float. Outcome reward of each rollout.
        group: [B] int. The prompt that a rollout belongs to.
        entropy: [B, T] float, nats. Exact entropy of the current next-token distribution.
        old_entropy: [B, T] float, nats. The same at the start of the iteration.
        ref_logp: [B, T] float. log-prob under a frozen reference policy.
        sum_p2: [B, T] float. Sum over the vocabulary of pi^2.
        sum_p2_logp: [B, T] float. Sum over the vocabulary of pi^2 log pi.
        process_rewards: [B, T] float. Reward of each token, from a separate model (PRIME).
        influence: [B, T] float, nats. Each token's contribution to the change of the mean entropy
            by the coming update; 0 where it was not measured.
        correction: [B, T] float. Factor on the policy term, for a sampler whose log-probs are not
            the old policy's (importance sampling); None: 1.
        edited: [B, T] bool. Tokens whose advantage a method changed from the estimator's value;
            set by `Objective.prepare`, read by metrics only. None: no token.
        idle: [B] bool. Rollouts without a part in the policy term: in zero-advantage groups,
            without reward, or left out by a method. Penalties still act on them. Methods never see
            their tokens. None: none.
        tempered: [B] bool. Rollouts that a method requested at another temperature than the
            iteration's own (`Method.resamples`). None: none.
        outcome: [B] float. Advantages of whole rollouts, before methods edit them per token; set
            by `Objective.rollouts`.
        reward_parts: [B, F] float. The reward of each of F reward functions, NaN where a function
            gave none; `rewards` is their weighted sum. Only the estimator `gdpo` reads it.
        reward_weights: F numbers, the weights of that sum; None for 1 each.
        rollout: [B] int64. Globally unique rollout id. Seeds random selection and fixes the
            summation order across ranks. None numbers the rows that have a token, in one process.
        micro_batch: [B] int, from 0, the same on all ranks. The micro-batch of a rollout, where
            the trainer's own loss selects tokens per micro-batch (TRL). None: unknown.
        ranks: the processes that hold the minibatch. A plan on this batch then covers the rows of
            all ranks, and every rank makes the same calls; a slice is this rank's part of a slice
            of the global batch.

    Raises:
        ValueError: a shape does not fit; the message names the argument.
    """

    logp: Tensor
    old_logp: Tensor
    mask: Tensor
    advantages: Tensor | None = None
    rewards: Tensor | None = None
    group: Tensor | None = None
    entropy: Tensor | None = None
    old_entropy: Tensor | None = None
    ref_logp: Tensor | None = None
    sum_p2: Tensor | None = None
    sum_p2_logp: Tensor | None = None
    process_rewards: Tensor | None = None
    influence: Tensor | None = None
    correction: Tensor | None = None
    edited: Tensor | None = None
    idle: Tensor | None = None
    tempered: Tensor | None = None
    outcome: Tensor | None = None
    reward_parts: Tensor | None = None
    reward_weights: tuple[float, ...] | None = None
    rollout: Tensor | None = None
    micro_batch: Tensor | None = None
    ranks: Communicator = Communicator()  # noqa: RUF009 (it has no state)

    def __post_init__(self) -> None:
        if self.mask.ndim != 2:
            raise ValueError(f"TokenBatch: mask must be [B, T], got shape {list(self.mask.shape)}")
        self.mask = self.mask.to(torch.bool)
        for part in fields(self):
            self._admit(part.name)

    def _admit(self, name: str) -> None:
        value = getattr(self, name)
        if value is None or name in ("mask", "ranks", "reward_weights"):
            return
        B, T = self.mask.shape
        if name == "reward_parts":
            if value.ndim != 2 or len(value) != B:
                raise ValueError(
                    f"TokenBatch: reward_parts must be [{B}, F], got {list(value.shape)}"
                )
            return
        shapes: list[tuple[int, ...]] = [(B, T) if name in _PER_TOKEN else (B,)]
        if name == "advantages":
            shapes.append((B, T))
        if value.shape not in shapes:
            wanted = " or ".join(str(list(shape)) for shape in shapes)
            raise ValueError(f"TokenBatch: {name} must be {wanted}, got {list(value.shape)}")
        if name == "edited":
            self.edited = value.to(torch.bool) & self.mask
        elif name in ("idle", "tempered"):
            setattr(self, name, value.to(torch.bool))
        elif value.ndim == 2:
            setattr(self, name, torch.where(self.mask, value, 0))

    def __getitem__(self, rows: slice | Tensor) -> TokenBatch:
        """The batch of the selected rows: a slice, an index tensor [n] or a boolean tensor [B]."""
        return TokenBatch(**_take(self, rows))

    def __len__(self) -> int:
        """Number of sequences B."""
        return self.mask.shape[0]

    @property
    def lengths(self) -> Tensor:
        """[B] int64: trained tokens of each sequence."""
        return self.mask.sum(-1)

    @property
    def whole(self) -> GlobalBatch:
        """Collective operations over the global minibatch; these rows may be one rank's part."""
        found: GlobalBatch | None = self.__dict__.get("whole")
        if found is None or not found.asks(self.mask, self.rollout, self.ranks):
            self.__dict__["whole"] = found = GlobalBatch(self.mask, self.rollout, self.ranks)
        return found

    @property
    def policy_mask(self) -> Tensor:
        """[B, T] bool: the tokens of the policy term: mask 1 and not in an idle rollout."""
        return self.mask if self.idle is None else self.mask & ~self.idle.unsqueeze(-1)

    def without_idle(self) -> TokenBatch:
        """The batch, of the same shape, with all tokens of idle rollouts masked."""
        if self.idle is None:
            return self
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        return TokenBatch(**values | {"mask": self.policy_mask, "idle": None})

    def need(self, name: str, who: str = "Objective") -> Tensor:
        """Return a required field.

        Raises:
            ValueError: the field is None; the message begins with `who`.
        """
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise ValueError(
                f"{who} needs `{name}`, which this batch does not have; "
                f"pass TokenBatch({name}=...) or use a method without it"
            )
        return value

    def replace(self, **changes: Any) -> TokenBatch:
        """A copy with some fields changed; other fields keep their gradient, even under no_grad."""
        new = copy.copy(self)
        for name, value in changes.items():
            if name not in self.__dataclass_fields__ or name == "mask":
                raise TypeError(f"TokenBatch.replace: cannot change {name!r}")
            setattr(new, name, value)
            new._admit(name)
        return new


@dataclass
class Terms:
    """The methods' decisions: numbers per token, none with a gradient.

    Fields marked [B, T] may be expanded views. Slice with `terms[rows]` for a micro-batch: `scale`
    and `count` were computed over the whole minibatch, so losses and metrics of slices add up.

    Args:
        advantage: [B, T] float.
        scale: [B, T] float. Share of a token in the aggregated loss: loss = sum(scale * per_token).
            Relative to the policy term's tokens; in idle rollouts relative to all sampled tokens.
        count: [] float. N, the policy term's tokens in the planned minibatch (at least 1).
        weight: [B, T] float. Factor on the surrogate's loss.
        ratio_min: [B, T] float. Lower clip bound of the ratio (1 - low); -inf for none.
        ratio_max: [B, T] float. Upper clip bound of the ratio (1 + high); inf for none.
        frozen: [B, T] bool. Tokens whose policy loss counts in the value but gives no gradient;
            the penalties below keep their gradient.
        abs_kl: [B, T] float. Coefficient on the distance to the old policy, |lp - lp0|.
        entropy: [B, T] float. Coefficient on the entropy bonus: loss - entropy * H.
        ref_kl: [B, T] float. Coefficient on the KL to the reference policy.
        ratio: "token" (PPO), "sequence" (GSPO) or "none" (REINFORCE: loss = -A lp).
        dual: PPO's dual clip c, or None.
        abs_kl_form: "abs" for |lp - lp0|, "k2" for (lp - lp0)^2 / 2, or "k3" for
            exp(lp - lp0) - (lp - lp0) - 1, an unbiased estimate of KL(pi_old || pi) over tokens
            sampled from the old policy.
        ref_kl_form: estimator of the reference KL: "k1", "k2" or "k3".
        ref_kl_ratio: whether the reference KL is multiplied by the ratio, with its gradient.
        soft: [B, T] float. Temperature tau of a gate that replaces the clip: the ratio r becomes
            4 / tau * sigmoid(tau (r - 1)). None: the clip.
        figures: metrics of the minibatch that methods computed while planning, [] tensors.
        sampled: [] float. Tokens in the minibatch, idle rollouts included; None: `count`.
        overall: [B, T] float. Share of a token in the aggregation over `sampled`; None: `scale`.
        mean: [B, T] float. Share of a token in the mean over tokens of an entropy bonus; None:
            1 / `sampled`.
    """

    advantage: Tensor
    scale: Tensor
    count: Tensor
    weight: Tensor
    ratio_min: Tensor
    ratio_max: Tensor
    frozen: Tensor | None = None
    abs_kl: Tensor | None = None
    entropy: Tensor | None = None
    ref_kl: Tensor | None = None
    ratio: Ratio = "token"
    dual: float | None = None
    abs_kl_form: Literal["abs", "k2", "k3"] = "abs"
    ref_kl_form: Literal["k1", "k2", "k3"] = "k3"
    ref_kl_ratio: bool = False
    soft: Tensor | None = None
    figures: dict[str, Tensor] = field(default_factory=dict)
    sampled: Tensor | None = None
    overall: Tensor | None = None
    mean: Tensor | None = None

    def __getitem__(self, rows: slice | Tensor) -> Terms:
        """The terms of the selected rows; `count` stays that of the whole minibatch."""
        return Terms(**_take(self, rows))

    def replace(self, **changes: Any) -> Terms:
        """A copy with some fields changed, for a method's `plan` to return."""
        return replace(self, **changes)

    def freeze(self, tokens: Tensor) -> Terms:
        """A copy in which these tokens [B, T] bool also give no policy gradient."""
        return replace(self, frozen=tokens if self.frozen is None else self.frozen | tokens)

    def add_entropy(self, coefficient: float) -> Terms:
        """A copy whose loss is reduced by `coefficient` times the mean entropy of sampled tokens.

        The mean is over tokens whatever the aggregation: the bonus is defined that way.
        """
        # ratio of the aggregation's factor to the mean's factor
        inside = self.scale > 0
        if self.mean is None:
            share = (self.count if self.sampled is None else self.sampled) * self.scale
            each = torch.where(inside, coefficient / torch.where(share > 0, share, 1), 0)
        else:
            each = torch.where(inside, coefficient * self.mean / self.scale, 0)
        return replace(self, entropy=each if self.entropy is None else self.entropy + each)

    def add_ref_kl(
        self, coefficient: float, form: Literal["k1", "k2", "k3"], ratio: bool = False
    ) -> Terms:
        """A copy with `coefficient` times the KL to the reference, over all sampled tokens.

        Aggregated like the policy term; `ratio` multiplies it by the importance ratio.
        """
        inside = self.scale > 0
        each = coefficient * inside.to(self.scale.dtype)
        if self.overall is not None:
            each = each * self.overall / torch.where(inside, self.scale, 1)
        return replace(self, ref_kl=each, ref_kl_form=form, ref_kl_ratio=ratio)


def _take(data: TokenBatch | Terms, rows: slice | Tensor) -> dict[str, Any]:
    out = {}
    for part in fields(data):
        value = getattr(data, part.name)
        out[part.name] = value[rows] if isinstance(value, Tensor) and value.ndim else value
    return out


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of `values` [B, T] over mask [B, T]; 0 where no token is left. Returns a 0-d tensor."""
    return torch.where(mask, values, 0).sum() / mask.sum().clamp(min=1)


def at_least_float32(x: Tensor) -> Tensor:
    """Cast bf16 and fp16 to float32; float32 and float64 stay."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
