"""An iteration's responses as wholes: whether right ones are likelier, and how they differ.

Shapes: B rollouts, T completion tokens at most.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...batch import TokenBatch
from ...evaluate.metrics import calibration, ngram_diversity, self_bleu


def of_responses(batch: TokenBatch, completions: Tensor) -> dict[str, dict[str, Any]]:
    """Figures of `calibration` (PAR 5.3) and of diversity (PAR App. C.1), by token ids.

    Args:
        batch: logp, mask, rewards and group of all rollouts.
        completions: [B, T] token ids.

    Returns:
        calibration: mean log-prob a token of right and wrong responses (nats), and their AUC;
        diversity: distinct n-grams and Self-BLEU among a prompt's responses, means over prompts.
    """
    assert batch.rewards is not None
    assert batch.group is not None
    some = batch.lengths > 0
    mean = (batch.logp.double().sum(-1) / batch.lengths.clamp(min=1))[some].clamp(max=0)
    found = calibration(mean.tolist(), batch.rewards[some].tolist(), bins=1)
    groups: dict[int, list[list[int]]] = {}
    rows = zip(batch.group.tolist(), completions.tolist(), batch.mask.tolist(), strict=True)
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
