"""Statistics of an iteration's whole responses: calibration, diversity, difficulty.

Shapes: B rollouts, T completion tokens at most.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..core.batch import TokenBatch
from ..dynamics import prompt_covariance, terciles
from ..dynamics.tables import THIRDS, prompt_means
from ..evaluation.metrics import calibration, ngram_diversity, self_bleu


def of_responses(batch: TokenBatch, completions: Tensor) -> dict[str, dict[str, Any]]:
    """`calibration` (PAR 5.3) and `diversity` (PAR App. C.1) of responses, from token ids [B, T].

    `calibration` has the mean log-prob per token of right and wrong responses (nats), and their
    AUC; `diversity` distinct n-grams and Self-BLEU among a prompt's responses, means over prompts.
    Rewards may be NaN where unknown.
    """
    rewards, group = batch.need("rewards"), batch.need("group")
    some = (batch.lengths > 0) & ~rewards.isnan()
    mean = (batch.logp.double().sum(-1) / batch.lengths.clamp(min=1))[some].clamp(max=0)
    found = calibration(mean.tolist(), rewards[some].tolist(), bins=1)
    groups: dict[int, list[list[int]]] = {}
    rows = zip(group.tolist(), completions.tolist(), batch.mask.tolist(), strict=True)
    for g, ids, mask in rows:
        own = [token for token, keep in zip(ids, mask, strict=True) if keep]
        if own:
            groups.setdefault(g, []).append(own)
    ngrams = [ngram_diversity(own) for own in groups.values()]
    alike = [self_bleu(own) for own in groups.values() if len(own) > 1]
    return {
        "calibration": {
            "right": found.right_mean, "wrong": found.wrong_mean, "auc": float(found.auc)
        },
        "diversity": {
            "ngram": sum(ngrams) / len(ngrams) if ngrams else None,
            "self_bleu": sum(alike) / len(alike) if alike else None,
        },
    }  # fmt: skip


def by_difficulty(batch: TokenBatch) -> dict[str, Any]:
    """COV Eq. 7 of the trained prompts: the mean, and by thirds of difficulty (COV Fig. 12).

    Difficulty is the mean reward of a prompt's responses; prompts with one response are left out.
    """
    group = batch.need("group")
    cov = prompt_covariance(batch.logp, batch.need("advantages"), batch.mask, group)
    reward = prompt_means(batch.need("rewards"), group)
    known = cov.isfinite() & reward.isfinite()
    cov, reward = cov[known], reward[known]
    if not len(cov):
        return {}
    third = terciles(reward)
    members = {name: third == i for i, name in enumerate(THIRDS)}
    return {"mean": float(cov.mean())} | {
        name: {
            "prompts": int(some.sum()),
            "reward": float(reward[some].mean()),
            "cov": float(cov[some].mean()),
        }
        for name, some in members.items()
        if some.any()
    }
