"""Checks of `Subject` for the accuracy of log-probs and entropies.

Shapes: B rollouts, T completion tokens at most; n tokens in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from ...core.mismatch import mismatch as compared
from ...models.rounding import FIX, logp_rounding, sixteen_bits
from ..checks import Finding, ok, skipped, wrong
from .subject import Exact, Subject

OFF = 0.01  # relative error of a token's entropy; float32 is accurate to 1e-7
OFF_SHARE = 0.01  # share of tokens that may be so far off; without cancellation there are none
LEAST = 1e-9  # nats: a smaller entropy counts as 0
KL = 5e-3  # nats per token: bfloat16 alone leaves 7e-4 (SmolLM2-135M on `words`, in the lab)
SIGMAS = 5.0  # of the mean of lp + H, which has expectation 0: by chance once in 1.7 million
WARMER = 0.02  # relative error of the temperature; rounding to bfloat16 moves the fit by less
SAME = 1e-3  # nats: log-probs closer than this have the same temperature
FEW = 8  # fewest tokens for a fit


def rounding(subject: Subject) -> Finding:
    """Check for log-probs, or the logits behind them, that were rounded to 16 bits."""
    mask, precision = subject.batch.mask, subject.config.precision
    exact, temperature = subject.exact, subject.config.sampling.temperature
    error = ""
    if exact is not None:
        gap = float((exact.own.logp.double() - exact.logp(temperature)).abs().mean())
        error = f", {gap:.1g} nats a token off float64 on average"
    found = logp_rounding(subject.batch.old_logp[mask])
    if found.dtype is not None:
        return wrong(
            f"all {subject.tokens} log-probs fit {name_of(found.dtype)} exactly: rounded by "
            f"{found.error:.1g} nats a token, and the ratio and its clip with them",
            FIX,
        )
    if exact is not None and exact.given is not None:
        dtype = sixteen_bits(exact.given.float())
        if dtype is not None:
            why = f" (precision {precision})" if precision != "fp32" else ""
            return wrong(
                f"the model's logits come out in {name_of(dtype)}{why}: log-probs{error}, and the "
                "ratio and its clip with them",
                "--precision fp32, or keep the head's output in float32",
            )
    return ok(f"{subject.tokens} log-probs in float32{error}")


def cancellation(subject: Subject) -> Finding:
    """Check for entropies that lost accuracy to cancellation of two large numbers."""
    exact, temperature = subject.exact, subject.config.sampling.temperature
    if exact is None:
        return skipped("the model's head is no linear layer, so nothing computes it exactly")
    z = exact.z if exact.given is None else exact.given
    p = (z.double() / temperature).softmax(-1)
    true = -torch.special.xlogy(p, p).sum(-1)
    found = exact.own.entropy.double()
    share, mean = _off(found, true)
    x = z.float() / temperature
    usual = x.logsumexp(-1) - (x.softmax(-1) * x).sum(-1)
    theirs, _ = _off(usual.double(), true)
    figures = (
        f"entropy of {share:.1%} of {len(true)} tokens is more than {OFF:.0%} off float64, the "
        f"mean by {mean:.1g}"
    )
    if share > OFF_SHARE or mean > OFF:
        return wrong(
            figures + " of itself",
            "compute it by entrostat.token_stats, or from the sums over all tokens but the "
            "likeliest and log1p (docs/numerics.md)",
        )
    return ok(f"{figures}; by logsumexp - E[z] in float32 {theirs:.1%} would be")


def _off(found: Tensor, true: Tensor) -> tuple[float, float]:
    """Share of tokens with an error above `OFF`, and the relative error of the mean."""
    far = (found - true).abs() > OFF * true.clamp(min=LEAST)
    total = float(true.sum())
    return float(far.double().mean()), abs(float(found.sum()) - total) / max(total, LEAST)


def mismatch(subject: Subject) -> Finding:
    found = compared(subject.batch.old_logp, subject.sequences.sampler_logp, subject.own)
    if not found:
        return skipped("the rollouts do not say what the sampler's log-probs were")
    text = (
        f"KL(sampler || trainer) {found['mismatch/kl']:.1g} nats a token, |lp - lp'| "
        f"{found['mismatch/logp_abs_mean']:.1g} on average, ratios from "
        f"{found['mismatch/ratio_min']:.3g} to {found['mismatch/ratio_max']:.3g}"
    )
    if found["mismatch/kl"] > KL:
        return wrong(
            f"{text}, before any update",
            "look at `temperature` first; else sample and train in one precision (--precision "
            "fp32, or fp16: REPO App. A.2), with the same weights, template and positions",
        )
    return ok(text)


def temperature(subject: Subject) -> Finding:
    """Check that tokens, sampler and trainer log-probs have the configured temperature."""
    sampling, mask = subject.config.sampling, subject.own
    T, top_p = sampling.temperature, sampling.top_p
    lp, sampler = subject.batch.old_logp[mask], subject.sequences.sampler_logp[mask]
    if len(lp) < FEW:
        return skipped(f"{len(lp)} tokens are too few to fit a temperature to")
    if subject.exact is not None:
        for who, values in (("trainer", subject.batch.old_logp),
                            ("sampler", subject.sequences.sampler_logp)):  # fmt: skip
            fitted = _fitted(subject.exact, subject.of_exact(values).double(), T)
            if abs(fitted / T - 1) > WARMER:
                return wrong(
                    f"sampling.temperature is {T:g}, but the {who}'s log-probs are those of "
                    f"temperature {fitted:.3g}",
                    f"divide the {who}'s logits by {T:g} (vLLM: logprobs_mode processed_logprobs)",
                )
    elif float((lp - sampler).abs().nanmean()) > SAME:
        return skipped("the model's head is no linear layer, so no temperature can be fitted")
    H = subject.batch.need("old_entropy")[mask]
    if top_p < 1:
        return cut_tail(top_p)
    z, text = drawn(lp, H)
    if abs(z) > SIGMAS:
        as_if = ""
        if subject.exact is not None:
            best = _least(lambda t: -float(subject.exact.logp(t).mean()), T)
            as_if = f" as if at {best:.2g}"
        return wrong(
            f"tokens were not drawn at sampling.temperature {T:g}{as_if}; {text}",
            "let the sampler and the trainer use one temperature",
        )
    return ok(f"{T:g}; {text}")


def cut_tail(top_p: float) -> Finding:
    return skipped(f"sampling.top_p {top_p:g} cuts the tail, so tokens are likelier than H says")


def _fitted(exact: Exact, given: Tensor, T: float) -> float:
    """Temperature at which exact log-probs best fit the given ones [n]; T if none fits better."""
    known = ~given.isnan()

    def error(t: float) -> float:
        return float((exact.logp(t)[known] - given[known]).square().mean())

    if int(known.sum()) < FEW or error(T) < SAME**2:
        return T
    best = _least(error, T)
    # with another cause of mismatch, or near-certain tokens, no temperature fits better
    return best if error(best) < error(T) / 10 else T


def _least(function: Callable[[float], float], about: float) -> float:
    """Temperature that minimises a function, between a tenth of `about` and ten times `about`."""
    bounds = math.log(about / 10), math.log(about * 10)
    found = minimize_scalar(lambda x: function(math.exp(x)), bounds=bounds, method="bounded")
    return math.exp(found.x)


def surprise(lp: Tensor, H: Tensor) -> float:
    """Mean of lp + H over its standard error: standard normal if the policy sampled the tokens.

    Given its prefix, a token's lp has expectation -H, so the terms are uncorrelated.
    """
    x = (lp + H).double()
    spread = float(x.std())
    return 0.0 if spread == 0 else float(x.mean()) / spread * math.sqrt(len(x))


def drawn(lp: Tensor, H: Tensor) -> tuple[float, str]:
    """`surprise`, and a text that reports it."""
    z = surprise(lp, H)
    means = f"mean -lp {-float(lp.mean()):.3f}, mean entropy {float(H.mean()):.3f}"
    return z, f"{means}, {abs(z):.1f} sigma"


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
