"""The static sample: some rollouts for a reader without JavaScript."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .encoding import PIECE, digits, shortened, spelled, visible

if TYPE_CHECKING:
    from ...logs.rollouts import Rollouts

EACH = 4  # right ones, and as many wrong ones
TOKENS = 600  # of the static sample's completions
OBSERVED = "said by the environment: read by the policy, not trained on"


@dataclass(frozen=True)
class Token:
    """One token: its text, how strongly to shade it (0 to 1), its figures in words.

    `observed`: an environment said it.
    """

    text: str
    shade: float
    figures: str
    end: bool
    observed: bool


@dataclass(frozen=True)
class Sample:
    """One rollout of the static sample; `reward` is None where the dump does not say.

    `plain` is the completion as one text, empty where the tokens' texts already make it up (they do
    not where a character takes several tokens); `left_out` counts the tokens not shown.
    """

    prompt: str
    plain: str
    tokens: tuple[Token, ...]
    left_out: int
    reward: float | None
    finished: bool
    trained: bool


@dataclass(frozen=True)
class Samples:
    """Some rollouts of an iteration; `top` is its highest token entropy (nats), shaded fully."""

    iteration: int
    count: int
    top: float
    rollouts: tuple[Sample, ...]


def samples_of(r: Rollouts, iteration: int) -> Samples:
    """The sample of an iteration."""
    finite = r.entropy[r.entropy.isfinite()]
    top = float(finite.max()) if len(finite) else 0.0
    return Samples(iteration, len(r), top, tuple(_sample(r, i, top) for i in choose(r)))


def choose(rollouts: Rollouts) -> list[int]:
    """Up to four right rollouts (reward of 1 or more), then up to four others.

    They are not picked by hand: the first of its kind in each group, groups that have both kinds
    first; where too few groups have it, further ones of the same groups.
    """
    right, group = (rollouts.rewards >= 1).tolist(), rollouts.group.tolist()
    both = {g for g, ok in zip(group, right, strict=True) if ok} & {
        g for g, ok in zip(group, right, strict=True) if not ok
    }
    chosen = []
    for kind in (True, False):
        seen: dict[int, int] = {}
        ranked = []
        for i, (g, ok) in enumerate(zip(group, right, strict=True)):
            if ok is kind:
                seen[g] = seen.get(g, -1) + 1
                ranked.append((seen[g], g not in both, i))
        chosen += [i for _, _, i in sorted(ranked)[:EACH]]
    return chosen


def _sample(r: Rollouts, i: int, top: float) -> Sample:
    rows = r.rows(i)
    ids = r.tokens[rows].tolist()
    values = [t[rows].tolist() for t in (r.logp, r.entropy, r.advantage)]
    ends = bool(r.finished[i]) and bool(ids)
    own = [True] * len(ids) if r.sampled is None else r.sampled[rows].tolist()
    tokens = [
        Token(
            visible(r.pieces.get(token, "")[:PIECE]) or f"[{token}]",
            min(1.0, max(0.0, entropy / top)) if top > 0 and math.isfinite(entropy) else 0.0,
            f"log-prob {_number(logp)}, entropy {_number(entropy)}, "
            f"advantage {_number(advantage, '+')}"
            if sampled
            else OBSERVED,
            ends and place == len(ids) - 1,
            not sampled,
        )
        for place, (token, sampled, logp, entropy, advantage) in enumerate(
            zip(ids[:TOKENS], own[:TOKENS], *(v[:TOKENS] for v in values), strict=True)
        )
    ]
    return Sample(
        prompt=shortened(r.prompts[i]),
        plain="" if spelled(r, i) and len(ids) <= TOKENS else shortened(r.completions[i]),
        tokens=tuple(tokens),
        left_out=max(0, len(ids) - TOKENS),
        reward=digits(float(r.rewards[i])),
        finished=bool(r.finished[i]),
        trained=bool(r.trained[i]),
    )


def _number(value: float, sign: str = "") -> str:
    return f"{value:{sign}.3f}" if math.isfinite(value) else "—"
