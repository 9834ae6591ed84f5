"""Chooses this machine's fastest precision and threads, and checks that a run fits on it.

Precision and threads are measured once, when a run starts, and written into its configuration, so
that a resumed run computes as before.
"""

from __future__ import annotations

import shutil
import timeit
from collections.abc import Callable
from pathlib import Path

import torch

from .. import _processors
from .._launch import study_of
from .._text import Say
from ..config import TrainConfig
from ..core.stats.tiled import has_amx
from ..logs.files import in_bytes
from .capabilities import probe
from .loading import device_of
from .policy import Policy

_THREADS = torch.get_num_threads()  # the environment's number, before anything changes it
_SIZE = 512  # of the timed products: a small model's
_GAIN = 1.25  # bf16 costs accuracy, so it must be faster by this
_DUMPED = 40  # bytes of a token in a rollout dump


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
    """Seconds of a product of two [512, 512] matrices, the best of several tries."""
    a, b = torch.ones(_SIZE, _SIZE, dtype=dtype), torch.ones(_SIZE, _SIZE, dtype=dtype)
    return _fastest(lambda: a @ b, tries=20)


def choose_threads(config: TrainConfig, policy: Policy, small: bool, say: Say) -> None:
    """Set torch's threads: as configured, else one for a small model, else the fastest number.

    That number is written into the configuration. A study's training uses all threads that it was
    given. Measuring on a busy machine could choose fewer threads for one of its runs, whose sums
    would then round differently from those of the compared runs.
    """
    if not config.threads and not small and policy.device.type == "cpu":
        config.threads = _THREADS if study_of() is not None else _fastest_threads(policy, say)
    if config.threads or small:
        torch.set_num_threads(config.threads or 1)


def _fastest_threads(policy: Policy, say: Say) -> int:
    counts = sorted({2**i for i in range(_THREADS.bit_length())} | {_THREADS})
    seconds = {n: _pass_seconds(policy, n) for n in counts}
    fastest = min(counts, key=lambda n: seconds[n])
    measured = ", ".join(f"{n}: {1e3 * s:.0f} ms" for n, s in seconds.items())
    say(f"threads: {fastest}; a short pass of the model takes {measured}")
    return fastest


def _pass_seconds(policy: Policy, threads: int) -> float:
    torch.set_num_threads(threads)
    few = probe(policy)
    rows = torch.arange(len(few.tokens)).repeat(32)  # a few hundred tokens
    return _fastest(lambda: policy.measure(few[rows], 1.0, len(rows)), tries=3)


def _fastest(run: Callable[[], object], tries: int) -> float:
    run()
    return min(timeit.repeat(run, number=1, repeat=tries))


def check_room(
    policy: Policy, config: TrainConfig, new: int, output: Path, say: Say, *, reference: bool,
    second: bool,
) -> None:  # fmt: skip
    """Print a run's minimum memory and maximum disk space; raise if it cannot fit.

    `new` is the most tokens of a rollout. `reference`: whether a frozen copy of the model is kept.
    `second`: whether a copy of the trained weights is trained as well (PRIME).
    """
    every = sum(p.numel() * p.element_size() for p in policy.model.parameters())
    trained = sum(p.numel() * p.element_size() for p in policy.trained().values())
    copied = reference and not hasattr(policy.model, "disable_adapter")
    weights = every * (2 if copied else 1) + (trained if second else 0)
    optimizer = 3 * trained * (2 if second else 1)  # gradients and two moments
    free = free_memory(policy.device)
    say(
        f"memory: weights {in_bytes(weights)}, gradients and AdamW {in_bytes(optimizer)}; sampling "
        "and a micro-batch take more" + ("" if free is None else f"; {in_bytes(free)} free")
    )
    save = config.save
    dumps = config.iterations // save.rollouts_every if save.rollouts_every else 0
    disk = (max(1, save.checkpoints) + 1) * optimizer  # weights and two moments: as large
    disk += dumps * config.sampling.prompts * config.sampling.rollouts * new * _DUMPED
    disk += every * (3 if save.best else 1)  # the final model; the best, and one before it
    there = next(p for p in (output, *output.resolve().parents) if p.exists())
    # files already in the output that the run replaces
    kinds = ("checkpoints/*", "final/*", "rollouts/*")
    written = sum(p.stat().st_size for kind in kinds for p in output.glob(kind) if p.is_file())
    room = shutil.disk_usage(there).free + written
    say(f"disk: {in_bytes(disk)} at most; {in_bytes(room)} free")
    if disk > room:
        raise ValueError(
            f"output {str(output)!r}: the run may write {disk} bytes, {room} are free. "
            "Lower save.checkpoints, raise save.rollouts_every, or choose another --output"
        )
    if free is not None and optimizer > free:
        raise ValueError(
            f"not enough memory: gradients and AdamW's moments alone take {optimizer} bytes, "
            f"{free} are free. Train adapters (--lora.rank 16) or a smaller model"
        )


def free_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return _processors.free_memory()
