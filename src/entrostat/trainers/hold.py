"""Connect a trainer to the thermostat's multiplier.

    hold = Hold.of(objective)                    None without a thermostat
    if hold.due(optimizer, update, updates):     in a pass before the update's plan (veRL):
        hold.look(optimizer, response(...))
    hold.decide(optimizer, updates)

    entropy = Gradient(parameters)               or, if due, in the update's own passes (lab, TRL)
    entropy.add(...)                             per micro-batch, before its backward pass
    decide(hold, optimizer, entropy, ...)        after the last backward pass, before clipping

    hold.stepped(norm, ..., moved)               after the update's backward pass

A trainer supplies the gradient of the mean entropy when it is due (`response`). After each update
it supplies the entropy change that the forward pass measured (`Moved`). The rest is in
`control.multiplier`. In the plan the multiplier is an entropy bonus.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..control.adamw import PIECE, Coming, dot, solve
from ..control.multiplier import Momentum, Multiplier, MultiplierState, Response
from ..core.batch import TokenBatch
from ..core.objective import Objective
from ..core.rollouts import standard_error
from ..method.thermostat import HeldEntropy

# a separate pass takes the gradient on a fourth of the minibatch, at least 8 rollouts
SAMPLE, LEAST = 4, 8
_CHANGED = (
    "value", "mean", "covariance", "coming", "foretold", "inside", "drift", "gain", "slope",
    "clipping", "norm", "share", "bound",
)  # fmt: skip
_NOT_ADAM = (
    "thermostat: the optimizer must be torch's Adam or AdamW, from whose moments the multiplier is "
    "solved for, got {}; use AdamW, or the method {{'name': 'thermostat', 'target': ..., "
    "'knob': 'entropy_coef'}}"
)
TOLERANCE = 1e-3  # exact form: tolerance relative to the target, per iteration


@dataclass(frozen=True)
class Moved:
    """Change of the mean entropy of some tokens since they were sampled, nats per token."""

    change: float
    stderr: float

    @classmethod
    def of(cls, entropy: Tensor, batch: TokenBatch) -> Moved:
        """Compare `entropy` [n, T] now with the old policy's in `batch` [n, T], over all ranks."""
        moved = torch.where(batch.mask, entropy - batch.need("old_entropy"), 0)
        (change, tokens, group), _ = batch.whole.gather(
            moved.double().sum(1), batch.lengths, batch.need("group")
        )
        mean = float(change.sum() / tokens.sum().clamp(min=1))
        return cls(mean, standard_error(change / tokens.clamp(min=1), tokens, group))


