"""What a model can do, asked of the model itself on a few short sequences; nothing is changed.

Shapes: V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ..core.stats import token_stats_from_logits
from ..errors import in_one_line
from .head import SMALLEST_VOCABULARY, LanguageHead, find_head
from .prepacked import can_prepack
from .rollout import Sequences, sample

if TYPE_CHECKING:
    from .policy import Policy

SMALL = 10_000_000  # parameters: below, other costs than products and attention decide


@torch.no_grad()
def known_head(policy: Policy) -> LanguageHead | None:
    """The model's head, if it is large and computes what its configuration says."""
    head = find_head(policy.model)
    if head is None or policy.model.get_output_embeddings().weight.shape[0] < SMALLEST_VOCABULARY:
        return None
    few = probe(policy)
    targets = few.completions[few.mask]
    try:
        plain = token_stats_from_logits(policy.padded(few), targets)
        stats = head.stats(policy.model, policy.hidden(few), targets, 1.0)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return None
    same = all(
        torch.allclose(a, b, atol=1e-3)
        for a, b in ((plain.logp, stats.logp), (plain.entropy, stats.entropy))
    )
    return head if same else None


def probe(policy: Policy) -> Sequences:
    """Four short sequences, two of one prompt, one of these cut short."""
    V = policy.model.config.get_text_config().vocab_size
    ids = torch.arange(4 * 9, device=policy.device).view(4, 9) % V
    ids[1, :4] = ids[0, :4]
    attention = torch.ones_like(ids)
    attention[2:, 0] = 0
    attention[1, 7:] = 0
    return Sequences(
        ids, attention, 4, attention[:, 4:].bool(), torch.zeros(4, 5, device=policy.device),
        torch.ones(4, dtype=torch.bool, device=policy.device),
        torch.tensor([0, 0, 1, 2], device=policy.device),
    )  # fmt: skip


def can_share(policy: Policy, name: str) -> bool:
    """Whether sampling may branch the model's cache from a prompt to its rollouts."""
    reason = ""
    for share in (True, False):
        try:
            sample(
                policy.model, [[1, 2], [1]], rollouts=2, max_new_tokens=3, eos=[], pad=0,
                generator=torch.Generator(policy.device).manual_seed(0), share=share,
            )  # fmt: skip
        except (AttributeError, RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            reason = in_one_line(error)[:300]
        else:
            return share
    raise ValueError(f"model {name!r}: cannot sample from it ({reason})")


def can_graph(policy: Policy) -> bool:
    """Whether decoding with CUDA graphs (`graphed`) gives what decoding without gives."""
    settings = policy.model.config.get_text_config()
    kinds = set(getattr(settings, "layer_types", None) or ["full_attention"])
    if not policy.shares or settings._attn_implementation != "sdpa" or kinds != {"full_attention"}:
        return False
    chosen = torch.linspace(0.1, 0.9, 4 * 5, device=policy.device, dtype=torch.float64).view(4, 5)
    try:
        with_graph, without = (
            sample(
                policy.model, [[1, 2], [1]], rollouts=2, max_new_tokens=5, eos=[], pad=0,
                generator=chosen, graph=graph,
            ).sampler_logp
            for graph in (True, False)
        )  # fmt: skip
    except (AttributeError, RuntimeError, ValueError, TypeError, NotImplementedError, IndexError):
        return False
    return torch.allclose(with_graph, without, atol=1e-3)


@torch.no_grad()
def can_pack(policy: Policy) -> bool:
    """Whether packed sequences give what padded ones do: asked of the model itself.

    Recurrent layers would mix neighbours. Sliding windows count places, not positions, so they see
    a sequence whole only where it is not longer than the window (`window`).
    """
    settings = policy.model.config.get_text_config()
    kinds = set(getattr(settings, "layer_types", None) or ["full_attention"])
    known = {"full_attention", "sliding_attention"}
    if settings._attn_implementation != "sdpa" or not kinds <= known:
        return False
    few = probe(policy)
    try:
        packed, padded = policy.packed(few).float(), policy.padded(few).float()
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return False
    return packed.shape == padded.shape and torch.allclose(
        packed.log_softmax(-1), padded.log_softmax(-1), atol=1e-3
    )


@torch.no_grad()
def attends_rows(policy: Policy) -> bool:
    """Whether packed rows may attend by plain products: on a CPU, in a model where that pays."""
    if not policy.packs or not _large_on_cpu(policy):
        return False
    few = probe(policy)
    fused = policy.packed(few)
    try:
        plain = replace(policy, rows=True).packed(few)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return False
    return torch.allclose(fused.log_softmax(-1), plain.log_softmax(-1), atol=1e-3)


def prepacks(policy: Policy, precision: str) -> bool:
    """Whether sampling may multiply by reordered weights: on a CPU, in a model where that pays."""
    return precision in ("fp32", "bf16") and _large_on_cpu(policy) and can_prepack()


def _large_on_cpu(policy: Policy) -> bool:
    size = sum(p.numel() for p in policy.model.parameters())
    return policy.device.type == "cpu" and size >= SMALL


def window(policy: Policy) -> int | None:
    """Tokens that the model's sliding windows hold; None where it has none."""
    settings = policy.model.config.get_text_config()
    kinds = getattr(settings, "layer_types", None)
    size = getattr(settings, "sliding_window", None)
    if size is None or not getattr(settings, "use_sliding_window", True):
        return None
    return None if kinds is not None and "sliding_attention" not in kinds else size
