"""Seconds of one GRPO iteration: entrostat's lab against TRL 1.16's GRPOTrainer, the same job.

The job is the demo's: the shipped tiny policy on `target_sum`, 32 prompts x 8 rollouts, at most 13
new tokens at temperature 1, then 2 epochs of 2 minibatches of 128 rollouts: 4 AdamW updates.
float32, CPU, one thread each, the same prompts in the same order, no network.

TRL is set up as fast as its settings allow on a CPU: in-process `generate` with a KV cache and all
256 rollouts at once, sdpa attention, fused AdamW, no logging, saving, progress bar, NaN filter or
loader process, and a data set of nothing but prompts. `loss_type="bnpo"` because it divides by the
tokens of the minibatch, which is the lab's token mean; TRL's default, "dapo", divides by half the
tokens of the generation batch. The run asserts that an iteration is one call for 256 rewards and
then four updates on 128 rollouts.

What is not the same, by each side's design:
- The lab leaves out groups whose rewards are all equal, TRL trains on them with advantage 0. The
  table gives their share, the tokens in the updates, and an upper estimate of the lab's time
  without that saving: its update time multiplied by all groups / kept groups.
- The lab runs with what it does by default: exact entropies, all metrics, a dump of every rollout
  token and a checkpoint every iteration. TRL writes nothing.
- The lab cuts new minibatches every epoch, TRL uses the same two halves in both.
- GRPO's 1e-6 under the fraction is 1e-4 in TRL. The samples differ, so rewards agree to noise only.

Time is wall clock from the end of one iteration to the end of the next, everything in between
included. Rounds are interleaved (lab, TRL, lab, TRL, ...), one fresh process a side and round.

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
from importlib import metadata
from pathlib import Path
from statistics import mean, median
from typing import Any

TRL = "1.16.0"
WARM_UP = 2
PROMPTS, ROLLOUTS, NEW_TOKENS, EPOCHS, MINIBATCHES = 32, 8, 13, 2, 2
BATCH, UPDATES = PROMPTS * ROLLOUTS, EPOCHS * MINIBATCHES
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}


def run_lab(iterations: int, directory: Path) -> dict[str, Any]:
    """Train in the lab; figures of every iteration, the warm-up included."""
    from entrostat import config, load_rollouts, train
    from entrostat.hosts.lab.progress import Progress

    class Stamps(Progress):
        def __init__(self) -> None:
            self.times: list[float] = []
            self.metrics: list[dict[str, Any]] = []

        def iteration(self, iteration: int, metrics: dict[str, Any]) -> None:
            self.times.append(time.perf_counter())
            self.metrics.append(metrics)

    stamps = Stamps()
    run = train(
        config.TrainConfig(
            method=["grpo"],
            task={"name": "target_sum", "seed": 0},
            model=config.TINY,
            iterations=iterations,
            seed=0,
            output=str(directory / "run"),
            device="cpu",
            precision="fp32",
            threads=1,
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
        ),
        progress=stamps,
    )  # fmt: skip
    dumps = [load_rollouts(run, i + 1) for i in range(iterations)]
    lengths = [dump.start.diff() for dump in dumps]
    assert [len(dump) for dump in dumps] == [BATCH] * iterations
    assert [row["optim/updates"] for row in stamps.metrics] == [UPDATES] * iterations
    dropped = [row["rollout/zero_advantage_groups"] / PROMPTS for row in stamps.metrics]
    took = [end - begin for begin, end in zip(stamps.times, stamps.times[1:], strict=False)]
    update = [row["time/update"] for row in stamps.metrics]
    return {
        "seconds": took[WARM_UP - 1 :],
        "seconds_all_groups": [
            t + u * (1 / (1 - share) - 1)
            for t, u, share in zip(took, update[1:], dropped[1:], strict=True)
        ][WARM_UP - 1 :],
        "parts": {
            part: median(row[f"time/{part}"] for row in stamps.metrics[WARM_UP:])
            for part in ("sample", "score", "measure", "update")
        },
        "sampled_tokens": mean(int(n.sum()) for n in lengths),
        "signal_tokens": mean(
            int(n[d.trained].sum()) for n, d in zip(lengths, dumps, strict=True)
        ),
        "equal_groups": mean(dropped),
        "reward": mean(row["reward/mean"] for row in stamps.metrics),
        "entropy": mean(row["entropy/exact"] for row in stamps.metrics),
        "loss": mean(row["loss/policy"] for row in stamps.metrics),
    }


def run_trl(iterations: int, directory: Path) -> dict[str, Any]:
    """Train in TRL; figures of every iteration, the warm-up included."""
    import torch
    from datasets import Dataset, disable_progress_bars
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from entrostat import make_task
    from entrostat.hosts.lab.policy import tiny_directory

    torch.set_num_threads(1)
    disable_progress_bars()
    task = make_task("target_sum", seed=0)
    examples = [task.example(i, "train") for i in range(PROMPTS * iterations)]
    # equal prompts ask for the same thing, so the text finds the answer
    example_of = {example.prompt: example for example in examples}
    events: list[str] = []
    times: list[float] = []
    rewards: list[list[float]] = []
    tokens: list[list[int]] = []

    def reward(
        prompts: list[str], completions: list[str], completion_ids: list[list[int]], **_: Any
    ) -> list[float]:
        first = PROMPTS * len(rewards)
        drawn = [e.prompt for e in examples[first : first + PROMPTS] for _ in range(ROLLOUTS)]
        assert prompts == drawn, "not the lab's prompts, in groups"
        events.append(f"rewards {len(completions)}")
        pairs = zip(prompts, completions, strict=True)
        rewards.append([task.score(text, example_of[prompt]) for prompt, text in pairs])
        tokens.append([len(ids) for ids in completion_ids])
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
        output_dir=str(directory), seed=0, use_cpu=True, bf16=False, gradient_checkpointing=False,
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
        model=model,
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": [example.prompt for example in examples]}),
        processing_class=AutoTokenizer.from_pretrained(tiny_directory()),
        callbacks=[Stamps()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    one = [f"rewards {BATCH}", *[f"loss {BATCH // MINIBATCHES}", "update"] * UPDATES]
    assert events == one * iterations, f"not {one} an iteration: {events[:20]}"
    assert torch.get_num_threads() == 1
    assert {(p.dtype, p.device.type) for p in model.parameters()} == {(torch.float32, "cpu")}
    assert model.config._attn_implementation == "sdpa"
    logged = trainer.state.log_history[-1]
    scores = [mean(r) for r in rewards]
    assert abs(logged["reward"] - mean(scores)) < 1e-5, "TRL saw other rewards"
    equal = [[len({*r[i : i + ROLLOUTS]}) == 1 for i in range(0, BATCH, ROLLOUTS)] for r in rewards]
    return {
        "seconds": [
            end - begin for begin, end in zip(times[WARM_UP - 1 :], times[WARM_UP:], strict=False)
        ],
        "sampled_tokens": mean(sum(n) for n in tokens),
        "signal_tokens": mean(
            sum(n for i, n in enumerate(lengths) if not flat[i // ROLLOUTS])
            for lengths, flat in zip(tokens, equal, strict=True)
        ),
        "equal_groups": mean(mean(flat) for flat in equal),
        "reward": mean(scores),
        "entropy": logged["entropy"],
        "loss": logged["train_loss"],
    }
