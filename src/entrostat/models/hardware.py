"""What this machine is fastest with, half precision and threads, and the memory that a run needs.

Precision and threads are measured once, when a run starts, and written into its configuration: a
resumed run computes as it did before. What a token costs is asked of the model itself: a short pass
is traced for what autograd keeps, another for what the cache holds. Both grow linearly with the
places, so a few suffice.

Shapes: B rollouts, P prompt tokens at most, T completion tokens at most.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import _processors
from .._launch import study_of
from .._text import Say
from ..config import TrainConfig
from ..core.stats.tiled import has_amx
from ..logs.files import in_bytes
from .capabilities import probe
from .loading import device_of
from .policy import Policy
from .rollout import Sequences

_THREADS = torch.get_num_threads()  # what the environment allows, before anything changes it
_SIZE = 512  # of the products that are timed: a small model's
_GAIN = 1.25  # bf16 costs accuracy, so it must be faster by this
_LOGITS = 3  # [b, V] float32 tensors of a sampling step: the head's, exponentials, a copy
_TRIED = 2048  # completion tokens of a group that is tried: a second or two of a small model
_DUMPED = 40  # bytes of a token in a rollout dump
_FORETOLD = 11  # copies of what is trained that a forecast makes: three gradients a half, and sums


def choose_precision(config: TrainConfig, say: Say) -> None:
    """Replace precision "auto" by bf16 or fp32, by measurement on a CPU."""
    if config.precision != "auto":
        return
    if device_of(config.device).type == "cuda":
        good = torch.cuda.is_bf16_supported(including_emulation=False)
        config.precision = "bf16" if good else "fp32"
        say(f"precision: {config.precision}, by what the GPU supports")
        return
    single, half = product_seconds(torch.float32), product_seconds(torch.bfloat16)
    config.precision = "bf16" if single > _GAIN * half else "fp32"
    amx = "has" if has_amx() else "has no"
    say(
        f"precision: {config.precision}; the processor {amx} AMX, a product in bf16 takes "
        f"{half / single:.2f} of float32's time (measured)"
    )


def product_seconds(dtype: torch.dtype) -> float:
    """Seconds of a product of two [512, 512] matrices, the best of some tries."""
    a, b = torch.ones(_SIZE, _SIZE, dtype=dtype), torch.ones(_SIZE, _SIZE, dtype=dtype)
    return _fastest(lambda: a @ b, tries=20)


def choose_threads(config: TrainConfig, policy: Policy, small: bool, say: Say) -> None:
    """Set torch's threads: as configured, else one for a small model, else the fastest number.

    That number is written into the configuration. A training of a study takes all that it was
    given: a busy moment would choose fewer for one of its runs, whose sums then round otherwise
    than those of the runs that it is compared with.
    """
    if config.threads:
        torch.set_num_threads(config.threads)
        return
    if small:
        torch.set_num_threads(1)
        return
    if policy.device.type != "cpu":
        return
    if study_of() is not None:
        config.threads = _THREADS
        torch.set_num_threads(config.threads)
        return
    counts = sorted({2**i for i in range(_THREADS.bit_length())} | {_THREADS})
    seconds = {n: _pass_seconds(policy, n) for n in counts}
    config.threads = min(counts, key=lambda n: seconds[n])
    torch.set_num_threads(config.threads)
    measured = ", ".join(f"{n}: {1e3 * s:.0f} ms" for n, s in seconds.items())
    say(f"threads: {config.threads}; a short pass of the model takes {measured}")


def _pass_seconds(policy: Policy, threads: int) -> float:
    torch.set_num_threads(threads)
    few = probe(policy)
    rows = torch.arange(len(few.tokens)).repeat(32)  # a few hundred tokens
    return _fastest(lambda: policy.measure(few[rows], 1.0, len(rows)), tries=3)


def _fastest(run: Callable[[], object], tries: int) -> float:
    run()
    seconds = []
    for _ in range(tries):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes, where every rollout takes all its tokens."""

    # what the process holds beside the weights once the model has been tried: Python, torch, and
    # memory that its allocator keeps
    program: int
    weights: int  # the model's, its frozen reference's and a second model's
    optimizer: int  # gradients and AdamW's moments of what is trained, a second model too
    # what a micro-batch keeps for its backward pass, and gradients of head and embedding on their
    # way
    training: int
    sampling: int  # keys, values and logits of the sequences sampled at once, copies of the weights
    analysis: int  # copies that `--analyze`, or a method's influences, make; 0 without
    checkpoint: int  # one checkpoint's file
    disk: int  # all that the run writes
    device: torch.device  # where the memory is

    @property
    def memory(self) -> int:
        """At once: a run samples and trains in turn."""
        together = self.program + self.weights + self.optimizer
        return together + max(self.training + self.analysis, self.sampling)

    def check(self, output: Path, say: Say) -> None:
        there = next(p for p in (output, *output.resolve().parents) if p.exists())
        free = shutil.disk_usage(there).free + _written(output)
        memory, here = free_memory(self.device), self.program + self.weights
        say(
            f"memory: about {in_bytes(self.memory)} (the program {in_bytes(self.program)}, "
            f"weights {in_bytes(self.weights)}, gradients and AdamW {in_bytes(self.optimizer)}, a "
            f"micro-batch {in_bytes(self.training)}, sampling {in_bytes(self.sampling)})"
            + ("" if memory is None else f"; {in_bytes(memory + here)} free")
        )
        say(f"disk: {in_bytes(self.disk)} at most; {in_bytes(free)} free")
        if self.disk > free:
            raise ValueError(
                f"output {str(output)!r}: the run may write {self.disk} bytes, {free} are free. "
                "Lower save.checkpoints, raise save.rollouts_every, or choose another --output"
            )
        if memory is None:
            return
        if self.optimizer > memory:
            raise ValueError(
                f"not enough memory: gradients and AdamW's moments alone take {self.optimizer} "
                f"bytes, {memory} are free. Train adapters (--lora.rank 16) or a smaller model"
            )
        if self.memory - here > memory:
            say(
                f"warning: memory may not suffice: {self.memory - here} bytes more may be "
                f"needed, {memory} are free. Lower optim.micro_batch or sampling.batch, or use "
                "--gradient-checkpointing true"
            )


