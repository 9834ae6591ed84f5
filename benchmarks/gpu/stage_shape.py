"""Stages `shape` and `pass`: the lab on a Llama of 0.5B parameters, random weights.

Shapes: B rollouts, T completion tokens.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from kit import Kit
from model import make_model
from torch import Tensor

from entrostat import config
from entrostat.config import TrainConfig
from entrostat.trainers.lab.experience import Sampled, Selection, measure, sample_rollouts, select
from entrostat.trainers.lab.state import State, build
from entrostat.trainers.lab.updates import update_policy
from jobs import Letters


@dataclass
class Timer:
    """Seconds and peak memory (bytes; 0 on a CPU) by part. Waits for the device around each."""

    device: str
    seconds: dict[str, float] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)

    def __call__(self, part: str, work: Callable[[], Any]) -> Any:
        """What `work` returns; its time is added to a part."""
        sync(self.device)
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        found = work()
        sync(self.device)
        self.seconds[part] = time.perf_counter() - began
        self.peak[part] = torch.cuda.max_memory_allocated() if self.device == "cuda" else 0
        return found


def sync(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def settings(kit: Kit, precision: Any) -> TrainConfig:
    """256 rollouts of 256 tokens, two updates."""
    return TrainConfig(
        method=["grpo_token"], model=str(make_model(kit)), iterations=3, device=kit.device,
        precision=precision, output=str(kit.output / f"shape-{precision}"),
        sampling=config.Sampling(
            prompts=kit.size(16, 2), rollouts=kit.size(16, 4),
            max_new_tokens=kit.size(256, 8), batch=256,
        ),
        optim=config.Optim(lr=1e-6, epochs=1, minibatches=2, micro_batch=kit.size(32, 4)),
        eval=config.Evaluation(prompts=0), save=config.Save(checkpoints=1),
    )  # fmt: skip


def shape(kit: Kit) -> None:
    """Tokens a second of sampling, measuring and updating; peak memory."""
    for precision in ("bf16", "fp16") if kit.device == "cuda" else ("bf16",):
        state = build(settings(kit, precision), Letters(), lambda text: None)
        timer, tokens, updated = Timer(kit.device), 0, {}
        with state.scorer:
            for iteration in range(1, kit.size(3, 2) + 1):  # the last one counts
                tokens, updated = iterate(state, iteration, timer)
        rates: dict[str, Any] = {f"{k}_tokens_a_s": tokens / s for k, s in timer.seconds.items()}
        kit.row(
            f"lab, 0.5B shape, {precision}", **rates,
            seconds_an_iteration=sum(timer.seconds.values()), tokens=tokens,
            skipped_updates=updated.get("optim/skipped", 0.0),
        )  # fmt: skip
        if kit.device == "cuda":
            peaks: dict[str, Any] = {f"peak_{k}_gb": v / 1e9 for k, v in timer.peak.items()}
            kit.row(f"memory, {precision}", peak_gb=max(peaks.values()), **peaks)
        if precision == "bf16":
            sampling(kit, state)
        del state
        gc.collect()
        if kit.device == "cuda":
            torch.cuda.empty_cache()


def iterate(state: State, iteration: int, timer: Timer) -> tuple[int, dict[str, float]]:
    """One iteration as the lab's loop makes it; tokens sampled, and the updates' figures."""
    sampled = timer("sample", lambda: sample_rollouts(state, iteration, lambda tokens: None))
    selection = timer("measure", lambda: prepared(state, sampled))
    figures = timer("update", lambda: update_policy(state, selection, None, iteration))
    return int(sampled.sequences.mask.sum()), figures


def prepared(state: State, sampled: Sampled) -> Selection:
    """Old policy and advantages; rewards are the letters' own."""
    examples = sampled.answers.of_rollouts(sampled.examples)
    pairs = zip(sampled.answers.texts, examples, strict=True)
    rewards = torch.tensor([state.task.score(text, example) for text, example in pairs])
    return select(state, sampled, measure(state, sampled, rewards))


def built(kit: Kit) -> tuple[State, Sampled]:
    """A policy and one iteration's rollouts."""
    state = build(settings(kit, "bf16"), Letters(), lambda text: None)
    return state, sample_rollouts(state, 1, lambda tokens: None)


# --- the thermostat's second backward pass


