"""What an iteration of the lab costs on a language model, part by part, beside its products.

One iteration of a job (`words` or `chat`, as in `lab_vs_trl.py`), each part run once to warm up and
once under torch's profiler. `products` is the time inside matrix products, `at peak` what their
operations would take at the rate of one large product of that precision on the same threads,
measured in the same process; `attention` is the fused kernel (packed rows attend by plain
products, which count as such); the rest is everything else: norms, activations, copies, the
optimizer, Python. The profiler itself costs some percent.

Example:
    python benchmarks/llm_cost.py --job chat --precision bf16
    python benchmarks/llm_cost.py --model gemma3-270m
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.profiler import ProfilerActivity, profile

from entrostat.config import from_dict
from entrostat.data.prompts import draw, encode, sampler_settings, stop_strings
from entrostat.models.loading import load_policy
from entrostat.models.rollout import Sequences, sample
from jobs import CHAT, WORDS

PRODUCTS = ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "aten::baddbmm")


def peak(dtype: torch.dtype) -> float:
    """Operations per second of a product [1024, 1024] x [1024, 1024], the best of twenty."""
    a, b = torch.ones(1024, 1024, dtype=dtype), torch.ones(1024, 1024, dtype=dtype)
    seconds = []
    for _ in range(20):
        began = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - began)
    return 2 * 1024**3 / min(seconds)


def main() -> None:
    """Profile the parts and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--job", choices=("words", "chat"), default="words")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    job = replace(WORDS if args.job == "words" else CHAT, model=args.model)
    torch.set_num_threads(args.threads)
    task = job.make_task()
    config = from_dict({
        "model": job.model, "precision": args.precision,
        "sampling": {"prompts": job.prompts, "rollouts": job.rollouts},
        "prompt": {"chat": getattr(task, "chat", None)},
        "optim": {"epochs": job.epochs, "minibatches": job.minibatches},
    })  # fmt: skip
    policy = load_policy(config)
    stop = stop_strings(task, config)
    prompts = encode(policy, config, draw(task, config, 1), job.new_tokens)
    optimizer = torch.optim.AdamW(policy.trained().values(), lr=1e-6, fused=True)
    rate = peak(torch.bfloat16 if args.precision == "bf16" else torch.float32)

    def sampled() -> Sequences:
        return sample(
            policy.model, prompts, rollouts=job.rollouts,
            generator=torch.Generator().manual_seed(0),
            **sampler_settings(policy, config, job.new_tokens, stop),
        )  # fmt: skip

    sequences = sampled()
    half = sequences[torch.randperm(job.batch)[: job.minibatch]]

    def update() -> None:
        optimizer.zero_grad(set_to_none=True)
        stats = policy.token_stats(half, 1.0)
        stats.logp.mean().backward()
        torch.nn.utils.clip_grad_norm_(policy.trained().values(), 1.0)
        optimizer.step()

    parts: dict[str, tuple[Callable[[], object], int]] = {
        "sample": (sampled, 1),
        "measure": (lambda: policy.measure(sequences, 1.0, job.minibatch), 1),
        "update": (update, job.updates),
    }
    tokens = int(sequences.mask.sum())
    print(
        f"{job.model}, {args.job}, {args.precision}, {args.threads} threads: {job.batch} rollouts, "
        f"{tokens} tokens, prompts of {max(map(len, prompts))}; a large product runs at "
        f"{rate / 1e9:.0f} GFLOP/s\n"
    )
    print("| part | times | seconds | under the profiler | products | at peak | attention | rest |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, (work, times) in parts.items():
        work()
        began = time.perf_counter()
        work()
        plain = time.perf_counter() - began
        with profile(activities=[ProfilerActivity.CPU], with_flops=True) as found:
            began = time.perf_counter()
            work()
            whole = time.perf_counter() - began
        events = found.key_averages()
        spent = [e.self_cpu_time_total / 1e6 for e in events if e.key in PRODUCTS]
        fused = [e.self_cpu_time_total / 1e6 for e in events if "scaled_dot_product" in e.key]
        flops = sum(e.flops for e in events if e.key in PRODUCTS)
        print(
            f"| {name} | {times} | {plain:.2f} | {whole:.2f} | {sum(spent):.2f} | "
            f"{flops / rate:.2f} | {sum(fused):.2f} | {whole - sum(spent) - sum(fused):.2f} |",
            flush=True,
        )
    print(f"\npeak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB")


if __name__ == "__main__":
    main()
