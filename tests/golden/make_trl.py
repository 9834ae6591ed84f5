"""Golden values of TRL: the real `GRPOTrainer._compute_loss` on fixed inputs.

    python3 -m venv .venv
    .venv/bin/pip install -c constraints.txt -e '.[trl]'
    .venv/bin/python tests/golden/make_trl.py            # writes trl.json
    .venv/bin/python tests/golden/make_trl.py --check    # compares with trl.json

A trainer is built for each case from a real `GRPOConfig`, over a two-layer policy of 16 dimensions
built from a config (nothing is downloaded). One method is replaced, on the instance:
`_get_per_token_logps_and_entropies` returns the case's log-probs and entropies, leaves with
gradient, in place of a forward pass. `current_gradient_accumulation_steps`, which the training loop
sets, and `accelerator.sync_gradients`, true at the last micro-batch of an accumulation window, are
set as the loop sets them. The loss itself, the controller of the entropy coefficient included, is
TRL's. Everything is float64.

The advantages come from the real `_generate_and_score_completions`: the policy generates, and a
reward function pays the given rewards whatever was generated.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import torch
from common import REWARDS, main, make_inputs, plain, tensor, versions
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, logging
from trl import GRPOConfig, GRPOTrainer

logging.set_verbosity_error()
logging.disable_progress_bar()
warnings.filterwarnings("ignore")

INPUTS = make_inputs()
# entropies of eight optimizer steps around the target; 0.25 is exactly on it
CONTROL_ENTROPIES = [0.3, 0.2, 0.1, 0.25, 0.26, 0.24, 0.5, 0.2]
TARGET = 0.25
LENGTH = 9  # max_completion_length, dr_grpo's constant; wider than the batch's T = 7


def tokenizer() -> PreTrainedTokenizerFast:
    words = {word: i for i, word in enumerate(["<pad>", "</s>", *"abcdefgh"])}
    inner = Tokenizer(WordLevel(words, unk_token="a"))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="</s>")


class Policies:
    """The folder of the tiny policy; on disk because beta > 0 loads the reference by name."""

    def __init__(self, folder: str) -> None:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=10, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=2, pad_token_id=0, eos_token_id=1,
            bos_token_id=None,
        )  # fmt: skip
        self.path = f"{folder}/policy"
        LlamaForCausalLM(config).save_pretrained(self.path)
        tokenizer().save_pretrained(self.path)
        self.output = f"{folder}/out"

    def trainer(self, **settings: Any) -> GRPOTrainer:
        defaults = {
            "output_dir": self.output,
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "per_device_train_batch_size": 8,
            "num_generations": 4,
            "max_completion_length": LENGTH,
            "report_to": "none",
            "disable_tqdm": True,
            "seed": 0,
        }
        trainer = GRPOTrainer(
            model=self.path,
            reward_funcs=lambda completions, **kwargs: REWARDS,
            args=GRPOConfig(**defaults | settings),
            train_dataset=Dataset.from_list([{"prompt": "a b"}, {"prompt": "c d"}]),
            processing_class=tokenizer(),
        )
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        return trainer


def give(trainer: GRPOTrainer, logp: torch.Tensor, entropy: torch.Tensor) -> None:
    """Put the case's leaves where the forward pass would be."""
    trainer._get_per_token_logps_and_entropies = lambda *args, **kwargs: (logp, entropy, None)


def batch(data: dict[str, Any], advantages: str, rows: slice, tokens: int) -> dict[str, Any]:
    """`inputs` of `_compute_loss`: holes in the tool mask, padding in the completion mask."""
    mask = torch.tensor(data["mask"])[rows]
    last = mask.flip(-1).cumsum(-1).flip(-1) > 0
    ids = torch.full_like(mask, 2)
    return {
        "prompt_ids": ids[:, :2],
        "prompt_mask": torch.ones_like(ids[:, :2]),
        "completion_ids": ids,
        "completion_mask": last.long(),
        "tool_mask": mask,
        "advantages": tensor(data[advantages])[rows],
        "old_per_token_logps": tensor(data["old_logp"])[rows],
        "ref_per_token_logps": tensor(data["ref_logp"])[rows],
        "num_items_in_batch": torch.tensor(tokens),
    }


