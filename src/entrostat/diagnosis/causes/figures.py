"""Causes in the figures: what samples is not what is trained, what is logged is not the entropy."""

from __future__ import annotations

import numpy as np

from ...logs.run import Run
from ..course import moving_mean
from ..signals import Signal, of, shared, signal
from .seen import Plain, Seen, cause, decades, ramp, short

# from noticeable to plain: mean |log p - log q| of a token, mean |p - q|, KL; REPO App. A.2 has
# .01 and less for probabilities in bf16
MISMATCH = {
    "mismatch_logp": (0.02, 0.2), "mismatch_prob": (0.01, 0.05), "mismatch_kl": (1e-3, 0.05),
}  # fmt: skip
GREW = 1.5
OFF_ONE = 0.1  # of a mean importance ratio of sampler and trainer: nearer to 1 it is well
APART = 0.15  # of the exact entropy, by which its estimate differs
ALIKE, EXPONENT = 0.95, 0.15  # correlation with the length, and of the power how near to 1
LONGER = 1.25


def mismatches(run: Run) -> list[tuple[str, Signal, float]]:
    """Figures of the mismatch, and how plain each is at the end, 0 to 1 over its `MISMATCH`."""
    known = [(name, found) for name in MISMATCH if (found := signal(run, name)) is not None]
    return [(name, found, decades(found.late, *MISMATCH[name])) for name, found in known]


@cause(
    "sampler mismatch growing",
    "Rollouts of another policy than the one that is trained make every ratio wrong, most for "
    "rare tokens: clipping and advantages then push entropy by themselves.",
    "REPO App. A.1 and A.2",
)
def sampler_mismatch(seen: Seen) -> Plain:
    weights: list[tuple[float, str]] = []
    for name, found, plain in mismatches(seen.run):
        if len(found) < 5:
            continue
        grew = found.late / max(found.early, 1e-12)
        weights.append((
            plain * (0.95 if grew >= GREW else 0.6),
            f"{found.name} went from {short(found.early)} to {short(found.late)} ({grew:.2g} "
            f"times); above {MISMATCH[name][0]:g} it is noticeable.",
        ))  # fmt: skip
    weight, evidence = max(weights, default=(0.0, ""))
    ratio = seen.signal("correction")
    if ratio is not None and abs(ratio.late - 1) > OFF_ONE:
        weight = max(weight, 0.9 * ramp(abs(ratio.late - 1), OFF_ONE, 0.5))
        evidence = (
            f"{ratio.name} went from {short(ratio.early)} to {short(ratio.late)}: the correction "
            f"is on, and scales the gradient by that. {evidence}"
        ).strip()
    return None if weight == 0 else (weight, evidence)


@cause(
    "entropy definition",
    "A sum over tokens, a mean over padding or an estimate at another temperature moves with "
    "lengths and settings; controllers and verdicts that read it follow the wrong figure.",
    "docs/analyze.md (Which entropy)",
)
def entropy_definition(seen: Seen) -> Plain:
    found = [c for c in (_length(seen), _apart(seen), _logged(seen)) if c is not None]
    return max(found, default=None)


def _length(seen: Seen) -> tuple[float, str] | None:
    """Whether the entropy is a mean times the length."""
    entropy, length = seen.signal("entropy"), seen.signal("length")
    if entropy is None or length is None:
        return None
    H, L = shared(entropy, length)
    if len(H) < 10 or H.min() <= 0 or L.min() <= 0:
        return None
    k = max(1, len(H) // 20)
    h, n = (moving_mean(np.log(v), k) for v in (H, L))
    if n.max() - n.min() < np.log(LONGER) or h.std() == 0:
        return None
    correlation = float(np.corrcoef(h, n)[0, 1])
    power = correlation * float(h.std() / n.std())
    if correlation < ALIKE or abs(power - 1) > EXPONENT:
        return None
    per = H / L
    return 0.9, (
        f"Entropy goes as the mean length to the power {power:.2f} (correlation "
        f"{correlation:.2f}): divided by the length it stays between {short(per.min())} and "
        f"{short(per.max())}. It is a sum over tokens, or a mean that counts padding."
    )


def _apart(seen: Seen) -> tuple[float, str] | None:
    """Whether the estimate from sampled tokens is off from the exact entropy."""
    exact, estimate = of(seen.run, "entropy/exact"), of(seen.run, "entropy/nll")
    if exact is None or estimate is None:
        return None
    H, nll = shared(exact, estimate)
    if len(H) < 10 or H.mean() <= 0:
        return None
    gap = float(nll.mean() / H.mean() - 1)
    same_side = float(np.mean(np.sign(nll - H) == np.sign(gap)))
    if abs(gap) < APART or same_side < 0.9:
        return None
    return ramp(abs(gap), 0.1, 0.4), (
        f"The mean of -log p of the sampled tokens is {gap:+.0%} off the exact entropy, on the "
        f"same side in {same_side:.0%} of the iterations: tokens are not drawn from the "
        "distribution that is measured (top-p, another temperature, another policy)."
    )


def _logged(seen: Seen) -> tuple[float, str] | None:
    """Whether what the log calls entropy is known to be something else, or not known."""
    entropy = seen.signal("entropy")
    if entropy is None or entropy.name != "entropy/logged" or "sum" not in seen.run.entropy_is:
        return None
    return 0.7, f"The trainer logs another figure: {seen.run.entropy_is}."
