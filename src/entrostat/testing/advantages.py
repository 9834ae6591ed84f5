"""Rules: the effect of an advantage, and the gradient without one."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor

from ..core.loss import Aggregation
from .data import AGGREGATIONS, MASK, PER_TOKEN, contract_data
from .findings import CLOSE, LEAVES, alike, expect, figure, rule, same_pass
from .subject import Added, Pass, Subject


@rule(
    "Without an advantage there is no gradient but that of terms added to the loss.",
    "Multiply advantages or weights. A method that adds a term says `penalises = True`; one that "
    "makes rewards unequal is tested with Allowed(equal_rewards_teach=True).",
)
def zero_advantages(subject: Subject) -> None:
    """With equal rewards, or advantages of 0, only added terms give a gradient."""
    unequal = subject.allowed.equal_rewards_teach
    reward = 0.0 if unequal else 0.1
    equal = contract_data() | {"rewards": torch.full((6,), reward, dtype=torch.float64)}
    given = contract_data() | {"advantages": torch.zeros(6, dtype=torch.float64)}
    cases = [(f"with every reward {reward}", equal), ("with every advantage 0", given)]
    if unequal == "always":
        cases = cases[1:]
    for (when, data), aggregation in product(cases, AGGREGATIONS):
        found = subject.run(data, aggregation)
        when = f"{when} ({aggregation})"
        adds = found.terms.entropy is not None or found.terms.ref_kl is not None
        penalises = subject.objective().penalises
        expect(
            penalises or not adds,
            "`plan` adds terms to the loss and the class does not say `penalises = True`, so that "
            "hosts drop the groups without a signal, on whose tokens they act",
        )
        added = subject.allowed.added
        if added is None and not adds:
            added = Added()
        by_hand = None if added is None else added_gradients(added, aggregation)
        expected = planned_gradients(found) if by_hand is None else by_hand
        for name, mine, theirs in zip(LEAVES, found.gradients, expected, strict=True):
            alike(f"the gradient of {name}", mine, theirs, when, **CLOSE)
            if not adds:
                alike(f"the gradient of {name}", mine, torch.zeros_like(mine), when)
    if unequal:
        rewards = torch.full((6,), 0.1, dtype=torch.float64)
        found = subject.run(contract_data() | {"rewards": rewards})
        expect(
            bool(found.gradients[0].any()),
            "with every reward 0.1 there is no gradient; leave equal_rewards_teach out",
        )


def shares(aggregation: Aggregation) -> Tensor:
    """[6, 5]: the weight of one token; 18 tokens in 6 sequences of up to 5."""
    m = MASK.double()
    return {
        "token_mean": m / 18,
        "seq_mean_token_mean": m / torch.tensor([5, 2, 3, 4, 1, 3])[:, None] / 6,
        "seq_mean_token_sum_norm": m / 5 / 6,
    }[aggregation]


def added_gradients(added: Added, aggregation: Aggregation) -> tuple[Tensor, Tensor]:
    """Gradients of added terms alone w.r.t. logp and entropy, by hand, for `contract_data`."""
    data = contract_data()
    slope = _slope(data["ref_logp"] - data["logp"], added.form)
    # the bonus is a mean over all tokens, whatever the aggregation
    return added.ref_kl * slope * shares(aggregation), -added.entropy * MASK.double() / 18


def planned_gradients(found: Pass) -> tuple[Tensor, Tensor]:
    terms, batch = found.terms, found.batch
    lp, entropy = (torch.zeros_like(found.loss).expand(batch.mask.shape) for _ in range(2))
    if terms.ref_kl is not None:
        d = batch.need("ref_logp") - batch.logp.detach()
        slope = _slope(d, terms.ref_kl_form)
        if terms.ref_kl_ratio:  # (r KL)' = r KL + r KL'
            k3 = d.exp() - d - 1
            slope = (batch.logp.detach() - batch.old_logp).exp() * (k3 + slope)
        lp = terms.ref_kl * slope * terms.scale
    if terms.entropy is not None:
        entropy = -terms.entropy * terms.scale
    return lp, entropy


def _slope(d: Tensor, form: str) -> Tensor:
    """Derivative of -d, d^2/2 or exp(d) - d - 1 w.r.t. logp, where d = ref_logp - logp."""
    return {"k1": torch.ones_like(d), "k2": -d, "k3": 1 - d.exp()}[form]


@rule(
    "One advantage for a rollout is that advantage at each of its tokens.",
    "Read advantages as [B, T], which they are in `prepare`.",
)
def one_advantage_each(subject: Subject) -> None:
    A = torch.tensor([1.0, -0.5, 2.0, 0.0, -1.0, 0.3], dtype=torch.float64)
    one = subject.run(contract_data() | {"advantages": A})
    each = subject.run(contract_data() | {"advantages": A[:, None].expand(6, 5)})
    same_pass(each, one, "with advantages [B, T]", exact=True)
    expect(bool(one.gradients[0].any()), "no token gets a gradient from given advantages")


@rule(
    "One token's gradient opposes its advantage, and its loss is finite.",
    "A variance or deviation of one token is NaN: take it over at least two, or add an epsilon. "
    "Where the method by definition leaves a lone token out, say so: "
    "Allowed(no_gradient_alone=(1, -1)), the signs of its advantage.",
)
def one_token(subject: Subject) -> None:
    """On policy every ratio is 1, and the reference is the policy itself."""
    one = torch.ones(1, 1, dtype=torch.float64)
    data = dict.fromkeys(PER_TOKEN, -0.5 * one) | {"entropy": one, "old_entropy": 0.75 * one}
    data |= {"mask": one, "group": torch.tensor([0]), "tempered": torch.tensor([False])}
    for A, aggregation in product((1.5, -0.5), AGGREGATIONS):
        data["advantages"] = data["rewards"] = torch.tensor([A], dtype=torch.float64)
        found = subject.run(data, aggregation)
        when = f"of one token of advantage {A} ({aggregation})"
        expect(bool(torch.isfinite(found.loss)), f"the loss {when} is {figure(found.loss)}")
        gradient = found.gradients[0].item() - _kl_to_itself(subject, found)
        expect(math.isfinite(gradient), f"the gradient of logp {when} is {gradient}")
        if math.copysign(1, A) in subject.allowed.no_gradient_alone:
            expect(
                gradient == 0,
                f"the gradient of logp {when} is {gradient:.6g}; leave {math.copysign(1, A):g} out "
                "of no_gradient_alone",
            )
        else:
            expect(gradient * A < 0, f"the gradient of logp {when} is {gradient:.6g}")


def _kl_to_itself(subject: Subject, found: Pass) -> float:
    """The KL's derivative if the reference is the policy: 0, except 1 for k1."""
    added, terms = subject.allowed.added, found.terms
    if added is not None:
        return added.ref_kl if added.form == "k1" else 0.0
    return 0.0 if terms.ref_kl is None or terms.ref_kl_form != "k1" else terms.ref_kl.item()


@rule(
    "On the first update, where every ratio is 1, the loss and its gradient are finite.",
    "Look for a logarithm of a ratio or a division by log p - log p0, which is 0 there.",
)
def on_policy(subject: Subject) -> None:
    data = contract_data()
    data |= {"logp": data["old_logp"], "entropy": data["old_entropy"]}
    for aggregation in AGGREGATIONS:
        found = subject.run(data, aggregation)
        numbers = {"the loss": found.loss}
        for name, gradient in zip(LEAVES, found.gradients, strict=True):
            numbers[f"the gradient of {name}"] = gradient[MASK.bool()]
        for name, value in numbers.items():
            expect(
                bool(torch.isfinite(value).all()), f"on policy {name} is not finite ({aggregation})"
            )
