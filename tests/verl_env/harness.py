"""Workers of veRL on the CPU, batches in veRL's form, and a reference that shares none of it."""

from __future__ import annotations

import atexit
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor
from transformers import AutoModelForCausalLM
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.workers.config import (
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    TrainingWorkerConfig,
)

import entrostat
from entrostat.core.batch import TokenBatch
from entrostat.core.objective import Objective
from entrostat.trainers.verl.loss import GROUP, IDLE, MASK, NOTE, REWARD, ROLLOUT
from entrostat.trainers.verl.settings import PolicyLoss
from entrostat.trainers.verl.worker import EntropyTrainingWorker

TINY = str(Path(entrostat.__file__).parent / "assets" / "tiny")
VOCABULARY = 15


def join(rendezvous: str | None = None) -> None:
    """Start the process group that veRL's worker would start, were there a CPU platform."""
    if not dist.is_initialized():
        place = rendezvous or str(Path(tempfile.mkdtemp()) / "rendezvous")
        dist.init_process_group(
            "gloo", init_method=f"file://{place}",
            rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]),
        )  # fmt: skip
        # gloo's threads must not outlive the interpreter
        atexit.register(dist.destroy_process_group)


def make_worker(
    settings: PolicyLoss,
    *,
    lr: float = 1e-3,
    micro: int = 4,
    dynamic: bool = False,
    steps: int = 50,
) -> EntropyTrainingWorker:
    """A real training worker: the tiny policy under FSDP2 in float32, on gloo."""
    join()
    worker = EntropyTrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=HFModelConfig(
                path=TINY,
                use_remove_padding=False,  # that path needs flash-attn
                enable_gradient_checkpointing=False,
                override_config={"attn_implementation": "sdpa"},
            ),
            engine_config=FSDPEngineConfig(
                strategy="fsdp2",
                mixed_precision={"param_dtype": "fp32", "reduce_dtype": "fp32"},
                use_torch_compile=False,
                use_dynamic_bsz=dynamic,
                micro_batch_size_per_gpu=micro,
                infer_micro_batch_size_per_gpu=2 * micro,
                max_token_len_per_gpu=64,
                infer_max_token_len_per_gpu=96,
            ),
            optimizer_config=FSDPOptimizerConfig(
                lr=lr, weight_decay=0.0, clip_grad=1e9, total_training_steps=steps
            ),
            checkpoint_config=CheckpointConfig(),
        )
    )
    worker.reset()
    worker.use_objective(settings)
    return worker


def nested(x: Tensor, lengths: Tensor) -> Tensor:
    """[B, T] as veRL keeps it: rows of their own lengths."""
    rows = [row[:n] for row, n in zip(x, lengths.tolist(), strict=True)]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def rollouts_td(prompts: list[Tensor], answers: list[Tensor]) -> dict[str, Tensor]:
    """The token fields of rollouts, as veRL's agent loop writes them."""
    whole = [torch.cat(pair) for pair in zip(prompts, answers, strict=True)]

    def ragged(rows: list[Tensor]) -> Tensor:
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    return {
        "prompts": ragged(prompts),
        "responses": ragged(answers),
        "input_ids": ragged(whole),
        "position_ids": ragged([torch.arange(len(row)) for row in whole]),
    }


def worker_td(
    tokens: dict[str, Tensor],
    batch: TokenBatch,
    objective: Objective,
    step: int = 1,
    epochs: int = 1,
) -> TensorDict:
    """A prepared batch as the driver sends it to a worker for one update."""
    lengths = tokens["responses"].offsets().diff()
    assert batch.old_entropy is not None
    fields = {
        **tokens,
        "old_log_probs": nested(batch.old_logp.detach(), lengths),
        "entropy": nested(batch.old_entropy.detach(), lengths),
        "advantages": nested(batch.advantages, lengths),
        MASK: nested(batch.mask.long(), lengths),
        "response_mask": nested(batch.mask.long(), lengths),
        "loss_mask": nested(batch.mask.long(), lengths),
        REWARD: batch.rewards,
        GROUP: batch.group,
        ROLLOUT: torch.arange(len(batch)) if batch.rollout is None else batch.rollout,
    }
    if batch.idle is not None:
        fields[IDLE] = batch.idle.long()
    if batch.ref_logp is not None:
        fields["ref_log_prob"] = nested(batch.ref_logp, lengths)
    td = TensorDict(fields, batch_size=len(batch))
    size = len(batch) * dist.get_world_size()
    note = json.dumps({"step": step, "objective": objective.state_dict()})
    tu.assign_non_tensor(
        td, temperature=1.0, calculate_entropy=True, global_batch_size=size, mini_batch_size=size,
        epochs=epochs, seed=0, dataloader_kwargs={"shuffle": False}, **{NOTE: note},
    )  # fmt: skip
    return td


def plain_model() -> Any:
    """The tiny policy without any of veRL."""
    return AutoModelForCausalLM.from_pretrained(
        TINY, dtype=torch.float32, attn_implementation="sdpa"
    )


def statistics(model: Any, prompts: list[Tensor], answers: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [B, T] of the answers by their definitions, a rollout at a time."""
    T = max(len(row) for row in answers)
    logps, entropies = [], []
    for prompt, answer in zip(prompts, answers, strict=True):
        logits = model(torch.cat([prompt, answer])[None]).logits[0, len(prompt) - 1 : -1]
        log_p = logits.log_softmax(-1)
        pad = (0, T - len(answer))
        lp = log_p.gather(1, answer[:, None])[:, 0]
        H = -(log_p.exp() * log_p).sum(-1)
        logps.append(torch.nn.functional.pad(lp, pad))
        entropies.append(torch.nn.functional.pad(H, pad))
    return torch.stack(logps), torch.stack(entropies)


def gradients(worker: EntropyTrainingWorker) -> list[Tensor]:
    """Copies of the worker's gradients, whole."""
    return [
        p.grad.full_tensor().clone() if hasattr(p.grad, "full_tensor") else p.grad.clone()
        for p in worker.engine.module.parameters()
        if p.grad is not None
    ]


def perturb(model: Any, scale: float = 0.02) -> None:
    """Move weights a little, by their place, the same in any wrapping."""
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in model.parameters():
            noise = scale * torch.randn(p.shape, generator=g)
            local = p.to_local() if hasattr(p, "to_local") else p
            if local.shape != p.shape:  # a shard: rows are cut evenly over ranks
                noise = noise.chunk(dist.get_world_size())[dist.get_rank()]
            local.add_(noise)