def loss_case(
    policies: Policies,
    name: str,
    *,
    inputs: str = "ragged",
    advantages: str = "advantages",
    rows: list[list[int]] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """One case: the sum of an accumulation window's losses and its gradients.

    Args:
        rows: [start, stop] of each micro-batch; None takes the whole batch as one.
    """
    data = INPUTS[inputs]
    windows = rows or [[0, 8]]
    steps = settings.get("gradient_accumulation_steps", 1)
    size = {"per_device_train_batch_size": 8 // steps} if steps > 1 else {}
    trainer = policies.trainer(**settings, **size)
    logp = tensor(data["logp"]).requires_grad_()
    entropy = tensor(data["entropy"]).requires_grad_()
    tokens = sum(map(sum, data["mask"]))  # of the whole generation batch
    total = torch.zeros((), dtype=torch.float64)
    for i, (start, stop) in enumerate(windows):
        part = slice(start, stop)
        trainer.accelerator.gradient_state._set_sync_gradients(i == len(windows) - 1)
        give(trainer, logp[part], entropy[part])
        total = total + trainer._compute_loss(trainer.model, batch(data, advantages, part, tokens))
    grads = torch.autograd.grad(total, (logp, entropy), allow_unused=True)
    case = {"name": name, "inputs": inputs, "advantages": advantages, "settings": settings}
    if rows is not None:
        case["rows"] = rows
    case |= {"loss": plain(total), "grad": plain(grads[0])}
    if grads[1] is not None:
        case["grad_entropy"] = plain(grads[1])
    return case


def losses(policies: Policies) -> list[dict[str, Any]]:
    def case(name: str, **settings: Any) -> dict[str, Any]:
        return loss_case(policies, name, **settings)

    clip = {"epsilon": 0.2, "epsilon_high": 0.28}
    sequence = {
        "importance_sampling_level": "sequence",
        "epsilon": 3e-4,
        "epsilon_high": 4e-4,
        "advantages": "rollout_advantages",
    }
    kl = {"beta": 0.04, "use_bias_correction_kl": False}
    cases = []
    for kind in ("grpo", "bnpo", "dr_grpo", "dapo"):
        cases += [
            case(kind, loss_type=kind, **clip),
            case(f"{kind} of one empty rollout", loss_type=kind, inputs="empty", **clip),
            case(
                f"{kind} in two micro-batches", loss_type=kind, rows=[[0, 4], [4, 8]],
                gradient_accumulation_steps=2, **clip,
            ),
            case(f"{kind} entropy bonus", loss_type=kind, entropy_coef=0.01, **clip),
            case(f"{kind} kl", loss_type=kind, **kl, **clip),
        ]  # fmt: skip
    cases += [
        case("dapo symmetric", loss_type="dapo", epsilon=0.2),
        case("dapo two-sided", loss_type="dapo", delta=1.5, **clip),
        # the second of two optimizer steps on one generation batch
        case(
            "dapo second window", loss_type="dapo", rows=[[4, 8]], per_device_train_batch_size=4,
            steps_per_generation=2, **clip,
        ),
        case("top entropy", loss_type="dapo", top_entropy_quantile=0.2, **clip),
        case("gspo", loss_type="grpo", **sequence),
        case("gspo dapo", loss_type="dapo", **sequence),
        case("gspo wide", loss_type="grpo", **sequence | clip),
        case("gspo kl", loss_type="grpo", **kl, **sequence),
        case("dapo kl times ratio", loss_type="dapo", beta=0.04, **clip),  # TRL's default
        case("gspo per-token", loss_type="grpo", **sequence | clip | {"advantages": "advantages"}),
        case("cispo", loss_type="cispo", epsilon_high=1.3),
        case("sapo", loss_type="sapo"),
        case("vespo", loss_type="vespo", advantages="rollout_advantages"),
        case("luspo", loss_type="luspo", **sequence | clip),
        case("dapo two-sided below the clip", loss_type="dapo", delta=1.1, **clip),
        case(
            "dapo off-policy mask", loss_type="dapo", off_policy_mask_threshold=0.05,
            advantages="rollout_advantages", **clip,
        ),
        case("gspo kl times ratio", loss_type="grpo", beta=0.04, **sequence),
    ]  # fmt: skip
    return cases


def adaptive_entropy(policies: Policies) -> dict[str, Any]:
    """Eight optimizer steps: the coefficient applied in each, and the one after it.

    Every entropy of a step is that step's number, so the policy loss has no part in the gradient
    with respect to it, which is -coefficient / N.
    """
    settings = {
        "use_adaptive_entropy": True,
        "entropy_target": TARGET,
        "entropy_coef": 0.0,
        "entropy_coef_delta": 1e-4,
        "entropy_coef_min": 0.0,
        "entropy_coef_max": 2.5e-4,
    }
    trainer = policies.trainer(loss_type="dapo", **settings)
    data = INPUTS["ragged"]
    mask = tensor(data["mask"])
    applied, after = [], []
    for step_entropy in CONTROL_ENTROPIES:
        logp = tensor(data["logp"]).requires_grad_()
        entropy = torch.full_like(mask, step_entropy).requires_grad_()
        give(trainer, logp, entropy)
        tokens = int(mask.sum())
        loss = trainer._compute_loss(trainer.model, batch(data, "advantages", slice(0, 8), tokens))
        (grad,) = torch.autograd.grad(loss, entropy)
        applied.append(-grad.sum())
        after.append(trainer.entropy_coef)
    return {
        "name": "adaptive entropy",
        "settings": settings,
        "entropies": CONTROL_ENTROPIES,
        "applied": plain(torch.stack(applied)),
        "after": plain(tensor(after)),
    }


def advantages(policies: Policies) -> list[dict[str, Any]]:
    cases = []
    for scale in ("group", "batch", "none"):
        trainer = policies.trainer(scale_rewards=scale)
        prompts = [{"prompt": "a b"}] * 4 + [{"prompt": "c d"}] * 4
        with torch.no_grad():
            scored = trainer._generate_and_score_completions(prompts)
        cases.append(
            {
                "name": f"scale_rewards {scale}",
                "settings": {"scale_rewards": scale},
                "rewards": REWARDS,
                "group": [0, 0, 0, 0, 1, 1, 1, 1],
                "advantages": plain(scored["advantages"]),
            }
        )
    return cases


def make() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        policies = Policies(folder)
        return {
            "library": "trl",
            "versions": versions("trl", "torch", "transformers", "accelerate"),
            "max_completion_length": LENGTH,
            "inputs": INPUTS,
            "losses": losses(policies),
            "adaptive_entropy": adaptive_entropy(policies),
            "advantages": advantages(policies),
        }


if __name__ == "__main__":
    main(make, Path(__file__).with_name("trl.json"), __doc__)
