"""Two updates of `EntropyGRPOTrainer` with rollouts by vLLM in its own process.

Run by trl_vllm.py, a process each: `python trl_losses.py POLICY CORRECTION OUT`. OUT gets, of each
update, what its loss is made of as TRL has it, and `logp`, which is a plain forward pass here.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import save_file
from torch import Tensor
from trl import GRPOConfig

from entrostat import make_objective
from entrostat.trainers.trl import EntropyGRPOTrainer

KEYS = ("completion_mask", "old_per_token_logps", "sampling_per_token_logps", "advantages")
CLIP_MAX = 1.001  # some ratios are truncated


def main(policy: str, correction: str, out: str) -> None:
    """Train and write."""
    seen: dict[str, Tensor] = {}

    class Recorded(EntropyGRPOTrainer):
        def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
            loss = super()._compute_loss(model, inputs)
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
            mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
            T = inputs["completion_ids"].shape[1]
            with torch.no_grad():
                logits = model(input_ids=ids, attention_mask=mask).logits[:, -T - 1 : -1]
            logp = logits.float().log_softmax(-1).gather(2, ids[:, -T:, None])[..., 0]
            step = f"{self.state.global_step}"
            seen[f"{step}.loss"], seen[f"{step}.logp"] = loss.detach().clone(), logp.clone()
            seen.update({f"{step}.{key}": inputs[key].clone() for key in KEYS})
            return loss

    trainer = Recorded(
        policy,
        lambda completions, **_: [float(sum(map(ord, text)) % 5) for text in completions],
        GRPOConfig(
            out + ".trl", max_steps=4, num_iterations=2, num_generations=4,
            per_device_train_batch_size=16, max_completion_length=13, learning_rate=1e-3,
            use_cpu=True, bf16=False, report_to="none", save_strategy="no", logging_steps=1,
            gradient_checkpointing=False, dataloader_pin_memory=False,
            use_vllm=True, vllm_mode="colocate", vllm_max_model_length=64,
            vllm_gpu_memory_utilization=0.1,
            vllm_importance_sampling_correction=correction == "on",
            vllm_importance_sampling_mode="token_truncate",
            vllm_importance_sampling_clip_max=CLIP_MAX,
        ),
        objective=make_objective(["grpo", "ppo"], aggregation="token_mean"),
        train_dataset=Dataset.from_dict({"prompt": [f"{20 + i}/4:" for i in range(4)] * 8}),
    )  # fmt: skip
    trainer.train()
    save_file(seen, out)
    print(json.dumps(trainer.state.log_history))


if __name__ == "__main__":
    main(*sys.argv[1:])
