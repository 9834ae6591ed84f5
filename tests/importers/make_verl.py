"""Write tests/importers/verl/ with veRL 0.9.1's own loggers.

    .venv-verl/bin/python tests/importers/make_verl.py

`console.log` is what `LocalLogger` prints, wrapped as Ray wraps it; `file.jsonl` is `FileLogger`'s;
`rollouts/N.jsonl` are `RayPPOTrainer._write_generations`'s, taken from its source, for the module
itself needs packages that only a GPU machine has. The figures are made up, the formats are not.
"""

import ast
import contextlib
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import verl
from verl.utils.tracking import Tracking

TARGET = Path(__file__).with_name("verl")
STEPS = {
    1: {"actor/entropy": 0.5, "critic/score/mean": 0.25, "critic/rewards/mean": 0.2,
        "response_length/mean": 100.0, "actor/grad_norm": np.float64(1.5),
        "actor/pg_clipfrac": 0.125, "actor/lr": 1e-06, "training/global_step": 1},
    2: {"actor/entropy": 0.4375, "critic/score/mean": 0.375, "critic/rewards/mean": 0.3,
        "response_length/mean": 110.5, "actor/grad_norm": float("nan"),
        "actor/pg_clipfrac": 0.0, "actor/lr": 1e-06, "training/global_step": 2},
    3: {"actor/entropy": 0.25, "critic/score/mean": 0.5, "critic/rewards/mean": 0.4,
        "response_length/mean": 121.0, "actor/grad_norm": np.float32(0.75),
        "actor/pg_clipfrac": 0.0625, "actor/lr": 1e-06, "training/global_step": 3,
        "val-core/openai/gsm8k/reward/mean@1": 0.625},
}  # fmt: skip


def write_generations():
    """`RayPPOTrainer._write_generations`, without importing its module."""
    path = Path(verl.__file__).parent / "trainer/ppo/ray_trainer.py"
    (function,) = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "_write_generations"
    ]
    function.decorator_list = []
    names = {"os": os, "json": json}
    exec(compile(ast.Module([function], []), str(path), "exec"), names)
    return names["_write_generations"]


def main() -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir()
    os.environ["VERL_FILE_LOGGER_PATH"] = str(TARGET / "file.jsonl")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        tracking = Tracking("project", "experiment", ["console", "file"])
        printed.truncate(printed.seek(0))
        tracking.log({"val-core/openai/gsm8k/reward/mean@1": 0.1875}, step=0)
        for step, data in STEPS.items():
            tracking.log(data, step=step)
        tracking.finish()
    lines = printed.getvalue().splitlines()
    prefix = "\x1b[36m(TaskRunner pid=4242)\x1b[0m "
    around = [
        "2026-11-21 10:00:00,000\tINFO worker.py:1918 -- Started a local Ray instance.",
        f"{prefix}{{'actor_rollout_ref': {{'actor': {{'loss_agg_mode': 'token-mean',",
        f"{prefix}Training Progress:   0%|          | 0/3 [00:00<?, ?it/s]",
        *(prefix + line for line in lines),
        f"{prefix}Final validation metrics: None",
    ]
    (TARGET / "console.log").write_text("\n".join(around) + "\n")
    write = write_generations()
    for step in (1, 2):
        with contextlib.redirect_stdout(io.StringIO()):
            write(
                ["1+1?", "1+1?", "2+2?", "2+2?"], ["2", "3", "4", "4"], ["2", "2", "4", "4"],
                [1.0, 0.0, 1.0, 1.0 if step == 2 else 0.0],
                {"acc": [True, False, True, step == 2]}, str(TARGET / "rollouts"), step,
            )  # fmt: skip


if __name__ == "__main__":
    main()
