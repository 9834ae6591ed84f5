"""The doctor's checks on a finished run: its log, and the rollouts that it dumped.

Log metrics are judged by the functions that `diagnose` uses to find causes. A log contains less
than a model: a check without data is skipped, with the reason.

Shapes: n tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...core.mismatch import mismatch as compared
from ...logs.lines import read_json
from ...logs.rollouts import Rollouts
from ...logs.run import Run, last_ones, saturated
from ...models.rounding import FIX, logp_rounding
from ..causes.batches import mismatches
from ..causes.updates import ratio_is_one
from ..checks import Finding, ok, skipped, wrong
from ..signals import signal
from .numbers import FEW, KL, OFF, SIGMAS, cut_tail, drawn, name_of
from .settings import MORE_UPDATES
from .tokens import idle_share

DUMPS = 4  # dumps read of a run, spread over it; each has some thousand tokens
LONG = 10  # fewest iterations from which "never" is concluded
WRONG_SHARE = 0.01  # share of tokens with an impossible entropy
PLAIN = 0.5  # a mismatch of a larger weight is reported
NOT_DUMPED = "no rollouts with log-probs are there"
NO_ENTROPIES = "no rollouts with log-probs and entropies are there"
_GROUPS = 8  # assumed groups per iteration, if a log has only their share


@dataclass(frozen=True, eq=False)
class Record:
    """A run and some of its rollouts."""

    run: Run

    @property
    def methods(self) -> list[str]:
        return str(self.run.methods or "").split("+")

    def series(self, key: str) -> list[float]:
        return self.run.series(key)[1]

    def end(self, key: str) -> float | None:
        """Mean of a metric over the run's last iterations; None if it is not logged."""
        last = self.series(key)[-last_ones(len(self.series(key))) :]
        return sum(last) / len(last) if last else None

    @cached_property
    def dumps(self) -> list[Rollouts]:
        """Rollouts of up to `DUMPS` iterations; unreadable ones are left out."""
        places = sorted(self.run.dumps)
        found = []
        for place in places[:: max(1, len(places) // DUMPS)][:DUMPS]:
            try:
                found.append(self.run.dumps[place]())
            except ValueError:
                continue
        return found

    def tokens(self, name: str, other: str) -> tuple[Tensor, Tensor]:
        """Two fields [n] of the dumped tokens, where both are known."""
        both = [torch.zeros(2, 0, dtype=torch.float64)]
        for dump in self.dumps:
            pair = torch.stack([getattr(dump, name).double(), getattr(dump, other).double()])
            both.append(pair[:, ~pair.isnan().any(0)])
        a, b = torch.cat(both, 1)
        return a, b


def rounding(record: Record) -> Finding:
    """Check for rounded log-probs, as the trainer measured them or by the dumps."""
    if (error := record.end("numerics/logp_rounding")) is not None and error > 0:
        return wrong(f"the host measured log-probs that are {error:.1g} nats off by rounding", FIX)
    lp, _ = record.tokens("logp", "logp")
    if not len(lp):
        return skipped(NOT_DUMPED) if error is None else ok("the host measured no rounding")
    found = logp_rounding(lp.float())
    if found.dtype is not None:
        fits = f"all {len(lp)} log-probs dumped fit {name_of(found.dtype)}"
        return wrong(f"{fits}, {found.error:.1g} nats off", FIX)
    return ok(f"{len(lp)} log-probs dumped, none forced into 16 bits")


def cancellation(record: Record) -> Finding:
    """Check for entropies below the bound by the token's probability, -p lp - (1-p) log(1-p)."""
    below = [x for x in record.series("entropy/exact") if x < 0]
    fix = "compute entropy by entrostat.token_stats (docs/numerics.md)"
    if below:
        text = f"entropy is below 0 in {len(below)} iterations, {min(below):.2g} at least"
        return wrong(text, fix)
    lp, H = record.tokens("logp", "entropy")
    if not len(lp):
        return skipped(NO_ENTROPIES)
    p, rest = lp.exp(), -lp.clamp(max=-1e-300).expm1()
    least = -p * lp - torch.special.xlogy(rest, rest)
    share = float(((1 - OFF) * least - 1e-6 > H).double().mean())
    text = (
        f"of {len(lp)} tokens {share:.2%} have less entropy than their own probability alone makes"
    )
    return wrong(text, fix) if share > WRONG_SHARE else ok(text)


def mismatch(record: Record) -> Finding:
    fix = "one temperature and one precision in sampler and trainer (REPO App. A.2)"
    told, said = mismatches(record.run), ""
    if told:
        _, found, plain = max(told, key=lambda each: each[2])
        said = f"{found.name} {found.late:.2g} at the run's end"
        if plain > PLAIN:
            return wrong(said, fix)
    lp, sampler = record.tokens("logp", "sampler_logp")
    if not len(lp):
        none = "neither log nor rollouts say what the sampler's log-probs were"
        return ok(said) if told else skipped(none)
    kl = compared(lp[None], sampler[None], torch.ones(1, len(lp)))["mismatch/kl"]
    text = f"KL(sampler || trainer) {kl:.1g} nats a token"
    return wrong(text, fix) if kl > KL else ok(text)


def ratio(record: Record) -> Finding:
    if any(name in record.methods for name in ("reinforce", "rloo", "opefo")):
        return skipped("strictly on-policy, without a ratio")
    said = ratio_is_one(record.run)
    found = signal(record.run, "step_kl") or signal(record.run, "clip")
    if said is not None and found is not None and len(found) >= LONG:
        return wrong(f"{said}: the clip acts on nothing", MORE_UPDATES)
    if found is not None:
        return ok(f"{found.name} is {float(found.y.mean()):.1g} on average")
    if record.run.setting("optim", "epochs") == record.run.setting("optim", "minibatches") == 1:
        return wrong("one update per rollout batch: every ratio is 1", MORE_UPDATES)
    return skipped("the log has no figure of the ratio")


def temperature(record: Record) -> Finding:
    lp, H = record.tokens("logp", "entropy")
    if len(lp) < FEW:
        return skipped(NO_ENTROPIES)
    top_p = record.run.setting("sampling", "top_p")
    if isinstance(top_p, int | float) and top_p < 1:
        return cut_tail(top_p)
    z, text = drawn(lp, H)
    if abs(z) > SIGMAS:
        return wrong(
            f"tokens were not drawn from the distribution that was measured: {text}",
            "one temperature in sampler and trainer, top_p 1, and entropy of the same logits",
        )
    return ok(text)


def eos(record: Record) -> Finding:
    cut = signal(record.run, "truncated")
    if cut is None:
        return skipped("the log does not say how many rollouts ended")
    if cut.y.min() >= 1:
        return wrong(
            f"no rollout ended in any of {len(cut)} iterations: all ran into their limit",
            "a longer limit, a stop, or the eos token that the model ends its turns with",
        )
    return ok(f"{1 - cut.y[-1]:.0%} of rollouts end, at the run's end")


def zero_advantage(record: Record) -> Finding:
    share, prompts = signal(record.run, "no_signal"), record.run.setting("sampling", "prompts")
    if share is None:
        return skipped("the log does not count groups without a signal")
    reward = record.end("reward/mean")
    figures = {} if reward is None else {"reward/mean": reward}
    last = last_ones(len(share))
    counted = isinstance(prompts, int) and share.name == "rollout/zero_advantage_groups"
    groups = prompts if counted and isinstance(prompts, int) else _GROUPS * last
    idle = float(share.y[-last:].mean())
    text = None if counted else f"{idle:.0%} of groups"
    return idle_share(round(idle * groups), groups, figures, text)


def group(record: Record) -> Finding:
    sizes = [dump.group.unique(return_counts=True)[1] for dump in record.dumps if len(dump.group)]
    if not sizes:
        return skipped("no rollouts are there")
    least = min(int(size.min()) for size in sizes)
    if least == 1 and record.run.config.get("advantage") != "reinforce_pp":
        return wrong("there are groups of one rollout: nothing to compare with", "sample several")
    return ok(f"groups of {least} or more")


def authority(record: Record) -> Finding:
    found = saturated(record.run.path, record.run.metrics)
    if found:
        evidence, _, fix = found[0].partition(". ")
        return wrong(evidence, fix or "another knob, a wider range, or a nearer target")
    if not record.run.coefficients:
        return skipped("no controller is in the log")
    return ok("no controller spent the run's end at its limit")


def gate(record: Record) -> Finding:
    """Check for a coefficient that an entropy gate kept at 0."""
    values = record.series("control/entropy_coef")
    if "adaptive_entropy" not in record.methods or not values:
        return skipped("no method waits for an entropy")
    target, entropy = record.end("control/target"), record.series("entropy/exact")
    if len(values) >= LONG and not any(values):
        return wrong(
            f"the bonus was 0 in all of {len(values)} iterations: entropy, {min(entropy):.3g} at "
            f"least, was never at most {target:.3g}",
            f"a target near {entropy[0]:.2g}, the policy's own (PAR 3.2)",
        )
    share = sum(x != 0 for x in values) / len(values)
    return ok(f"the bonus acted in {share:.0%} of {len(values)} iterations")


def penalties(record: Record) -> Finding:
    """Check for selections and penalties that never applied to a token."""
    found = []
    for key in ("terms/frozen", "terms/penalised", "touched/share"):
        values = record.series(key)
        if len(values) >= LONG and not any(values):
            methods = record.run.methods
            if key == "touched/share" and (methods is None or not _intervenes(record)):
                continue
            return wrong(
                f"{key} is 0 in all of {len(values)} iterations: {methods or 'it'} touches none",
                "look at its share and thresholds, or leave it out",
            )
        if values:
            found.append(f"{key} {sum(values) / len(values):.2g}")
    return ok("; ".join(found)) if found else skipped("the log does not say what methods touched")


def _intervenes(record: Record) -> bool:
    """Whether objective.json names an intervention that edits single tokens."""
    from ...method import METHODS

    tables = read_json(record.run.path / "objective.json").get("methods")
    tables = tables if isinstance(tables, list) else []
    names = [str(table.get("name")) for table in tables if isinstance(table, Mapping)]
    known = [METHODS[name] for name in names if name in METHODS]
    return any(cls.kind == "intervention" and not cls.penalises for cls in known)


def padding(_: Record) -> Finding:
    return skipped("needs the model: dumps are without padding")


def selection(_: Record) -> Finding:
    return skipped("needs the configuration: a log does not say how minibatches were cut")
