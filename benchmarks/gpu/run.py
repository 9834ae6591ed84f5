"""Check and time entrostat on a GPU: stages in order of worth, each with its own time limit.

Each stage runs in its own process and appends its results to OUTPUT/results.jsonl as they come. A
stage that fails or runs out of time costs its own remaining rows only. A second call skips stages
that are done. Without a GPU, or with --tiny, the sizes are small: the kit itself is tested so.

    device      token statistics against float64; every method, CPU beside GPU
    accuracy    token statistics on extreme rows, beside TRL's and full logits
    statistics  their time and memory beside TRL's, Liger's, cut-cross-entropy and bare products
    training    target_sum under the thermostat; kill and resume
    shape       a Llama of 0.5B parameters, random weights: tokens a second, memory, kernels
    pass        what the thermostat's gradient of entropy costs
    trl         one job in the lab, in TRL, and in TRL with an objective of ours
    precision   (part 2) kill and resume in bf16

Examples:
    make gpu-check                                    # both parts, everything that is not done yet
    python benchmarks/gpu/run.py --only device        # one stage
    python benchmarks/gpu/run.py --tiny --output runs/gpu-tiny
    python benchmarks/gpu/run.py --table              # the results as Markdown
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
for place in (HERE, HERE.parent, ROOT / "src"):
    if str(place) not in sys.path:
        sys.path.append(str(place))

from kit import Kit, append, results  # noqa: E402


@dataclass(frozen=True)
class Stage:
    """Where a stage is, and how long it may take.

    Attributes:
        module: beside this file.
        function: takes a `Kit`.
        seconds: its limit on a GPU.
        part: 1, or 2 for what is tried last.
    """

    module: str
    function: str
    seconds: int
    part: int = 1


STAGES = {
    "device": Stage("stage_device", "run", 80),
    "accuracy": Stage("stage_statistics", "accuracy", 50),
    "statistics": Stage("stage_statistics", "run", 80),
    "training": Stage("stage_training", "run", 100),
    "shape": Stage("stage_shape", "shape", 90),
    "pass": Stage("stage_shape", "extra_pass", 50),
    "trl": Stage("stage_trl", "run", 200),
    "precision": Stage("stage_training", "precision", 100, part=2),
}
PACKAGES = ("torch", "triton", "transformers", "trl", "liger-kernel", "cut-cross-entropy", "numpy")


def about(device: str, tiny: bool) -> dict[str, Any]:
    """Machine, versions and command."""
    import torch

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "none"
    from entrostat import __version__

    card = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    return {
        "about": {
            "device": device, "card": card, "tiny": tiny, "cpus": os.cpu_count(),
            "cuda": torch.version.cuda or "none", "python": platform.python_version(),
            "entrostat": __version__, **versions,
            "command": shlex.join(["python", *sys.argv]),
        }
    }  # fmt: skip


def child(name: str, limit: float, args: argparse.Namespace) -> dict[str, Any]:
    """Run a stage in its own process, killed with all its children at the limit."""
    command = [sys.executable, str(HERE / "run.py"), "--stage", name]
    command += ["--output", str(args.output), "--device", args.device]
    command += ["--tiny"] if args.tiny else []
    places = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in places if p)}
    began = time.monotonic()
    with (args.output / f"{name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=env
        )
        shown, code = len(results(args.output)), None
        while code is None and time.monotonic() - began < limit:
            time.sleep(0.2)
            code = process.poll()
            for row in results(args.output)[shown:]:
                shown += 1
                print(json.dumps(row), flush=True)
        end = "done" if code == 0 else "failed" if code is not None else "out of time"
        if code is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    found = {"stage": name, "end": end, "seconds": round(time.monotonic() - began, 1)}
    if end != "done":
        lines = (args.output / f"{name}.log").read_text(encoding="utf-8").strip().splitlines()
        found["error"] = "\n".join(lines[-12:])
    return found


def table(output: Path) -> str:
    """The results in Markdown; the last of rows that were repeated."""
    found = results(output)
    rows = {(r["stage"], r["case"]): r for r in found if "case" in r}
    ends = {r["stage"]: r for r in found if "end" in r}
    lines = ["| stage | case | figures | asked | |", "| --- | --- | --- | --- | --- |"]
    for (stage, case), row in rows.items():
        shown = ", ".join(f"{k.replace('_', ' ')} {_short(v)}" for k, v in row["figures"].items())
        verdict = {True: "yes", False: "**no**", None: ""}[row["ok"]]
        lines.append(f"| {stage} | {case} | {shown} | {row['asked']} | {verdict} |")
    for stage, end in ends.items():
        if end["end"] != "done":
            lines.append(f"| {stage} | {end['end']} after {end['seconds']} s | | | **no** |")
    return "\n".join(lines)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main(argv: list[str] | None = None) -> int:
    """Run the stages that are not done; the number of those that fail."""
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    gpu = torch.cuda.is_available()
    add("--output", type=Path, default=Path("runs/gpu"), help="default %(default)s")
    add("--device", choices=["cpu", "cuda"], default="cuda" if gpu else "cpu")
    add("--tiny", action="store_true", default=not gpu, help="small sizes; what a CPU gets")
    add("--only", default="", metavar="STAGES", help=f"of {','.join(STAGES)}")
    add("--part", type=int, choices=[1, 2], help="default: both, the first one first")
    add("--seconds", type=float, default=780, help="for all stages; default %(default)s")
    add("--again", action="store_true", help="also the stages that are done")
    add("--table", action="store_true", help="print the results so far as Markdown")
    add("--stage", choices=list(STAGES), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.table:
        print(table(args.output))
        return 0
    args.output = args.output.resolve()
    args.output.mkdir(parents=True, exist_ok=True)
    if args.stage:
        stage = STAGES[args.stage]
        kit = Kit(args.stage, args.device, args.tiny, args.output)
        getattr(importlib.import_module(stage.module), stage.function)(kit)
        return 0
    names = [n for n in args.only.split(",") if n] or list(STAGES)
    for name in names:
        if name not in STAGES:
            parser.error(f"--only {name}: the stages are {', '.join(STAGES)}")
    if args.part:
        names = [n for n in names if STAGES[n].part == args.part]
    done = {r["stage"] for r in results(args.output) if r.get("end") == "done"}
    names = [n for n in names if args.again or n not in done]
    append(args.output, about(args.device, args.tiny))
    began, failed = time.monotonic(), 0
    for name in names:
        left = args.seconds - (time.monotonic() - began)
        limit = left if args.tiny else min(left, STAGES[name].seconds)
        if limit < 5:
            append(args.output, {"stage": name, "end": "not begun", "seconds": 0})
            failed += 1
            continue
        end = child(name, limit, args)
        append(args.output, end)
        failed += end["end"] != "done"
    return failed


if __name__ == "__main__":
    sys.exit(main())