def extra_pass(kit: Kit) -> None:
    """An update as today, and with the gradient of the mean entropy, three ways; interleaved."""
    state, sampled = built(kit)
    selection = prepared(state, sampled)
    half = torch.arange(len(selection) // 2, device=state.policy.device)
    pieces = half.split(state.config.optim.micro_batch)
    parameters = list(state.policy.trained().values())
    terms = state.objective.plan(selection.batch[half], torch.Generator())

    def gradients(rows: Tensor, entropy: bool, policy: bool = True) -> None:
        stats = state.policy.token_stats(selection.sequences[rows], 1.0)
        batch = selection.batch[rows].replace(logp=stats.logp, entropy=stats.entropy)
        loss = state.objective.loss(batch, terms[rows]).loss
        if entropy:
            torch.autograd.grad(stats.entropy.sum(), parameters, retain_graph=policy)
        if policy:
            torch.autograd.grad(loss, parameters)

    def today() -> None:
        for rows in pieces:
            gradients(rows, entropy=False)

    def both() -> None:
        for rows in pieces:
            gradients(rows, entropy=True)

    def eighth() -> None:
        today()
        gradients(half[: max(1, len(half) // 8)], entropy=True, policy=False)

    moments = [[torch.zeros_like(p) for p in parameters] for _ in range(4)]

    def solved() -> None:
        g, h, m, v = moments
        for c in (0.0, 0.1, 0.2, 0.3):
            total = torch.zeros((), device=kit.device)
            for i in range(len(g)):
                grad = g[i] - c * h[i]
                step = (0.9 * m[i] + 0.1 * grad) / (
                    (0.999 * v[i] + 0.001 * grad.square()).sqrt() + 1e-8
                )
                total += (h[i] * step).sum()
            float(total)

    cases = {"today": today, "with the entropy's gradient": both,
             "with that of an eighth of the rollouts": eighth,
             "four evaluations of AdamW's step": solved}  # fmt: skip
    for work in cases.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(kit.size(4, 2)):
        for name, work in cases.items():
            timer = Timer(kit.device)
            timer(name, work)
            times[name].append(timer.seconds[name])
    for name, seconds in times.items():
        ratio = median(a / b for a, b in zip(seconds, times["today"], strict=True))
        kit.row(f"an update's gradients, {name}", ms=1e3 * median(seconds), ratio=ratio)


# --- where the time goes


def sampling(kit: Kit, state: State) -> None:
    """A step of sampling without and with CUDA graphs: launches, the device's share, kernels."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    settings, usual = state.config.sampling, state.policy.graphs
    new, count = settings.max_new_tokens, settings.prompts * settings.rollouts
    if kit.device == "cuda":
        kit.row("CUDA graphs give what decoding gives without", usual, "log-probs within 1e-3")
    for graphs in (False, True) if usual or kit.device == "cpu" else (False,):
        state.policy.graphs, settings.max_new_tokens = graphs, kit.size(64, 4)
        timer = Timer(kit.device)
        for name in ("warm-up", "alone"):
            timer(name, lambda: sample_rollouts(state, 2, lambda tokens: None))
        milliseconds = 1e3 * timer.seconds["alone"] / settings.max_new_tokens
        figures: dict[str, Any] = {}
        if kit.device == "cuda":
            settings.max_new_tokens = profiled = 16
            with profiler(activities=[ProfilerActivity.CUDA]) as found:
                sample_rollouts(state, 2, lambda tokens: None)
                sync(kit.device)
            figures = kernels(found.events(), profiled, milliseconds)
        kit.row(
            f"sampling {count} rollouts, {'with' if graphs else 'without'} CUDA graphs",
            ms_a_step=milliseconds, **figures,
        )  # fmt: skip
    state.policy.graphs, settings.max_new_tokens = usual, new


def kernels(events: Any, steps: int, milliseconds: float) -> dict[str, Any]:
    """What the device did: milliseconds and kernels a step, its share of a step, the largest."""
    by_name: dict[str, list[float]] = {}
    for event in events:
        if event.device_type.name == "CUDA":
            by_name.setdefault(event.name, []).append(event.time_range.elapsed_us() / 1e3)
    if not by_name:
        return {}
    totals = {name: sum(each) for name, each in by_name.items()}
    busy = sum(totals.values())
    largest = sorted(totals, key=lambda name: -totals[name])[:8]
    return {
        "device_ms_a_step": busy / steps, "kernels_a_step": sum(map(len, by_name.values())) / steps,
        "device_share": busy / steps / milliseconds,
        "largest": "; ".join(f"{totals[n] / steps:.3f} ms {n[:70]}" for n in largest),
    }  # fmt: skip
