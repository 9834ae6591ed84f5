"""From rewards to the advantages of the updates, once per rollout batch.

    outcome_advantages   rewards, shaped by the methods -> advantages [B]
    compute_advantages   outcome advantages, with zero-advantage groups marked
    choose               the methods leave rollouts out
    prepare              advantages [B, T], edited by the methods

Shapes: B rollouts, R of them trained on, T completion tokens at most.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..method import Method
from .advantages import EPS, NEED_PAIRS
from .advantages import advantages as estimate_advantages
from .batch import TokenBatch, at_least_float32
from .chain import Chain

# rows [R] and their batch -> that batch with the outputs of other models
Fill = Callable[[Tensor, TokenBatch], TokenBatch]
TRL_EPS = 1e-4  # added by TRL to a standard deviation of rewards
_FILLED = ("ref_logp", "process_rewards", "influence")


def outcome_advantages(chain: Chain, batch: TokenBatch) -> TokenBatch:
    """The batch with advantages [B] from its rewards and groups, before methods edit advantages.

    Methods' edits of the rewards are in the result. Between this and `prepare` a trainer marks
    zero-advantage groups as `idle`; if `chain.penalises` is False, it may drop them.
    """
    if batch.rewards is None or batch.group is None:
        raise ValueError(
            f"Objective.prepare: '{chain.advantage}' needs rewards and group in the batch; "
            "pass both, or advantages"
        )
    rewards = batch.rewards
    for name, method, state in chain.chain():
        if type(method).shape is not Method.shape:
            chain.check_fields(name, method, batch)
            batch = chain.returned(method.shape(batch, state), batch, batch, f"{name}.shape")
    A = _estimate(chain, batch)
    if batch.rewards is rewards:
        return batch.replace(advantages=A, edited=None)
    unshaped = _estimate(chain, batch.replace(rewards=rewards))
    before = per_token(batch.replace(advantages=unshaped))
    return _note_edits(batch.replace(advantages=A, edited=None), before)


def _estimate(chain: Chain, batch: TokenBatch) -> Tensor:
    """[B]: outcome advantages, from a few gathered numbers per rollout of the global batch."""
    group, trl = batch.need("group"), chain.conventions == "trl"
    eps = TRL_EPS if trl else EPS
    if chain.advantage == "gdpo" and batch.reward_parts is not None:
        columns = batch.reward_parts.detach().unbind(-1)
        (group, *parts), mine = batch.whole.gather(group, *columns)
        found = estimate_advantages(
            "gdpo", torch.stack(parts, -1), group, eps=eps, weights=batch.reward_weights, lone=trl
        )
        return found[mine]
    numbers, mine = batch.whole.gather(batch.need("rewards").detach(), group, batch.lengths)
    return estimate_advantages(chain.advantage, *numbers, eps=eps, lone=trl)[mine]


@torch.no_grad()
def compute_advantages(chain: Chain, batch: TokenBatch) -> TokenBatch:
    """The batch with outcome advantages [B] and `idle`: the input of `prepare`.

    Idle rollouts are those of zero-advantage groups, those without a reward (NaN), which have no
    part in their group either, and those that a method leaves out (`Method.choose`). Under TRL's
    conventions the first two kinds are not idle but have advantage 0.
    """
    rewards, group = batch.need("rewards"), batch.need("group")
    known = ~rewards.isnan()
    if chain.advantage in NEED_PAIRS and chain.conventions != "trl":
        # a group is the rollouts of one prompt at one temperature
        compared = group if batch.tempered is None else 2 * group + batch.tempered
        known = known & (batch.whole.group_sums(compared, known.long())[0] >= 2)
    none = torch.zeros_like(rewards, dtype=torch.float32)
    if not batch.whole.count(known):
        return batch.replace(advantages=none, idle=~known & (chain.conventions != "trl"))
    own = known if batch.tempered is None else known & ~batch.tempered
    found = batch.replace(advantages=none, idle=torch.ones_like(known))
    # resampled rollouts (another temperature) are compared only with each other
    for some in (own, known & ~own):
        rows = some.nonzero()[:, 0]
        if batch.whole.count(some):
            found = _with_part(found, rows, outcome_advantages(chain, batch[rows]))
    if chain.conventions == "trl":
        found = found.replace(idle=torch.zeros_like(known))
    return choose(chain, found)


def _with_part(batch: TokenBatch, rows: Tensor, part: TokenBatch) -> TokenBatch:
    """The batch with `part`'s outcome advantages at `rows`; zero-advantage groups are idle."""
    A, rewards = part.need("advantages"), part.need("rewards")
    (signals,) = part.whole.group_sums(part.need("group"), (A != 0).long())
    edited = batch.edited
    if part.edited is not None:
        edited = torch.zeros_like(batch.mask) if edited is None else edited.clone()
        edited[rows] = part.edited
    return batch.replace(
        advantages=batch.need("advantages").to(A.dtype).index_copy(0, rows, A),
        rewards=batch.need("rewards").to(rewards.dtype).index_copy(0, rows, rewards),
        idle=batch.need("idle").index_copy(0, rows, signals == 0), edited=edited,
    )  # fmt: skip


