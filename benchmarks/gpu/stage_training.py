"""Stages `training` and `precision`: the lab trains, holds entropy, and resumes exactly."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

from kit import Kit

import entrostat as es
from entrostat import config
from entrostat.config import TrainConfig

THERMOSTAT = [
    "grpo", "ppo", {"name": "repo_r", "controller": "thermostat", "target": "0.75x"},
]  # fmt: skip


def run(kit: Kit) -> None:
    """target_sum learns under the thermostat; kill and resume."""
    learns(kit)
    resumes(kit, "fp32")


def precision(kit: Kit) -> None:
    """Part 2: kill and resume in bf16."""
    resumes(kit, "bf16")


def settings(kit: Kit, iterations: int, precision: Any = "fp32") -> TrainConfig:
    """The tiny policy on target_sum, four updates an iteration (recipes/three_hosts_thermostat)."""
    return TrainConfig(
        method=THERMOSTAT, iterations=iterations, device=kit.device, precision=precision,
        sampling=config.Sampling(
            prompts=kit.size(32, 4), rollouts=kit.size(8, 4), max_new_tokens=13
        ),
        optim=config.Optim(
            lr=3e-4, epochs=2, minibatches=2, micro_batch=128, aggregation="token_mean"
        ),
        eval=config.Evaluation(prompts=0), save=config.Save(checkpoint_every=1),
    )  # fmt: skip


def learns(kit: Kit) -> None:
    """Reward rises and entropy stays near its target."""
    chosen = settings(kit, kit.size(60, 3))
    chosen.output = str(kit.output / "learns")
    shutil.rmtree(chosen.output, ignore_errors=True)
    rows = metrics(es.train(chosen))
    last, checked = rows[-10:], not kit.tiny
    held = mean(row["entropy/exact"] for row in last) / rows[0]["entropy/exact"]
    before, after = (mean(r["reward/mean"] for r in part) for part in (rows[:3], last))
    kit.row(
        "target_sum under the thermostat at .75x learns", after > before + 0.1 if checked else None,
        "reward rises by .1", first=before, last=after,
    )  # fmt: skip
    parts = ("sample", "score", "measure", "update")
    seconds = mean(sum(row[f"time/{part}"] for part in parts) for row in last)
    kit.row(
        "and holds", abs(held - 0.75) <= 0.075 if checked else None,
        "last ten iterations within 10% of .75", share=held, ms_an_iteration=1e3 * seconds,
    )  # fmt: skip


def resumes(kit: Kit, precision: str) -> None:
    """A run that is killed half-way and resumed, and a run that is repeated, beside the first."""
    count, others = kit.size(8, 4), ("again", "killed") if not kit.tiny else ("killed",)
    chosen = settings(kit, count, precision)
    paths = {which: kit.output / f"{precision}-{which}" for which in ("whole", *others)}
    running = {which: start(path, chosen) for which, path in paths.items()}
    kill_after(running["killed"], paths["killed"] / "metrics.jsonl", count // 2)
    running["killed"].communicate()
    running["killed"] = start(paths["killed"], None)
    for which, process in running.items():
        out, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{which}: exit {process.returncode}: {out[-2000:]}")
    figures, weights = outcome(paths["whole"])
    for which in others:
        theirs, their_weights = outcome(paths[which])
        pairs = zip(figures, theirs, strict=True)
        kit.row(
            f"{precision}: {'a repeated run' if which == 'again' else 'a killed and resumed run'}",
            figures == theirs and weights == their_weights, "equals the first bit for bit",
            first_difference=next((i for i, (a, b) in enumerate(pairs, 1) if a != b), "none"),
        )  # fmt: skip


def start(output: Path, chosen: TrainConfig | None) -> Any:
    """Start a training in a process of its own; None resumes what `output` holds."""
    arguments = ["--resume", str(output)]
    if chosen is not None:
        shutil.rmtree(output, ignore_errors=True)
        chosen.output = str(output)
        file = output.with_suffix(".toml")
        file.write_text(chosen.to_toml(), encoding="utf-8")
        arguments = ["--config", str(file)]
    return subprocess.Popen(
        [sys.executable, "-m", "entrostat", "train", *arguments, "--no-report"], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def kill_after(process: Any, file: Path, lines: int) -> None:
    """Kill with SIGKILL once a file has so many lines."""
    while process.poll() is None:
        if file.exists() and file.read_text(encoding="utf-8").count("\n") >= lines:
            process.send_signal(signal.SIGKILL)
            return
        time.sleep(0.02)


def metrics(run: Path) -> list[dict[str, Any]]:
    """The figures of a run, a dictionary an iteration."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for line in lines if (row := json.loads(line)).get("iteration")]


def outcome(run: Path) -> tuple[list[dict[str, Any]], bytes]:
    """What a resumed run must repeat: figures without wall-clock time, and the final weights."""
    rows = [{k: v for k, v in row.items() if not k.startswith("time/")} for row in metrics(run)]
    return rows, (run / "final" / "model.safetensors").read_bytes()
