"""Rules: masked tokens and padding have no effect."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import pad

from .data import AGGREGATIONS, MASK, PER_TOKEN, contract_data
from .findings import LEAVES, alike, expect, figure, rule, same_pass
from .subject import Subject

_REDUCE = (
    "Reduce with `batch.whole` (sum, mean, max, quantile, largest), which sees tokens at mask 1 "
    "alone, and give other tokens a number with torch.where(batch.mask, ..., 0)."
)


@rule("Entries at mask 0 change nothing, whatever stands there.", _REDUCE)
def masked(subject: Subject) -> None:
    inside = MASK.bool()
    kinds = torch.tensor([math.nan, math.inf, -math.inf, 1e30], dtype=torch.float64)
    data = contract_data()
    filled = dict(data)
    for i, key in enumerate(PER_TOKEN):
        junk = kinds[(i + torch.arange(30)) % 4].view(6, 5)
        filled[key] = torch.where(inside, data[key], junk)
    for aggregation in AGGREGATIONS:
        when = f"with NaN, infinities and 1e30 at masked places ({aggregation})"
        clean = subject.clean(aggregation)
        expect(bool(torch.isfinite(clean.loss)), f"the loss is {figure(clean.loss)}")
        expect(
            bool(clean.gradients[0][inside].any()),
            "no token gets a gradient, so that there is nothing to test; pass parameters under "
            "which the method trains",
        )
        dirty = subject.run(filled, aggregation)
        same_pass(dirty, clean, when, exact=True)
        for name, mine in zip(LEAVES, dirty.gradients, strict=True):
            alike(f"the gradient of {name} at mask 0", mine[~inside], 0 * mine[~inside], when)
        per_token = dirty.out.per_token.detach()[~inside]
        alike("the loss of a token at mask 0", per_token, torch.zeros_like(per_token), when)


@rule("Advantages that are given are not read at mask 0 either.", _REDUCE)
def masked_advantages(subject: Subject) -> None:
    data = contract_data()
    A = torch.linspace(-1, 2, 30, dtype=torch.float64).view(6, 5)
    junk = torch.tensor([math.nan, math.inf], dtype=torch.float64)[torch.arange(30) % 2].view(6, 5)
    clean = subject.run(data | {"advantages": A})
    dirty = subject.run(data | {"advantages": torch.where(MASK.bool(), A, junk)})
    same_pass(dirty, clean, "with NaN and infinity at masked places", exact=True)


@rule(
    "Columns of padding and rows without a token change nothing.",
    "Take no length or number of rows from a shape: batch.lengths are the tokens of a rollout, "
    "batch.whole.tokens and batch.whole.sequences those of all.",
)
def padding(subject: Subject) -> None:
    lengths = [(aggregation, None) for aggregation in AGGREGATIONS]
    for aggregation, max_length in (*lengths, ("seq_mean_token_sum_norm", 8)):
        padded = {}
        for key, value in contract_data().items():
            if value.ndim == 2:
                junk = 0 if key == "mask" else math.nan
                # that aggregation's constant is the width by default
                columns = 0 if aggregation == "seq_mean_token_sum_norm" and not max_length else 3
                value = pad(value, (0, columns, 0, 2), value=junk)
            else:
                # two more rollouts without tokens, of another prompt, with equal rewards
                value = torch.cat([value, torch.ones(2, dtype=value.dtype)])
            padded[key] = value
        when = f"with padding ({aggregation})"
        clean = subject.clean(aggregation, max_length)
        same_pass(subject.run(padded, aggregation, max_length), clean, when, slice(0, 6))


@rule(
    "A mask of bool, integers or floats means the same.",
    "Read batch.mask, which is bool whatever was given, and copy no mask into the state.",
)
def mask_dtypes(subject: Subject) -> None:
    clean = subject.clean()
    for dtype in (torch.bool, torch.float32, torch.uint8):
        other = subject.run(contract_data() | {"mask": MASK.to(dtype)})
        same_pass(other, clean, f"with a mask of {dtype}", exact=True)


@rule(
    "A batch without tokens has the loss 0 and no gradient.",
    "Guard divisions by a number of tokens: max(1, batch.whole.tokens).",
)
def no_tokens(subject: Subject) -> None:
    for aggregation in AGGREGATIONS:
        when = f"without a token ({aggregation})"
        found = subject.run(contract_data() | {"mask": torch.zeros(6, 5)}, aggregation)
        alike("the loss", found.loss, torch.zeros_like(found.loss), when)
        for name, gradient in zip(LEAVES, found.gradients, strict=True):
            alike(f"the gradient of {name}", gradient, torch.zeros_like(gradient), when)
        for key, value in found.figures.items():
            expect(bool(torch.isfinite(value)), f"{when} the figure {key} is {figure(value)}")


@rule(
    "Rollouts without a token change nothing, whatever their reward and advantage.",
    "Leave rows with batch.lengths == 0 out of every mean and count over rollouts.",
)
def empty_rollouts(subject: Subject) -> None:
    """Add one empty rollout before, one between and one after, of the same prompts."""
    given = torch.tensor([1.0, -0.5, 2.0, 0.0, -1.0, 0.3], dtype=torch.float64)
    data = contract_data() | {"advantages": given}
    places = torch.tensor([1, 2, 3, 5, 6, 7])
    wider = {}
    for key, value in data.items():
        junk = {"mask": 0, "group": 4, "rewards": 0.7, "advantages": 3.0}.get(key, math.nan)
        wider[key] = torch.full((9, *value.shape[1:]), junk, dtype=value.dtype)
        wider[key][places] = value
    for aggregation in AGGREGATIONS:
        when = f"with three rollouts without a token ({aggregation})"
        clean = subject.run(data, aggregation)
        same_pass(subject.run(wider, aggregation), clean, when, places)
