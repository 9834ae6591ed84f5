"""Rules: slices add up, precision is kept, and the gradient is that of the loss."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from ..core.batch import Terms, TokenBatch
from ..core.loss import surrogate
from .data import AGGREGATIONS, MASK, contract_data
from .findings import CLOSE, LEAVES, alike, expect, rule, same_figures
from .subject import Pass, Subject

_SPLITS = (
    [slice(i, i + 1) for i in range(6)],
    # a slice, indices and booleans, of unequal size
    [slice(0, 1), torch.tensor([5, 2]), torch.tensor([False, True, False, True, True, False])],
)
_FLOAT32 = (
    "Make numbers with torch.ones_like or new_full of what was given; widen a half with "
    "entrostat.core.batch.at_least_float32, and never narrow with .float()."
)


@rule(
    "Micro-batches under the whole's terms add up to the whole: loss, gradient and figures.",
    "Decide in `plan`, which sees the whole minibatch, and put into the terms one number per token "
    "[B, T].",
)
def micro_batches(subject: Subject) -> None:
    for aggregation, split in product(AGGREGATIONS, _SPLITS):
        when = f"cut into {len(split)} micro-batches ({aggregation})"
        whole, objective = subject.clean(aggregation), subject.objective(aggregation)
        outs = [objective.loss(whole.batch[rows], whole.terms[rows]) for rows in split]
        loss = torch.stack([out.loss.detach() for out in outs]).sum()
        alike("the sum of the losses", loss, whole.loss, when, **CLOSE)
        parts = [whole.backward(out.loss) for out in outs]
        for i, (name, mine) in enumerate(zip(LEAVES, whole.gradients, strict=True)):
            total = torch.stack([part[i] for part in parts]).sum(0)
            alike(f"the sum of the gradients of {name}", total, mine, when, **CLOSE)
        keys = whole.out.metrics.keys()
        sums = {key: torch.stack([out.metrics[key] for out in outs]).sum() for key in keys}
        same_figures(sums, whole.out.metrics, when)
        for rows, out in zip(split, outs, strict=True):
            expected = whole.out.per_token[rows].detach()
            alike("the loss of a token", out.per_token.detach(), expected, when, **CLOSE)


@rule("bf16 and fp16 are computed in float32.", _FLOAT32)
def half_precision(subject: Subject) -> None:
    dtypes = (torch.bfloat16, torch.float16, torch.bfloat16)
    for aggregation, dtype in zip(AGGREGATIONS, dtypes, strict=True):
        when = f"from {dtype} ({aggregation})"
        half = contract_data(dtype)
        found = subject.run(half, aggregation)
        _all_of(found, torch.float32, when)
        widened = {k: v.float() if v.is_floating_point() else v for k, v in half.items()}
        exact = subject.run(widened, aggregation)
        alike("the loss", found.loss, exact.loss, when, 1e-6, 1e-7)
        # if two terms of the loss read logp, their gradients add in the caller's precision
        added = found.terms.abs_kl is not None or found.terms.ref_kl is not None
        rtol = (3 if added else 1) * torch.finfo(dtype).eps
        gradient, expected = found.gradients[0], exact.gradients[0].to(dtype)
        alike("the gradient of logp", gradient, expected, when, rtol, 1e-7)


@rule("float64 stays float64, and float32 comes close to it.", _FLOAT32)
def wider_precision(subject: Subject) -> None:
    for aggregation in AGGREGATIONS:
        wide = subject.clean(aggregation)
        narrow = subject.run(contract_data(torch.float32), aggregation)
        _all_of(wide, torch.float64, f"from float64 ({aggregation})")
        when = f"from float32 ({aggregation})"
        _all_of(narrow, torch.float32, when)
        alike("the loss", narrow.loss.double(), wide.loss, when, 1e-5, 1e-6)
        gradient = narrow.gradients[0].double()
        alike("the gradient of logp", gradient, wide.gradients[0], when, 1e-4, 1e-6)


def _all_of(found: Pass, dtype: torch.dtype, when: str) -> None:
    numbers = {"advantages": found.batch.need("advantages"), "the loss": found.loss}
    numbers |= {"the loss of a token": found.out.per_token}
    terms = {k: v for k, v in vars(found.terms).items() if isinstance(v, Tensor)}
    numbers |= {f"{k} of the terms": v for k, v in terms.items() if v.is_floating_point()}
    numbers |= {f"the figure {k}": v for k, v in found.out.metrics.items()}
    for name, value in numbers.items():
        expect(value.dtype == dtype, f"{when} {name} is {value.dtype}")


@rule(
    "The gradient is that of finite differences, with the terms held fixed.",
    "A term of the loss that reads logp or entropy belongs into Terms; nothing a hook computes may "
    "carry a gradient.",
)
def finite_differences(subject: Subject) -> None:
    """Central differences of the loss w.r.t. every logp and entropy.

    With the sequence's ratio written out below, a token's loss reads only its own log-prob and
    entropy. So all tokens are shifted at once, and each token's loss gives its own difference. If a
    loss read other tokens, the row sums of the derivative would differ from its column sums.
    """
    for aggregation in AGGREGATIONS:
        found = subject.clean(aggregation)
        batch, terms = found.batch, found.out.terms
        total = (found.out.per_token * terms.scale).sum()
        alike("the loss", found.loss, total.detach(), "as a sum over tokens", **CLOSE)
        logp, entropy = found.logp.detach(), found.entropy.detach()
        if terms.ratio == "sequence":
            # s_t = sg(s) exp(lp - sg(lp)) is a token's ratio to an old log-prob of lp - ln s
            assert terms.abs_kl is None, "a distance to the old policy reads the true one"
            log_ratio = (batch.logp.detach() - batch.old_logp).sum(-1, keepdim=True)
            mean = log_ratio / batch.lengths[:, None]
            batch = batch.replace(old_logp=batch.logp.detach() - mean)
            terms = terms.replace(ratio="token")
        if terms.frozen is not None:  # no policy gradient there, as with weight 0
            weight = torch.where(terms.frozen, 0, terms.weight)
            terms = terms.replace(weight=weight, frozen=None)
        smooth = MASK.bool() & ~_kinks(batch, terms)
        expect(
            int(smooth.sum()) >= 9,
            f"{int(smooth.sum())} of 18 tokens are away from the kinks of the clip; pass "
            "parameters that put its bounds elsewhere",
        )
        step = 1e-5
        for i, (up, H) in enumerate(((step, 0.0), (0.0, step))):
            above, below = (
                surrogate(batch.replace(logp=logp + s * up, entropy=entropy + s * H), terms)[0]
                for s in (1, -1)
            )
            numeric = (above - below).detach() * terms.scale / (2 * step)
            when = f"beside a difference ({aggregation})"
            mine = found.gradients[i]
            alike(f"the gradient of {LEAVES[i]}", mine[smooth], numeric[smooth], when, 1e-6, 1e-9)


def _kinks(batch: TokenBatch, terms: Terms) -> Tensor:
    """[B, T] bool: tokens within 1e-3 of a point where the loss is not differentiable."""
    delta = batch.logp.detach() - batch.old_logp
    ratio = delta.exp()
    near = ((ratio - terms.ratio_min).abs() < 1e-3) | ((ratio - terms.ratio_max).abs() < 1e-3)
    if terms.dual is not None:
        near |= (ratio - terms.dual).abs() < 1e-3
    if terms.abs_kl is not None and terms.abs_kl_form == "abs":
        near |= delta.abs() < 1e-3
    return near