class Hold:
    """The multiplier of an objective's thermostat, the method at index `place`."""

    def __init__(self, objective: Objective, place: int) -> None:
        self._objective, self._place = objective, place

    @classmethod
    def of(cls, objective: Objective | None) -> Hold | None:
        """Return the objective's `Hold`; None without a thermostat that uses the multiplier."""
        if objective is not None:
            for place, method in enumerate(objective.methods):
                if isinstance(method, HeldEntropy):
                    return cls(objective, place)
        return None

    @property
    def exact(self) -> bool:
        """Whether to take the entropy gradient of the whole minibatch, apart from the loss."""
        return self._method.solve == "exact"

    @property
    def _method(self) -> HeldEntropy:
        method = self._objective.methods[self._place]
        assert isinstance(method, HeldEntropy)
        return method

    @property
    def law(self) -> Multiplier:
        return self._method.law()

    @property
    def state(self) -> MultiplierState:
        """The multiplier's state, stored in the objective."""
        return self._objective.states[self._place]

    @state.setter
    def state(self, state: MultiplierState) -> None:
        self._objective.states[self._place] = state

    def numbers(self) -> dict[str, float]:
        """Return the state that updates change, as numbers to send to another process."""
        found: dict[str, float] = {}
        for name in _CHANGED:
            value = getattr(self.state, name)
            parts = enumerate(value) if isinstance(value, tuple) else [("", value)]
            found |= {f"{name}{i}": float(x) for i, x in parts}
        return found

    def take(self, numbers: Mapping[str, float]) -> None:
        taken: dict[str, Any] = {}
        for name in _CHANGED:
            value = getattr(self.state, name)
            if isinstance(value, tuple):
                taken[name] = tuple(numbers[f"{name}{i}"] for i in range(len(value)))
            else:
                taken[name] = type(value)(numbers[name])
        self.state = replace(self.state, **taken)

    def due(self, optimizer: torch.optim.Optimizer, update: int, updates: int) -> bool:
        """Whether to take the gradient of the mean entropy before `update`, counted from 0.

        It is taken halfway through an iteration and used until halfway through the next; of
        iterations with one or two updates, through every second. While AdamW's momentum settles, it
        is taken at every update except the very first.
        """
        check_adam(optimizer)
        made = steps_made(optimizer)
        if not self._knows(optimizer):
            return False
        settling = made * (1 - optimizer.param_groups[0]["betas"][0]) < 1
        turn = update == updates // 2 and (updates > 2 or self.state.seen % 2 == 1)
        return settling or turn or not self.state.gain

    def look(self, optimizer: torch.optim.Optimizer, found: Response) -> None:
        self.state = self.law.responds(self.state, found, momentum(optimizer))

    def decide(self, optimizer: torch.optim.Optimizer, updates: int) -> None:
        """Choose the multiplier of the next update; an iteration has `updates` updates."""
        if self._knows(optimizer):
            self.state = self.law.decide(self.state, momentum(optimizer), updates)
        else:
            self._wait()

    def solve(self, coming: Coming, updates: int) -> float:
        """Solve for the multiplier c of the next update exactly: the root of <h, s(c)> = d."""
        if not self._knows(coming.optimizer):
            self._wait()
            return 0.0
        law, state, held = self.law, self.state, momentum(coming.optimizer)
        # this part of the momentum is treated as if the multiplier had been constant all along
        lasting = held.lasting_part(updates)
        past = (lasting - held.young) / max(1 - held.young, 1e-30)

        def change(c: float) -> float:
            own = coming.clipping(c) * c * held.corrected
            return coming.change(c, past * (state.inside - own))

        assert state.target is not None
        norm = coming.products[2] ** 0.5
        tolerance, ends = TOLERANCE * state.target / updates, law.ends(state, norm)

        def multiplier(wanted: float) -> float:
            return solve(change, wanted, *ends, state.value, tolerance)

        c = law.slow(multiplier, state, updates, held.pace)
        self.state = law.decided(state, c, coming.change(c), norm)
        return c

    def _knows(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an entropy was observed and an update made, whose size is needed."""
        return bool(self.state.mean) and steps_made(optimizer) > 0

    def _wait(self) -> None:
        self.state = self.law.decided(self.state, 0.0, 0.0, 0.0)

    def stepped(
        self, norm: float, clip: float, optimizer: torch.optim.Optimizer, updates: int,
        moved: Moved | None,
    ) -> None:  # fmt: skip
        """Record an update after its backward pass.

        `norm` is the gradient's norm before clipping, not finite if the step is skipped; `clip` is
        the maximum norm. `moved` is the change measured on rollouts that no update of this
        iteration has trained on; None in the first update and in later epochs.
        """
        if not self.state.mean:  # no entropy was observed: all rollouts are masked
            return
        if moved is not None and moved.stderr > 0:  # the stderr of one rollout is NaN
            self.state = self.state.measured(1, moved.change, moved.stderr**2)
        lasting = 1 - float(optimizer.param_groups[0]["betas"][0])
        self.state = self.law.stepped(self.state, norm, clip, lasting, updates)


class Gradient:
    """Gradient of a minibatch's mean entropy, accumulated over micro-batches.

    `parameters` are in the optimizer's order; `scale` multiplies a loss before its backward pass
    (fp16).
    """

    def __init__(self, parameters: Sequence[Tensor], scale: float = 1.0) -> None:
        self.parameters, self._scale = parameters, scale
        self.values: list[Tensor] = []

    def add(self, entropy: Tensor, mask: Tensor, tokens: Tensor | float) -> None:
        """Add a micro-batch's entropies [n, T], nats; its graph is kept for the loss.

        `mask` [n, T] marks the trained tokens, `tokens` is their number in all micro-batches.
        """
        mean = torch.where(mask, entropy, 0).sum() / tokens
        found = torch.autograd.grad(
            self._scale * mean, self.parameters, retain_graph=True, allow_unused=True
        )
        pairs = zip(self.parameters, found, strict=True)
        own = [torch.zeros_like(p) if h is None else h for p, h in pairs]
        if self._scale != 1:
            torch._foreach_div_(own, self._scale)
        if self.values:
            torch._foreach_add_(self.values, own)
        else:
            self.values = own

    def over_ranks(self) -> None:
        """Sum the gradients over processes, each of which holds all parameters."""
        for h in self.values:
            dist.all_reduce(h)


def decide(
    hold: Hold, optimizer: torch.optim.Optimizer, entropy: Gradient, updates: int, clip: float
) -> None:
    """Choose the multiplier of the next update and adjust the gradient to it.

    The loss contains the previous multiplier, or none in the exact form. The parameters hold the
    unscaled gradient of the loss. `clip` is the maximum norm; infinite without clipping.
    """
    parameters = entropy.parameters
    loss = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    if hold.exact:
        coming = Coming(optimizer, loss, entropy.values, clip)
        if not all(map(math.isfinite, coming.products)):  # the update is skipped, or the run ends
            return
        more = hold.solve(coming, updates)
    else:
        found = response(optimizer, parameters, entropy.values)
        if not all(map(math.isfinite, (found.drift, found.gain))):
            return
        before = hold.state.value
        hold.look(optimizer, found)
        hold.decide(optimizer, updates)
        more = hold.state.value - before
    for p, g, h in zip(parameters, loss, entropy.values, strict=True):
        p.grad = g.sub_(h, alpha=more)


def sample(
    entropy: Tensor, generator: torch.Generator, world: int = 1, multiple: int = 1
) -> tuple[Tensor, Tensor]:
    """Draw the rollouts of a minibatch to differentiate, in proportion to their entropy.

    A few rollouts may hold most of the entropy. A rollout with n times the mean entropy is drawn n
    times as often and weighted by 1/n, so the weighted sum is an unbiased estimate of the
    minibatch's (Horvitz and Thompson, 1952). A fifth of the probability is uniform.

    `entropy` [n] is each rollout's sum over tokens; each of `world` ranks has its own rows. The
    sample size is rounded up to a `multiple`, at most n. Returns rows [k], in ascending order, and
    their weights [k], both on the CPU.
    """
    n, mass = len(entropy), entropy.double().cpu()
    wanted = max(math.ceil(LEAST / world), math.ceil(n / SAMPLE))
    k = min(n, multiple * math.ceil(wanted / multiple))
    mass = mass + mass.mean() / 4 + 1e-9
    chance, certain = k * mass / mass.sum(), torch.zeros(n, dtype=torch.bool)
    while (more := (chance >= 1) & ~certain).any():
        certain |= more
        left = (k - certain.sum()) * mass / mass[~certain].sum()
        chance = torch.where(certain, 1.0, left)
    order = torch.randperm(n, generator=generator)
    end = chance[order].cumsum(0) + torch.rand((), generator=generator, dtype=torch.float64)
    drawn = end.floor() > (end - chance[order]).floor()
    rows = order[drawn].sort().values
    return rows, 1 / chance[rows]


def response(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[Tensor],
    entropy: Sequence[Tensor | None],
    total: Any = None,
) -> Response:
    """Compute A and B of `control.multiplier`'s equation (1).

    Args:
        optimizer: Adam or AdamW, after at least one update.
        parameters: the trained parameters, or this process's shards of them.
        entropy: gradient of the mean entropy for each; None for 0.
        total: sums [3] over the processes that the parameters are sharded over.
    """
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    sums, b1, t = torch.zeros(3, dtype=torch.float64), 0.0, steps_made(optimizer)
    for p, whole in zip(parameters, entropy, strict=True):
        state = optimizer.state.get(p, {})
        if not state or whole is None:
            continue
        group = groups[id(p)]
        b1, b2 = map(float, group["betas"])
        mean = _whole(state["exp_avg_sq"].sum()) / state["exp_avg_sq"].numel()
        parts = [_local(x).split(PIECE) for x in (whole, state["exp_avg"], state["exp_avg_sq"])]
        terms = torch.zeros(3, dtype=torch.float64, device=mean.device)
        for h, m, v in zip(*parts, strict=True):
            # v after the next step: the square of the coming gradient is expected to equal the mean
            v = torch.lerp(v, mean, (1 - b2) / (1 - b2 ** (t + 1))).div_(1 - b2**t)
            Ph = torch.div(h, v.sqrt_().add_(group["eps"])).mul_(float(group["lr"]))
            terms += torch.stack([dot(Ph, m), dot(Ph, h), dot(h, h)])
        sums += terms.cpu()
    A, B, hh = (sums if total is None else total(sums)).tolist()
    return Response(-A / (1 - b1**t), B, hh**0.5)


def momentum(optimizer: torch.optim.Optimizer) -> Momentum:
    """How far the momentum has settled, after at least one update."""
    b1, t = float(optimizer.param_groups[0]["betas"][0]), steps_made(optimizer)
    return Momentum((1 - b1) / (1 - b1 ** (t + 1)), 1 - b1, 1 - b1**t, _pace(optimizer))


def steps_made(optimizer: torch.optim.Optimizer) -> float:
    made = (float(state["step"]) for state in optimizer.state.values() if "step" in state)
    return max(made, default=0.0)


def check_adam(optimizer: torch.optim.Optimizer) -> None:
    """Raise on another optimizer, such as bitsandbytes' of 8 bits."""
    own = getattr(optimizer, "optimizer", optimizer)  # without accelerate's wrapper
    if not isinstance(own, torch.optim.Adam | torch.optim.AdamW):
        raise ValueError(_NOT_ADAM.format(type(own).__name__))


def _pace(optimizer: torch.optim.Optimizer) -> float:
    """Learning rate relative to the peak of its schedule, at most 1."""
    group = optimizer.param_groups[0]
    whole = group.get("initial_lr") or group["lr"]
    return min(1.0, float(group["lr"]) / float(whole)) if whole else 1.0


def _whole(x: Any) -> Tensor:
    """Sum over all shards of a sharded tensor (FSDP2)."""
    return (x.full_tensor() if hasattr(x, "full_tensor") else x).float()


def _local(x: Any) -> Tensor:
    """This process's shard of a sharded tensor (FSDP2), flattened."""
    return (x.to_local() if hasattr(x, "to_local") else x).flatten().float()
