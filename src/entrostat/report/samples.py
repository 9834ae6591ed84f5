"""Sample rollouts of the last dumped iteration, token by token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..logs.rollouts import Rollouts

EACH = 4  # right ones, and as many wrong ones
TOKENS = 600  # shown of one completion
CHARACTERS = 4000  # shown of one prompt, or of a completion as plain text


@dataclass(frozen=True)
class Token:
    """One token: its text, how strongly to shade it (0 to 1), its figures in words."""

    text: str
    shade: float
    figures: str
    end: bool


@dataclass(frozen=True)
class Sample:
    """One rollout.

    `plain` is the completion as one text, empty where the tokens' texts already make it up (they do
    not where a character takes several tokens); `left_out` counts the tokens not shown.
    """

    prompt: str
    plain: str
    tokens: tuple[Token, ...]
    left_out: int
    reward: float
    right: bool
    finished: bool
    trained: bool


@dataclass(frozen=True)
class Samples:
    """Some rollouts of an iteration; `top` is its highest token entropy (nats), shaded fully."""

    iteration: int
    count: int
    top: float
    rollouts: tuple[Sample, ...]


def read_samples(run: Path) -> Samples | str:
    """Samples of a run's last dumped iteration, or a sentence that says why there are none."""
    from ..logs.rollouts import load_rollouts

    files = [p for p in (run / "rollouts").glob("*.safetensors") if p.stem.isdigit()]
    if not files:
        return "No rollouts were dumped."
    newest = max(files, key=lambda p: int(p.stem))
    try:
        rollouts = load_rollouts(newest)
        if not _consistent(rollouts):
            raise ValueError
    except ValueError:
        return f"rollouts/{newest.name} is not a readable rollout file."
    top = float(rollouts.entropy.max()) if len(rollouts.entropy) else 0.0
    chosen = tuple(_sample(rollouts, i, top) for i in choose(rollouts))
    return Samples(rollouts.iteration, len(rollouts), top, chosen)


def _consistent(r: Rollouts) -> bool:
    B, n = len(r.completions), len(r.tokens)
    return (
        len(r.prompts) == B
        and all(len(t) == B for t in (r.rewards, r.group, r.finished, r.trained))
        and all(len(t) == n for t in (r.logp, r.entropy, r.advantage))
        and len(r.start) == B + 1
        and int(r.start[-1]) == n
        and bool((r.start.diff() >= 0).all())
    )


def choose(rollouts: Rollouts) -> list[int]:
    """Up to four right rollouts (reward of 1 or more), then up to four wrong ones.

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
    finished = bool(r.finished[i])
    texts = [r.pieces.get(token, "") for token in ids]
    body = texts[:-1] if finished else texts
    tokens = [
        Token(
            visible(text) or f"[{token}]",
            min(1.0, max(0.0, entropy / top)) if top > 0 else 0.0,
            f"log-prob {logp:.3f}, entropy {entropy:.3f}, advantage {advantage:+.3f}",
            finished and place == len(ids) - 1,
        )
        for place, (token, text, logp, entropy, advantage) in enumerate(
            zip(ids, texts, *values, strict=True)
        )
    ]
    whole = "".join(body) == r.completions[i] and len(tokens) <= TOKENS
    return Sample(
        prompt=shortened(r.prompts[i]),
        plain="" if whole else shortened(r.completions[i]),
        tokens=tuple(tokens[:TOKENS]),
        left_out=max(0, len(tokens) - TOKENS),
        reward=float(r.rewards[i]),
        right=bool(r.rewards[i] >= 1),
        finished=finished,
        trained=bool(r.trained[i]),
    )


def shortened(text: str) -> str:
    """The first characters of a long text, with a word on how many follow."""
    if len(text) <= CHARACTERS:
        return text
    return f"{text[:CHARACTERS]} [... {len(text) - CHARACTERS} more characters]"


def visible(text: str) -> str:
    """Line breaks get a sign before them: a shaded token has to be seen."""
    return text.replace("\n", "↵\n")
