"""Seconds of one GRPO iteration: entrostat's lab against TRL 1.16's GRPOTrainer, the same job.

The job is the demo's: the shipped tiny policy on `target_sum`, 32 prompts x 8 rollouts, at most 13
new tokens at temperature 1, then 2 epochs of 2 minibatches of 128 rollouts: 4 AdamW updates.
float32, CPU, one thread each, the same prompts in the same order, no network.

TRL is set up as fast as its settings allow: in-process `generate` with a KV cache for all 256
rollouts at once, sdpa attention, fused AdamW, no logging, saving, progress bar, NaN filter or
loader process, a data set of nothing but prompts. (A static cache, eager attention: no clear
difference; continuous batching: more than ten times slower on a CPU. TRL's vocabulary tile of
32768, a private constant, costs it about a tenth with these 15 tokens; no setting reaches it.)
`loss_type="bnpo"` because it divides by the tokens of the minibatch, the lab's token mean; TRL's
default, "dapo", divides by half the tokens of the generation batch. The run asserts that a TRL
iteration is one call for 256 rewards, then four times a loss on 128 rollouts and an update.

What is not the same, by each side's design:
- The lab leaves out groups whose rewards are all equal, TRL trains on them with advantage 0. The
  table gives their share, the tokens in the updates, and an upper estimate of the lab's time
  without that saving: its update time multiplied by all groups / kept groups.
- The lab runs with what it does by default: exact entropies, all metrics, a dump of every rollout
  token and a checkpoint every iteration. TRL keeps its metrics and writes nothing.
- The lab cuts new minibatches every epoch, TRL uses the same two halves in both.
- GRPO's 1e-6 under the fraction is 1e-4 in TRL. Samples differ, so rewards agree up to noise; on
  both sides they dip at first (Adam's first steps) and have recovered after about 10 iterations.

Time is wall clock from the end of one iteration to the end of the next, everything in between
included. Rounds are interleaved (lab, TRL, lab, TRL, ...), a fresh process each, the round's number
as seed.

Example:
    python benchmarks/lab_vs_trl.py --rounds 5 --iterations 10 --json lab_vs_trl.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

TRL = "1.16.0"
WARM_UP = 2
PROMPTS, ROLLOUTS, NEW_TOKENS, EPOCHS, MINIBATCHES = 32, 8, 13, 2, 2
BATCH, UPDATES = PROMPTS * ROLLOUTS, EPOCHS * MINIBATCHES
THREADS = {
    "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}  # fmt: skip
OFFLINE = {
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1", "CUDA_VISIBLE_DEVICES": "",
}  # fmt: skip


def between(ends: list[float]) -> list[float]:
    """Seconds of each counted iteration, from the moments at which all of them ended."""
    return [end - begin for begin, end in pairwise(ends[WARM_UP - 1 :])]


def run_lab(iterations: int, seed: int, directory: Path) -> dict[str, Any]:
    """Train in the lab; seconds of the counted iterations, other figures of all."""
    import torch

    from entrostat import config, load_rollouts, train
    from entrostat.hosts.lab.progress import Progress

    times: list[float] = []
    rows: list[dict[str, Any]] = []

    class Stamps(Progress):
        def iteration(self, iteration: int, metrics: dict[str, Any]) -> None:
            times.append(time.perf_counter())
            rows.append(metrics)

    settings = config.TrainConfig(
        method=["grpo"], task={"name": "target_sum", "seed": 0}, model=config.TINY,
        iterations=iterations, seed=seed, output=str(directory / "run"), device="cpu",
        precision="fp32", threads=1,
        sampling=config.Sampling(
            prompts=PROMPTS, rollouts=ROLLOUTS, max_new_tokens=NEW_TOKENS, temperature=1.0,
            top_p=1.0, batch=BATCH,
        ),
        optim=config.Optim(
            lr=3e-4, betas=(0.9, 0.95), weight_decay=0.0, clip=1.0, epochs=EPOCHS,
            minibatches=MINIBATCHES, micro_batch=BATCH // MINIBATCHES, aggregation="token_mean",
        ),
        eval=config.Evaluation(prompts=0),
        save=config.Save(checkpoint_every=1, rollouts_every=1),
    )  # fmt: skip
    run = train(settings, progress=Stamps())
    dumps = [load_rollouts(run, i + 1) for i in range(iterations)]
    lengths = [dump.start.diff() for dump in dumps]
    assert [len(dump) for dump in dumps] == [BATCH] * iterations
    assert [row["optim/updates"] for row in rows] == [UPDATES] * iterations
    assert torch.get_num_threads() == 1
    equal = [row["rollout/zero_advantage_groups"] / PROMPTS for row in rows]
    trained = EPOCHS * mean(int(n[d.trained].sum()) for n, d in zip(lengths, dumps, strict=True))
    saved = [row["time/update"] * e / (1 - e) for row, e in zip(rows, equal, strict=True)]
    return {
        "seconds": between(times),
        "seconds_all_groups": [
            a + b for a, b in zip(between(times), saved[WARM_UP:], strict=True)
        ],
        "parts": {
            part: median(row[f"time/{part}"] for row in rows[WARM_UP:])
            for part in ("sample", "score", "measure", "update")
        },
        "tokens": mean(int(n.sum()) for n in lengths), "trained": trained, "signal": trained,
        "equal": mean(equal),
        "rewards": [row["reward/mean"] for row in rows],
        "entropy": mean(row["entropy/exact"] for row in rows),
        "loss": mean(row["loss/policy"] for row in rows),
    }  # fmt: skip


def run_trl(iterations: int, seed: int, directory: Path) -> dict[str, Any]:
    """Train in TRL; seconds of the counted iterations, other figures of all."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from entrostat import make_task
    from entrostat.hosts.lab.policy import tiny_directory

    torch.set_num_threads(1)
    task = make_task("target_sum", seed=0)
    examples = [task.example(i, "train") for i in range(PROMPTS * iterations)]
    events: list[str] = []
    times: list[float] = []
    rewards: list[list[Any]] = []
    lengths: list[list[int]] = []

    def reward(prompts: Any, completions: Any, completion_ids: Any, **_: Any) -> list[float | None]:
        first = PROMPTS * len(rewards)
        batch = [e for e in examples[first : first + PROMPTS] for _ in range(ROLLOUTS)]
        assert prompts == [e.prompt for e in batch], "not the lab's prompts, each in a group"
        events.append(f"rewards {len(completions)}")
        rewards.append([task.score(text, e) for text, e in zip(completions, batch, strict=True)])
        lengths.append([len(ids) for ids in completion_ids])
        return rewards[-1]

    class Counted(GRPOTrainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            events.append(f"loss {len(inputs['completion_ids'])}")
            return super().compute_loss(model, inputs, *args, **kwargs)

    class Stamps(TrainerCallback):
        def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            events.append("update")

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % UPDATES == 0:
                times.append(time.perf_counter())

    model: Any = AutoModelForCausalLM.from_pretrained(tiny_directory(), dtype=torch.float32)
    settings = GRPOConfig(
        output_dir=str(directory), seed=seed, use_cpu=True, bf16=False,
        gradient_checkpointing=False,
        # 256 rollouts at once, for 2 x 2 updates on 128 of them
        num_generations=ROLLOUTS, per_device_train_batch_size=BATCH // MINIBATCHES,
        gradient_accumulation_steps=1, steps_per_generation=MINIBATCHES, num_iterations=EPOCHS,
        max_steps=UPDATES * iterations, shuffle_dataset=False,
        max_completion_length=NEW_TOKENS, temperature=1.0, top_p=1.0, top_k=0,
        generation_kwargs={"use_cache": True},
        loss_type="bnpo", scale_rewards="group", epsilon=0.2, epsilon_high=0.2, beta=0.0,
        learning_rate=3e-4, lr_scheduler_type="constant", warmup_steps=0, adam_beta1=0.9,
        adam_beta2=0.95, weight_decay=0.0, max_grad_norm=1.0, optim="adamw_torch_fused",
        report_to="none", disable_tqdm=True, logging_strategy="no", logging_nan_inf_filter=False,
        log_completions=False, save_strategy="no", eval_strategy="no", remove_unused_columns=True,
        dataloader_num_workers=0, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Counted(
        model=model, reward_funcs=reward, args=settings, callbacks=[Stamps()],
        train_dataset=Dataset.from_dict({"prompt": [example.prompt for example in examples]}),
        processing_class=AutoTokenizer.from_pretrained(tiny_directory()),
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    one = [f"rewards {BATCH}", *[f"loss {BATCH // MINIBATCHES}", "update"] * UPDATES]
    assert events == one * iterations, f"an iteration should be {one}: {events[:20]}"
    assert torch.get_num_threads() == 1
    assert {(p.dtype, p.device.type) for p in model.parameters()} == {(torch.float32, "cpu")}
    assert model.config._attn_implementation == "sdpa"
    logged = trainer.state.log_history[-1]
    means = [mean(row) for row in rewards]
    assert abs(logged["reward"] - mean(means)) < 1e-5, "TRL saw other rewards"
    equal = [[len({*r[i : i + ROLLOUTS]}) == 1 for i in range(0, BATCH, ROLLOUTS)] for r in rewards]
    tokens = mean(sum(row) for row in lengths)
    signal = mean(
        sum(n for i, n in enumerate(row) if not flat[i // ROLLOUTS])
        for row, flat in zip(lengths, equal, strict=True)
    )
    return {
        "seconds": between(times),
        "tokens": tokens, "trained": EPOCHS * tokens, "signal": EPOCHS * signal,
        "equal": mean(mean(flat) for flat in equal),
        "rewards": means, "entropy": logged["entropy"], "loss": logged["train_loss"],
    }  # fmt: skip


SIDES = {"lab": run_lab, "trl": run_trl}


def child(side: str, seed: int, iterations: int) -> dict[str, Any]:
    """One side of a round in a process of its own; exits with its error where it fails."""
    command = [sys.executable, __file__, "--side", side, "--seed", f"{seed}"]
    command += ["--iterations", f"{iterations}"]
    environment = os.environ | THREADS | OFFLINE
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"round {seed + 1}, {side} failed ({done.returncode}):\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def table(rounds: list[dict[str, dict[str, Any]]]) -> str:
    """The comparison."""
    lines = [f"{'seconds an iteration':32}  median     min     max"]
    pooled: dict[str, float] = {}
    for name, side, key in (
        ("lab", "lab", "seconds"),
        ("TRL", "trl", "seconds"),
        ("lab, were all groups kept (<=)", "lab", "seconds_all_groups"),
    ):
        every = [value for one in rounds for value in one[side][key]]
        pooled[name] = median(every)
        lines += [f"{name:32}{median(every):8.3f}{min(every):8.3f}{max(every):8.3f}"]
    for name, top, key in (
        ("ratio lab / TRL", "lab", "seconds"),
        ("the same, were all groups kept", "lab, were all groups kept (<=)", "seconds_all_groups"),
    ):
        each = [median(one["lab"][key]) / median(one["trl"]["seconds"]) for one in rounds]
        lines += [
            f"{name:32}{pooled[top] / pooled['TRL']:8.3f}   by round: median {median(each):.3f}, "
            f"{min(each):.3f} to {max(each):.3f} ({' '.join(f'{x:.3f}' for x in each)})"
        ]
    parts = {p: median(one["lab"]["parts"][p] for one in rounds) for p in rounds[0]["lab"]["parts"]}
    lines += ["lab's own clock: " + ", ".join(f"{p} {s:.4f}" for p, s in parts.items()), ""]
    lines += [f"{'means over all iterations':32}     lab     TRL"]
    rows: dict[str, tuple[str, Callable[[dict[str, Any]], float]]] = {
        "tokens sampled": (".0f", lambda side: side["tokens"]),
        "tokens in the 4 updates": (".0f", lambda side: side["trained"]),
        "  with an advantage": (".0f", lambda side: side["signal"]),
        "groups of equal rewards": (".1%", lambda side: side["equal"]),
        "reward": (".3f", lambda side: mean(side["rewards"])),
        "  first iteration": (".3f", lambda side: side["rewards"][0]),
        "  last iteration": (".3f", lambda side: side["rewards"][-1]),
        "entropy (TRL: during updates)": (".3f", lambda side: side["entropy"]),
        "loss": (".4f", lambda side: side["loss"]),
    }
    for name, (form, figure) in rows.items():
        values = [mean(figure(one[side]) for one in rounds) for side in SIDES]
        lines += [f"{name:32}" + "".join(f"{value:>8{form}}" for value in values)]
    return "\n".join(lines)


def about() -> dict[str, str]:
    """Command, versions, machine and threads."""
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        info = []
    names = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    packages = ("torch", "transformers", "trl", "accelerate", "entrostat")
    return {
        "command": shlex.join(["python", *sys.argv]),
        "versions": ", ".join(f"{name} {metadata.version(name)}" for name in packages),
        "python": platform.python_version(),
        "processor": f"{names[0] if names else platform.machine()}, {os.cpu_count()} seen",
        "load at start": f"{os.getloadavg()[0]:.2f}",
        "threads": "torch 1, " + ", ".join(f"{k}={v}" for k, v in THREADS.items()),
    }


def main() -> None:
    """Run the rounds and print the table, or be one side of a round."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--rounds", type=int, default=5, help="processes a side (default 5)")
    add("--iterations", type=int, default=10,
        help=f"counted iterations a process, after {WARM_UP} of warm-up (default 10)")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="also write all figures there")
    add("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    add("--seed", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if min(args.rounds, args.iterations) < 1:
        parser.error("--rounds and --iterations must be at least 1")
    if args.side:
        with tempfile.TemporaryDirectory() as folder:
            figures = SIDES[args.side](WARM_UP + args.iterations, args.seed, Path(folder))
        print(json.dumps(figures))
        return
    try:
        found = metadata.version("trl")
    except metadata.PackageNotFoundError:
        found = "none"
    if found != TRL:
        sys.exit(f"needs trl {TRL}, found {found}: its settings are checked against that version "
                 "only. Install it with: pip install 'entrostat[trl]'")  # fmt: skip
    facts = about()
    rounds: list[dict[str, dict[str, Any]]] = []
    for i in range(args.rounds):
        rounds.append({side: child(side, i, args.iterations) for side in SIDES})
        took = ", ".join(f"{s} {median(one['seconds']):.3f} s" for s, one in rounds[-1].items())
        print(f"round {i + 1} of {args.rounds}: {took}", file=sys.stderr, flush=True)
    print(table(rounds), "", *(f"{key}: {value}" for key, value in facts.items()), sep="\n")
    if args.json:
        args.json.write_text(json.dumps({**facts, "rounds": rounds}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
