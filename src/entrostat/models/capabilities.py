"""Tests a model's capabilities on a few short sequences; the model is not changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..core.stats import token_stats_from_logits
from ..errors import in_one_line
from .head import SMALLEST_VOCABULARY, LanguageHead, find_head
from .policy import Policy
from .prepacked import can_prepack
from .rollout import Sequences, sample

SMALL = 10_000_000  # parameters: below, products and attention do not dominate the cost
# what libraries raise on a model of unexpected structure
_CANNOT = (AttributeError, RuntimeError, ValueError, TypeError, IndexError)


@torch.no_grad()
def _agree(
    policy: Policy, one: Callable[[Sequences], Tensor], other: Callable[[Sequences], Tensor]
) -> bool:
    """Whether two computations agree on a few sequences; False if one raises."""
    few = probe(policy)
    try:
        a, b = one(few), other(few)
    except _CANNOT:
        return False
    return a.shape == b.shape and torch.allclose(a, b, atol=1e-3)


def known_head(policy: Policy) -> LanguageHead | None:
    """The model's head, if it is large and matches the model's configuration."""
    head = find_head(policy.model)
    if head is None or policy.model.get_output_embeddings().weight.shape[0] < SMALLEST_VOCABULARY:
        return None

    def figures(few: Sequences, logits: bool) -> Tensor:
        targets = few.completions[few.mask]
        if logits:
            stats = token_stats_from_logits(policy.padded(few), targets)
        else:
            stats = head.stats(policy.model, policy.hidden(few), targets, 1.0)
        return torch.stack([stats.logp, stats.entropy])

    same = _agree(policy, lambda few: figures(few, True), lambda few: figures(few, False))
    return head if same else None


def probe(policy: Policy) -> Sequences:
    """Four short sequences, two of one prompt, one of these truncated."""
    V = policy.model.config.get_text_config().vocab_size
    a, b, c, d = ([n % V for n in range(first, first + 9)] for first in (0, 9, 18, 27))
    prompts, completions = [a[:4], a[:4], c[1:4], d[1:4]], [a[4:], b[4:7], c[4:], d[4:]]
    return Sequences.ragged(prompts, completions, [0, 0, 1, 2], policy.pad, policy.device)


def can_share(policy: Policy, name: str) -> bool:
    reason = ""
    for share in (True, False):
        try:
            chance = torch.Generator(policy.device).manual_seed(0)
            _sampled(policy, 3, generator=chance, share=share)
        except _CANNOT as error:
            reason = in_one_line(error)[:300]
        else:
            return share
    raise ValueError(f"model {name!r}: cannot sample from it ({reason})")


def can_graph(policy: Policy) -> bool:
    if not policy.shares or not _attends_by_sdpa(policy, {"full_attention"}):
        return False
    chosen = torch.linspace(0.1, 0.9, 4 * 5, device=policy.device, dtype=torch.float64).view(4, 5)

    def decoded(graph: bool) -> Tensor:
        return _sampled(policy, 5, generator=chosen, graph=graph).sampler_logp

    return _agree(policy, lambda few: decoded(True), lambda few: decoded(False))


def can_pack(policy: Policy) -> bool:
    """Whether packed sequences give the same statistics as padded ones.

    Recurrent layers would mix neighbouring sequences. Sliding windows count places in the row, not
    position ids, so a packed sequence must not be longer than the window (`window`).
    """
    return _attends_by_sdpa(policy, {"full_attention", "sliding_attention"}) and _agree(
        policy, lambda few: _logp(policy.packed(few)), lambda few: _logp(policy.padded(few))
    )


def attends_rows(policy: Policy) -> bool:
    """Whether packed rows may attend by plain products: on a CPU, unless the model is small."""
    if not policy.packs or not _large_on_cpu(policy):
        return False
    rows = replace(policy, rows=True)
    return _agree(
        policy, lambda few: _logp(policy.packed(few)), lambda few: _logp(rows.packed(few))
    )


def prepacks(policy: Policy, precision: str) -> bool:
    """Whether sampling may multiply by reordered weights: on a CPU, unless the model is small."""
    return precision in ("fp32", "bf16") and _large_on_cpu(policy) and can_prepack()


def window(policy: Policy) -> int | None:
    """Length of the model's sliding windows in tokens; None without sliding windows."""
    settings = policy.model.config.get_text_config()
    kinds = getattr(settings, "layer_types", None)
    size = getattr(settings, "sliding_window", None)
    if size is None or not getattr(settings, "use_sliding_window", True):
        return None
    return None if kinds is not None and "sliding_attention" not in kinds else size


def _sampled(policy: Policy, tokens: int, **how: Any) -> Sequences:
    return sample(
        policy.model, [[1, 2], [1]], rollouts=2, max_new_tokens=tokens, eos=[], pad=0, **how
    )


def _attends_by_sdpa(policy: Policy, known: set[str]) -> bool:
    """Whether all layers are of known kinds and use torch's fused attention."""
    settings = policy.model.config.get_text_config()
    kinds = set(getattr(settings, "layer_types", None) or ["full_attention"])
    return settings._attn_implementation == "sdpa" and kinds <= known


def _logp(logits: Tensor) -> Tensor:
    return logits.float().log_softmax(-1)


def is_small(model: Any) -> bool:
    return sum(p.numel() for p in model.parameters()) < SMALL


def _large_on_cpu(policy: Policy) -> bool:
    return policy.device.type == "cpu" and not is_small(policy.model)
