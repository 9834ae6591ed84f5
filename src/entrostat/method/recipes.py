"""Named algorithms: an advantage estimator, methods and an aggregation, as in their papers.

A name is the algorithm of its paper. REPO prints 1/|tau| per sequence for its PPO family and a mean
over sequences for GSPO, as GRPO's and GSPO's own papers do: `seq_mean_token_mean`. COV, OPEFO,
STEER and PAR average over all tokens: `token_mean`. The user's settings override a recipe's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.loss import Aggregation
from .base import Default


@dataclass(frozen=True)
class Recipe:
    """A named algorithm."""

    summary: str  # one line
    paper: str  # short name of the source, with its section
    advantage: str  # name of the estimator
    # methods by name, surrogate first, each with the parameters that differ from its defaults
    chain: tuple[tuple[str, Mapping[str, Any]], ...]
    aggregation: Aggregation = "token_mean"
    baseline: str = ""  # the recipe that differs in the intervention alone; "" for none


def _clip(
    summary: str,
    paper: str,
    low: float | None,
    high: float | None,
    advantage: str = "grpo",
    aggregation: Aggregation = "token_mean",
) -> Recipe:
    chain = (("ppo", {"low": low, "high": high}),)
    return Recipe(summary, paper, advantage, chain, aggregation)


_SEQUENCES: Aggregation = "seq_mean_token_mean"

# ADAPO's range [.2, .3] around DAPO's .28, scaled to GSPO's 4e-4
_GSPO_ADAPO = {
    "ratio": "sequence", "low": 3e-4, "high": 4e-4,
    "high_min": Default(4e-4 * 0.2 / 0.28), "high_max": Default(4e-4 * 0.3 / 0.28),
}  # fmt: skip

RECIPES: dict[str, Recipe] = {
    "rloo": Recipe(
        "RLOO: REINFORCE with the leave-one-out advantage, strictly on-policy.", "REPO 2, 4",
        "rloo", (("reinforce", {}),), _SEQUENCES,
    ),
    "grpo": _clip(
        "GRPO: normalised group advantage, clip (.2, .2), mean over sequences of their means.",
        "REPO 2, 4", 0.2, 0.2, aggregation=_SEQUENCES,
    ),
    "grpo_token": _clip(
        "GRPO with the mean over all tokens, as COV, OPEFO, STEER and PAR run it.",
        "STEER Eq. 1, PAR Eq. 6", 0.2, 0.2,
    ),
    "dr_grpo": _clip(
        "Dr. GRPO: neither the deviation of rewards nor a rollout's own length divides.",
        "arXiv 2503.20783", 0.2, 0.2, "dr_grpo", "seq_mean_token_sum_norm",
    ),
    "loop": _clip("LOOP: leave-one-out advantage, clip (.2, .2).", "REPO 4", 0.2, 0.2, "rloo",
                  _SEQUENCES),
    "loop_tight": _clip("LOOP with REPO App. B's clip (.1, .1).", "REPO App. B", 0.1, 0.1, "rloo",
                        _SEQUENCES),
    "loop_token": _clip("LOOP with the mean over all tokens: the baseline of PRIME and of COV.",
                        "COV B.4 (RLOO)", 0.2, 0.2, "rloo"),
    "dapo": _clip("DAPO as REPO runs it: LOOP with the clip (.2, .28).", "REPO 4", 0.2, 0.28,
                  "rloo", _SEQUENCES),
    "clip_higher": _clip("GRPO with the clip raised above: (.2, .28).", "PAR 6", 0.2, 0.28),
    "clip_lower": _clip("GRPO with the clip widened below: (.28, .2).", "PAR 6", 0.28, 0.2),
    "clip_tighter": _clip("GRPO with the clip tightened below: (.12, .2).", "PAR 6", 0.12, 0.2),
    "clip_free": _clip("GRPO's ratio without any clip.", "PAR 6", None, None),
    "clip_wide": _clip("GRPO with the wide clip (1, 1) under Clip-Cov.", "COV 4.1", 1.0, 1.0),
    "extreme": _clip("GRPO with an extremely wide clip: (.99, 5).", "STEER 6", 0.99, 5.0),
    "h_bonus": Recipe(
        # footnote 3, "the same adaptive algorithm as REPO-D"; that its range is meant: our reading
        "DAPO with an entropy bonus that REPO-D's controller moves, in REPO-D's range.",
        "REPO 5.1, Fig. 3",
        "rloo",
        (("ppo", {"low": 0.2, "high": 0.28}), ("entropy_bonus", {"controller": "doubling"})),
        _SEQUENCES, "dapo",
    ),
    "gspo_repo_r": Recipe(
        "REPO-R over GSPO's sequence ratio.", "REPO 4", "rloo", (("gspo", {}), ("repo_r", {})),
        _SEQUENCES, "gspo",
    ),
    "gspo_repo_d": Recipe(
        "REPO-D over GSPO's sequence ratio.", "REPO 4", "rloo", (("gspo", {}), ("repo_d", {})),
        _SEQUENCES, "gspo",
    ),
    "gspo_adapo": Recipe(
        "ADAPO over GSPO's sequence ratio.", "REPO App. B", "rloo", (("adapo", _GSPO_ADAPO),),
        _SEQUENCES, "gspo",
    ),
}  # fmt: skip