@torch.no_grad()
def choose(chain: Chain, batch: TokenBatch) -> TokenBatch:
    """The batch (outcome advantages [B], `idle`) after each method's `choose`."""
    for name, method, state in chain.chain():
        if type(method).choose is not Method.choose:
            chain.check_fields(name, method, batch)
            before = per_token(batch)
            batch = chain.returned(method.choose(batch, state), batch, batch, f"{name}.choose")
            batch = _note_edits(batch, before)
    return batch


@torch.no_grad()
def prepare(chain: Chain, batch: TokenBatch, fill: Fill | None = None) -> TokenBatch:
    """Once per rollout batch: advantages [B, T], float32 or better, edited by the methods.

    Advantages already in the batch ([B] or [B, T]) are used as given. Those of idle rollouts become
    0, and methods do not see idle rollouts. `fill` adds the outputs of other models to the rows
    that are trained on.
    """
    if batch.advantages is None:
        batch = outcome_advantages(chain, batch)
    if batch.idle is None:
        if fill is not None:
            batch = _filled(fill, torch.arange(len(batch), device=batch.mask.device), batch)
        return _prepared(chain, batch)
    rows, A, edited = (~batch.idle).nonzero()[:, 0], torch.zeros_like(per_token(batch)), None
    if fill is not None and chain.penalises:  # on every sampled token
        batch = _filled(fill, torch.arange(len(batch), device=rows.device), batch)
    live = batch[rows].replace(idle=None)
    if live.whole.sequences:  # on some rank
        if fill is not None and not chain.penalises:
            live = _filled(fill, rows, live)
            batch = batch.replace(**_spread(live, rows, batch))
        part = _prepared(chain, live)
        A[rows] = part.need("advantages")
        if part.edited is not None:
            edited = torch.zeros_like(batch.mask)
            edited[rows] = part.edited
    return batch.replace(advantages=A, edited=edited)


def _prepared(chain: Chain, batch: TokenBatch) -> TokenBatch:
    batch = batch.replace(advantages=per_token(batch))
    before = batch.need("advantages")
    for name, method, state in chain.chain():
        chain.check_fields(name, method, batch)
        batch = chain.returned(method.prepare(batch, state), batch, batch, f"{name}.prepare")
    return batch if batch.advantages is before else _note_edits(batch, before)


def drop_zero_advantage(chain: Chain, batch: TokenBatch) -> tuple[Tensor, TokenBatch]:
    """The rows [R] that must be trained on, and the batch of these rows.

    The rows that are not idle; all rows if a penalty acts on every sampled token.
    """
    idle = batch.need("idle")
    if chain.penalises:
        return torch.arange(len(batch), device=idle.device), batch
    rows = (~idle).nonzero()[:, 0]
    return rows, batch[rows].replace(idle=None)


@torch.enable_grad()
def _filled(fill: Fill, rows: Tensor, part: TokenBatch) -> TokenBatch:
    """Call `fill`, which may train its own model, with gradients enabled."""
    return fill(rows, part)


def _spread(part: TokenBatch, rows: Tensor, batch: TokenBatch) -> dict[str, Tensor]:
    """Fields of `part`, the batch of `rows`, scattered over all rows: 0 at the others."""
    found = {name: getattr(part, name) for name in _FILLED}
    zero = torch.zeros_like(batch.old_logp)
    return {
        name: zero.to(values.dtype).index_copy(0, rows, values)
        for name, values in found.items()
        if values is not None
    }


def _note_edits(batch: TokenBatch, before: Tensor) -> TokenBatch:
    """Add the tokens whose advantage differs from `before` [B, T] to the batch's `edited`."""
    moved = per_token(batch) != before
    return batch.replace(edited=moved if batch.edited is None else batch.edited | moved)


def per_token(batch: TokenBatch) -> Tensor:
    """Advantages as [B, T], float32 or better, 0 at mask 0."""
    A = at_least_float32(batch.need("advantages").detach())
    dtype = torch.promote_types(A.dtype, at_least_float32(batch.logp).dtype)
    A = A.to(dtype)
    return torch.where(batch.mask, A if A.ndim == 2 else A.unsqueeze(-1), 0)
