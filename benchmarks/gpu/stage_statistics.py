"""Stages `accuracy` and `statistics`: token statistics beside peers.

Shapes: N tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

import importlib
from argparse import Namespace
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
from kit import Kit
from torch import Tensor

import token_stats as bench

CONTENDERS = ["entrostat", "entrostat + moments", "TRL", "Liger", "full logits"]
ASKED = {"forward": 1.15, "forward and backward": 1.25}


def run(kit: Kit) -> None:
    """One size timed beside peers, then tile sizes."""
    peers(kit)
    tiles(kit)


def accuracy(kit: Kit) -> None:
    """Errors against float64 on rows from flat to nearly certain (`token_stats.accuracy`)."""
    shrink = kit.size(1, 64)
    found = bench.accuracy(Namespace(shrink=shrink, verl_python=""), kit.device)
    for name in ("entrostat, tiled", "entrostat, plain"):
        if name not in found["errors"]:
            kit.row(
                f"errors on extreme rows: {name}", False, "1e-4", reason="it raised: see the log"
            )
    for name, errors in found["errors"].items():
        worst = {
            m: float(np.max(values)) for m, values in errors.items()
        }  # max() may pass over nan
        ok = max(worst.values()) <= 1e-4 if name.startswith("entrostat") else None
        kit.row(f"errors on extreme rows: {name}", ok, "1e-4" if ok is not None else "", **worst)


def cut_cross_entropy() -> bench.Stats:
    """cut-cross-entropy's loss: the log-prob alone, no entropy."""
    function = importlib.import_module("cut_cross_entropy").linear_cross_entropy

    def stats(hidden: Tensor, weight: Tensor, targets: Tensor) -> Sequence[Tensor]:
        return [-function(hidden, weight, targets, reduction="none")]

    return stats


def inputs_of(kit: Kit) -> tuple[Tensor, ...]:
    """The size that is timed: bf16 hidden states and head."""
    return bench.make_inputs(
        kit.size(16384, 64), kit.size(4096, 64), kit.size(151936, 2000), kit.device, torch.bfloat16
    )


def peers(kit: Kit) -> None:
    """Time over the bare matrix products, interleaved; memory beyond inputs and gradients."""
    inputs = inputs_of(kit)
    loaded: dict[str, Any] = bench.load(CONTENDERS)
    name = "cut-cross-entropy (log-prob only)"
    try:
        loaded[name] = cut_cross_entropy()
    except ImportError as error:
        kit.row(name, reason=str(error)[:120])
    for backward in (False, True):
        kind = "forward and backward" if backward else "forward"
        steps: dict[str, bench.Step] = {}
        memory: dict[str, float] = {}
        for name, stats in loaded.items():
            step = bench.make_step(name, stats, inputs, backward)
            try:
                step()  # compiles
                if kit.device == "cuda":
                    memory[name] = scratch(step, inputs, backward)
                steps[name] = step
            except Exception as error:  # a peer may not run on this device, or not fit
                if name.startswith("entrostat"):
                    raise
                kit.row(f"{kind}: {name}", reason=f"{type(error).__name__}: {str(error)[:120]}")
            empty(kit)
        products = bench.PRODUCTS[0]
        steps[products] = bench.make_step(products, None, inputs, backward)
        times = bench.interleave(steps, kit.size(8, 2))
        for name in sorted(times, key=lambda name: median(times[name])):
            one = bench.summary(times[name], times[products])
            mine = name == "entrostat" and not kit.tiny
            ok = one["ratio"] <= ASKED[kind] if mine else None
            kit.row(
                f"{kind}: {name}", ok, f"ratio {ASKED[kind]}" if mine else "",
                ms=one["median_ms"], min_ms=one["min_ms"], ratio=one["ratio"],
                **({"scratch_mb": memory[name]} if name in memory else {}),
            )  # fmt: skip
        del steps
        empty(kit)


def tiles(kit: Kit) -> None:
    """Ours by tile size beside the products; and a tile's product alone, into float32."""
    inputs = inputs_of(kit)
    forward = [(16384, 4096), (16384, 8448), (4096, 8448), (2048, 8448), (1024, 8448)]
    backward = [(16384, 4096), (16384, 8448), (8192, 8448), (16384, 16896), (8192, 16896)]
    if kit.tiny:
        forward = backward = [(32, 512), (64, 1000)]
    launches = [(4096, 8), (4096, 4), (4096, 16), (2048, 4), (2048, 8)]  # columns at once, warps
    products = bench.PRODUCTS[0]
    for kind, sizes in (("forward", forward), ("forward and backward", backward)):
        both = kind != "forward"
        steps = {
            "tile {} x {}".format(*size): bench.make_step(
                "entrostat", bench.ours(tile=size), inputs, both
            )
            for size in sizes
        }
        for block, warps in launches if kit.device == "cuda" else ():
            name = f"tile {sizes[1][0]} x {sizes[1][1]}, {block} columns by {warps} warps"
            ours = bench.make_step("entrostat", bench.ours(tile=sizes[1]), inputs, both)
            steps[name] = launched(ours, block, warps)
        for size in sizes[:3] if not both else ():
            for dtype in (torch.float32, torch.bfloat16):
                name = f"tile {size[0]} x {size[1]}, products alone into {str(dtype)[6:]}"
                steps[name] = alone(inputs, size, dtype)
        steps[products] = bench.make_step(products, None, inputs, both)
        times = bench.interleave(steps, kit.size(5, 2))
        for name, seconds in times.items():
            one = bench.summary(seconds, times[products])
            kit.row(
                f"{kind}, {name}", ms=one["median_ms"], min_ms=one["min_ms"], ratio=one["ratio"]
            )
        del steps
        empty(kit)


def launched(step: bench.Step, block: int, warps: int) -> bench.Step:
    """A step whose kernels hold so many columns at once, in so many warps."""
    fold_triton: Any = importlib.import_module("entrostat.core.stats.fold_triton")
    usual = fold_triton.BLOCK, fold_triton.WARPS

    def chosen() -> object:
        fold_triton.BLOCK, fold_triton.WARPS = block, warps
        try:
            return step()
        finally:
            fold_triton.BLOCK, fold_triton.WARPS = usual

    return chosen


def alone(inputs: tuple[Tensor, ...], size: tuple[int, int], dtype: torch.dtype) -> bench.Step:
    """All products of the forward pass in tiles of one dtype; no fold."""
    hidden, weight = (x.detach() for x in inputs[:2])
    like: Any = {"out_dtype": dtype} if hidden.is_cuda else {}

    def step() -> None:
        for columns in weight.split(size[1]):
            for rows in hidden.split(size[0]):
                torch.mm(rows, columns.t(), **like)

    return step


def scratch(step: bench.Step, inputs: tuple[Tensor, ...], backward: bool) -> float:
    """Peak GPU memory of a call beyond what was there and the gradients it returns, MB."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    given = sum(x.numel() * x.element_size() for x in inputs[:2]) if backward else 0
    return (torch.cuda.max_memory_allocated() - before - given) / 1e6


def empty(kit: Kit) -> None:
    """Give cached blocks back, so that one contender's do not crowd out the next."""
    if kit.device == "cuda":
        torch.cuda.empty_cache()
