"""How much of a small step of the weights bf16 shows: for a sampler in bf16 beside float32 weights.

    python benchmarks/bf16_step.py smollm2

An optimizer moves float32 weights by about its learning rate an update (Adam's first ones by just
that). A rollout engine, or a forward pass, in bf16 has these weights rounded to 8 bits, of which
most do not change at all and some by a whole unit. Over weights that lie anywhere the mean change
is the step. Over weights on a lattice it is not: those of a checkpoint in bf16 change hardly at
all, those that were dequantised, which often lie halfway between two numbers of bf16, many times as
much.

Printed, for steps of both signs and the matrices of a model, as they are, rounded to bf16, and
shifted off any lattice: the mean change in bf16, in steps; in brackets the share of the weights
that change.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from entrostat.model_files import find

STEPS = (1e-6, 4e-6, 1e-5, 4e-5, 1e-4)


def shown(weights: list[Tensor], step: float) -> tuple[float, float]:
    """Mean change in bf16 over the step's, and the share of the weights that change."""
    moved = changed = 0.0
    for sign in (-1, 1):
        for w in weights:
            change = (w + sign * step).bfloat16().double() - w.bfloat16().double()
            moved += sign * float(change.sum()) / step
            changed += int((change != 0).sum())
    count = 2 * sum(w.numel() for w in weights)
    return moved / count, changed / count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a name or a directory")
    model = AutoModelForCausalLM.from_pretrained(
        find(parser.parse_args().model), dtype=torch.float32, trust_remote_code=False
    )
    weights = [p.detach() for p in model.parameters() if p.ndim == 2]
    g = torch.Generator().manual_seed(0)
    kinds = {
        "as they are": weights,
        "rounded to bf16": [w.bfloat16().float() for w in weights],
        "off any lattice": [w * (1 + 0.01 * torch.rand(w.shape, generator=g)) for w in weights],
    }
    print(" | ".join(["step", *kinds]))
    for step in STEPS:
        cells = [f"{m:.2f} ({100 * s:.1f}%)" for m, s in (shown(w, step) for w in kinds.values())]
        print(" | ".join([f"{step:g}", *cells]), flush=True)


if __name__ == "__main__":
    main()
