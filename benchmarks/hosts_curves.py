"""The same run in the lab and in TRL: 60 iterations of the demo job, entropy and reward beside it.

The job is the demo's: the shipped tiny policy on `target_sum`, 32 prompts x 8 rollouts, at most 13
new tokens at temperature 1, 2 epochs of 2 minibatches, AdamW at 3e-4, float32, CPU, one thread.
Each host runs each method with several seeds. The table compares the mean curves: how far TRL's is
from the lab's, and in how many iterations it is inside the seed band, which is two standard
deviations of the difference of two such means if both hosts do the same (2 s sqrt(2/n), s the
standard deviation of one run over the seeds of either host, smoothed over three iterations), and
at least 1% of the lab's mean.

What is not the same, by each side's design: the lab draws its prompts by its own seed and cuts new
minibatches every epoch; TRL walks the data in order and takes the same halves in both epochs; the
lab's minibatches share the groups with a signal evenly, TRL's hold what the shuffle gave them.

Example:
    python benchmarks/hosts_curves.py --methods repo_r clip_cov --seeds 3 --json hosts_curves.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

PROMPTS, ROLLOUTS, NEW_TOKENS, EPOCHS, MINIBATCHES = 32, 8, 13, 2, 2
BATCH, UPDATES = PROMPTS * ROLLOUTS, EPOCHS * MINIBATCHES
KEYS = ("entropy/exact", "reward/mean")
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
    "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore", "CI": "1",
}  # fmt: skip

Curves = dict[str, list[float]]


def run_lab(method: str, iterations: int, seed: int, directory: Path) -> Curves:
    """One run of the lab."""
    from entrostat import config, train

    settings = config.TrainConfig(
        method=[method], task={"name": "target_sum", "seed": 0}, model=config.TINY,
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
        save=config.Save(checkpoint_every=iterations, rollouts_every=0),
    )  # fmt: skip
    run = train(settings)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {key: [row[key] for row in rows] for key in KEYS}


def run_trl(method: str, iterations: int, seed: int, directory: Path) -> Curves:
    """One run of `EntropyGRPOTrainer`."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
    from trl import GRPOConfig

    from entrostat import make_task
    from entrostat.hosts.lab.policy import tiny_directory
    from entrostat.hosts.trl import EntropyGRPOTrainer

    torch.set_num_threads(1)
    task = make_task("target_sum", seed=0)
    first = 10_000 * seed  # other prompts for each seed, as in the lab
    examples = [task.example(first + i, "train") for i in range(PROMPTS * iterations)]
    of_prompt = {example.prompt: example for example in examples}

    def reward(prompts: Any, completions: Any, **_: Any) -> list[Any]:
        return [task.score(c, of_prompt[p]) for p, c in zip(prompts, completions, strict=True)]

    settings = GRPOConfig(
        output_dir=str(directory), seed=seed, use_cpu=True, bf16=False,
        gradient_checkpointing=False, num_generations=ROLLOUTS,
        per_device_train_batch_size=BATCH // MINIBATCHES, gradient_accumulation_steps=1,
        steps_per_generation=MINIBATCHES, num_iterations=EPOCHS, max_steps=UPDATES * iterations,
        shuffle_dataset=False, max_completion_length=NEW_TOKENS, temperature=1.0, top_p=1.0,
        top_k=0, generation_kwargs={"use_cache": True}, learning_rate=3e-4,
        lr_scheduler_type="constant", warmup_steps=0, adam_beta1=0.9, adam_beta2=0.95,
        weight_decay=0.0, max_grad_norm=1.0, report_to="none", disable_tqdm=True,
        logging_strategy="no", save_strategy="no", dataloader_pin_memory=False,
    )  # fmt: skip
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_directory(), dtype=torch.float32)
    trainer = EntropyGRPOTrainer(
        model, reward, settings, objective=method, dump_rollouts=str(directory / "log"),
        dump_every=10**6, processing_class=AutoTokenizer.from_pretrained(tiny_directory()),
        train_dataset=Dataset.from_dict({"prompt": [example.prompt for example in examples]}),
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    lines = (directory / "log" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return {key: [row[key] for row in rows] for key in KEYS}


SIDES = {"lab": run_lab, "trl": run_trl}


def child(side: str, method: str, seed: int, iterations: int) -> Curves:
    """One run in a process of its own; exits with its error where it fails."""
    command = [sys.executable, __file__, "--side", side, "--methods", method]
    command += ["--seed", f"{seed}", "--iterations", f"{iterations}"]
    done = subprocess.run(command, env=os.environ | ENVIRONMENT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{side}, {method}, seed {seed} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(lab: list[Curves], trl: list[Curves], key: str) -> dict[str, float]:
    """How far TRL's mean curve is from the lab's, and the seed band (see the top)."""
    T = len(lab[0][key])
    ours = [[run[key][t] for run in lab] for t in range(T)]
    theirs = [[run[key][t] for run in trl] for t in range(T)]
    gaps = [mean(b) - mean(a) for a, b in zip(ours, theirs, strict=True)]
    # the spread of one run, over both hosts' seeds and three iterations around
    spread = [
        mean(stdev(x[s]) for x in (ours, theirs) for s in range(max(0, t - 1), min(T, t + 2)))
        for t in range(T)
    ]
    band = [
        max(2 * s * (2 / len(lab)) ** 0.5, 0.01 * abs(mean(a)))
        for s, a in zip(spread, ours, strict=True)
    ]
    return {
        "lab first": mean(ours[0]), "trl first": mean(theirs[0]),
        "lab last": mean(mean(x) for x in ours[-10:]),
        "trl last": mean(mean(x) for x in theirs[-10:]),
        "gap": mean(abs(g) for g in gaps), "band": mean(band),
        "inside": mean(abs(g) <= b for g, b in zip(gaps, band, strict=True)),
    }  # fmt: skip


def study(methods: list[str], seeds: int, iterations: int) -> dict[str, dict[str, list[Curves]]]:
    """All runs."""
    out: dict[str, dict[str, list[Curves]]] = {}
    for method in methods:
        out[method] = {"lab": [], "trl": []}
        for seed in range(seeds):
            for side in SIDES:
                out[method][side].append(child(side, method, seed, iterations))
            print(f"{method}, seed {seed} done", file=sys.stderr, flush=True)
    return out


def table(runs: dict[str, dict[str, list[Curves]]]) -> str:
    """The comparison, as a table."""
    lines = [
        "| method | figure | lab first | TRL first | lab last 10 | TRL last 10 | mean gap | band | "
        "inside |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for method, sides in runs.items():
        for key in KEYS:
            c = compare(sides["lab"], sides["trl"], key)
            numbers = " | ".join(f"{c[k]:.3f}" for k in c if k != "inside")
            lines.append(f"| `{method}` | {key} | {numbers} | {c['inside']:.0%} |")
    return "\n".join(lines)


def main() -> None:
    """Run both hosts and print the table, or be one run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--methods", nargs="+", default=["repo_r", "clip_cov"])
    add("--seeds", type=int, default=3, help="runs a host and method (default 3)")
    add("--iterations", type=int, default=60)
    add("--json", type=Path, metavar="FILE", help="also write all curves there")
    add("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    add("--seed", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if min(args.seeds - 1, args.iterations) < 1:
        parser.error("--seeds must be at least 2 and --iterations at least 1")
    if args.side:
        with tempfile.TemporaryDirectory() as folder:
            curves = SIDES[args.side](args.methods[0], args.iterations, args.seed, Path(folder))
        print(json.dumps(curves))
        return
    runs = study(args.methods, args.seeds, args.iterations)
    print(table(runs))
    if args.json:
        args.json.write_text(json.dumps(runs, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
