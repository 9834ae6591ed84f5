"""What each paper's estimator says of one update of a real language model, beside the truth.

SmolLM2-135M-Instruct (4-bit weights of a package: `entrostat model smollm2`) on three jobs: `words`
(many right answers) and `arithmetic` (one), 8 prompts x 16 rollouts, AdamW 1e-5; `chat`, 4 prompts
x 8 rollouts of up to 256 tokens, AdamW 1e-6. GRPO, float32, one update per iteration on the whole
batch. Per seed two analyses: of the first iteration (AdamW's first step: cold) and of the tenth
(warm). `benchmarks/dynamics.py` is the same for the tiny policy, and explains `where` and `which`.

`--analyze` cuts a batch into pieces of `optim.micro_batch` rollouts: here 128, for `chat` 8.

Example:
    python benchmarks/llm_dynamics.py --output runs/llm_dynamics
    python benchmarks/llm_dynamics.py --job chat --seeds 2
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import entrostat as es
from dynamics import WARM, summary, table
from entrostat.config import from_dict
from jobs import CHAT, LetterE

SETTINGS: dict[str, dict[str, Any]] = {
    name: {
        "task": name, "sampling": {"prompts": 8, "rollouts": 16},
        "optim": {"lr": 1e-5, "micro_batch": 128},
    }
    for name in ("words", "arithmetic")
} | {
    "chat": {
        "sampling": {
            "prompts": CHAT.prompts, "rollouts": CHAT.rollouts,
            "max_new_tokens": CHAT.new_tokens,
        },
        "optim": {"lr": 1e-6, "micro_batch": 8},
    }
}  # fmt: skip


def run(job: str, seed: int, directory: Path) -> None:
    """Ten iterations with two analyses; peak memory beside them."""
    settings = SETTINGS[job]
    es.train(
        from_dict(settings | {
            "model": "smollm2", "method": "grpo_token", "iterations": WARM, "seed": seed,
            "output": str(directory), "analyze": {"every": WARM}, "eval": {"prompts": 0},
            "optim": settings["optim"] | {"epochs": 1, "minibatches": 1},
            "save": {"rollouts_every": 0, "checkpoints": 0},
        }),
        task=LetterE() if job == "chat" else None,
    )  # fmt: skip
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    (directory / "peak.json").write_text(json.dumps(peak))


def lines_of(directory: Path) -> dict[int, dict[str, Any]]:
    """The analyses of a run by iteration: the first's and the tenth's, if these made an update."""
    lines = (directory / "analysis.jsonl").read_text().splitlines()
    return {row["iteration"]: row for row in map(json.loads, lines)}


def main() -> None:
    """Run what is not there yet, each run in a process of its own, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("runs/llm_dynamics"))
    parser.add_argument("--job", choices=[*SETTINGS], action="append", help="default: all three")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    jobs = args.job or list(SETTINGS)
    if args.child is not None:
        run(jobs[0], args.child, args.output)
        return
    blocks: dict[str, list[dict[str, Any]]] = {}
    for job in jobs:
        places = [args.output / f"{job}-{seed}" for seed in range(args.seeds)]
        for seed, place in enumerate(places):
            if not (place / "peak.json").exists():
                command = [sys.executable, __file__, "--job", job, "--child", str(seed)]
                subprocess.run([*command, "--output", str(place)], check=True)
        found = [lines_of(place) for place in places]
        for step in (1, WARM):
            rows = [lines[step] for lines in found if step in lines]
            print(f"### {job}, step {step} ({len(rows)} seeds)\n")
            if rows:  # else no group had a signal in any
                blocks[f"{job}, step {step}"] = rows
                table(rows)
        seconds = [line["time/analysis"] for lines in found for line in lines.values()]
        own = [
            json.loads(line)["time/iteration"]
            for place in places
            for line in (place / "metrics.jsonl").read_text().splitlines()
        ]
        peaks = [json.loads((place / "peak.json").read_text()) for place in places]
        print(
            f"an analysis takes {mean(seconds):.0f} s beside an iteration of {mean(own):.0f} s; "
            f"peak memory {max(peaks) / 1e9:.1f} GB; pieces {found[0][1]['pieces']}\n"
        )
    summary(blocks)


if __name__ == "__main__":
    main()