def estimate_memory(
    policy: Policy, config: TrainConfig, prompt: int, new: int, reference: bool,
    second: bool = False, influences: bool = False,
) -> MemoryEstimate:  # fmt: skip
    """What a run of P = `prompt` and T = `new` tokens will need.

    `reference` is a frozen copy of the model, `second` a copy of all that is trained (PRIME);
    `influences` are measured at every update, as an analysis does.
    """
    every = sum(p.numel() * p.element_size() for p in policy.model.parameters())
    trained = sum(p.numel() * p.element_size() for p in policy.trained().values())
    copied = reference and not hasattr(policy.model, "disable_adapter")
    models = 2 if second else 1  # that are trained
    half = every // 2 if policy.half is not None else 0
    laid_out = (half or every) if policy.prepacks else 0
    K = config.sampling.rollouts
    B = config.sampling.prompts * K
    rows = min(config.optim.micro_batch, math.ceil(B / config.optim.minibatches))
    fixed = _kept(policy, rows, K, prompt, new)
    head = policy.model.get_output_embeddings().weight
    fixed += 2 * head.numel() * head.element_size()
    # training samples, and evaluation
    kinds = [(B, K), *((one.prompts * one.samples, one.samples) for one in config.eval.resolved)]
    at_once = max(min(n, max(1, config.sampling.batch // k) * k) for n, k in kinds)
    V = policy.model.config.get_text_config().vocab_size
    checkpoint = 3 * trained * models
    dumps = config.iterations // config.save.rollouts_every if config.save.rollouts_every else 0
    return MemoryEstimate(
        program=max(0, _resident() - every) if policy.device.type == "cpu" else 0,
        weights=every * (2 if copied else 1) + (models - 1) * trained,
        optimizer=3 * trained * models,
        training=fixed,
        sampling=half + laid_out + at_once * ((prompt + new) * _cached(policy) + 4 * V * _LOGITS),
        analysis=trained
        * max(
            3 if config.analyze.every or influences else 0,
            _FORETOLD if config.forecast.every else 0,
        ),
        checkpoint=checkpoint,
        disk=(max(1, config.save.checkpoints) + 1) * checkpoint
        + dumps * B * new * _DUMPED
        + every * (3 if config.save.best else 1),  # the final model; the best, and one before it
        device=policy.device,
    )


def _kept(policy: Policy, rows: int, K: int, prompt: int, new: int) -> int:
    """Bytes that autograd keeps of a micro-batch: measured on one and on two of its groups."""
    groups = math.ceil(rows / K)
    tried = min(new, max(16, _TRIED // min(rows, K)))  # long completions: in proportion
    small = _saved(policy, _full(policy, min(rows, K), K, prompt, tried))
    if groups > 1:
        large = _saved(policy, _full(policy, 2 * K, K, prompt, tried))
        small += (groups - 1) * max(0, large - small)
    return small * (prompt + new) // (prompt + tried)


def _full(policy: Policy, rows: int, K: int, prompt: int, new: int) -> Sequences:
    V = policy.model.config.get_text_config().vocab_size
    device = policy.device
    tokens = torch.arange(rows * (prompt + new), device=device).view(rows, -1) % V
    mask = torch.ones((rows, new), dtype=torch.bool, device=device)
    return Sequences(
        tokens, torch.ones_like(tokens), prompt, mask, torch.zeros((rows, new), device=device),
        mask[:, 0], torch.arange(rows, device=device) // K,
    )  # fmt: skip


def _saved(policy: Policy, sequences: Sequences) -> int:
    own = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}
    kept: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return x.detach()  # else a node that saves its own output is never freed

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        stats = policy.token_stats(sequences, 1.0)
        total = sum(kept.values())
    del stats
    return total


@torch.no_grad()
def _cached(policy: Policy) -> int:
    """Bytes of a place in the key-value cache; 0 where a model keeps none that can be read."""
    ids = torch.ones((1, 8), dtype=torch.int64, device=policy.device)
    with policy.autocast():
        cache: Any = policy.model(input_ids=ids, use_cache=True).past_key_values
    tensors = [
        x for layer in getattr(cache, "layers", ())
        for x in (getattr(layer, "keys", None), getattr(layer, "values", None))
        if isinstance(x, Tensor)
    ]  # fmt: skip
    return sum(x.numel() * x.element_size() for x in tensors) // 8


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be taken; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return _processors.free_memory()


def _resident() -> int:
    """Bytes of memory that this process holds; 0 where the system does not say."""
    return _processors.kilobytes(Path("/proc/self/status"), "VmRSS:") or 0


def _written(output: Path) -> int:
    """Bytes that the run has there already, which it replaces."""
    kinds = ("checkpoints/*", "final/*", "rollouts/*")
    return sum(p.stat().st_size for kind in kinds for p in output.glob(kind) if p.is_file())
