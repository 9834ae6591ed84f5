"""TRL trainers on the tiny policy, their settings small, their rollouts known in advance."""

import copy
import functools
import hashlib
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import pytest
import torch
from torch import Tensor

pytest.importorskip("trl", reason="trl is an extra")

MARKS = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # transformers' own, of TRL's arguments
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]


K, B, TEMPERATURE, MAX = 4, 16, 0.9, 7
PROMPTS = ["12:", "9:", "25:", "7:"]
REWARDS = [1.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.0, 0.25, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0]


def tiny() -> str:
    from entrostat.model_files import tiny_directory

    return str(tiny_directory())


@functools.cache
def _loaded():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny(), dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(tiny())


def model_of(noise: float = 0.0, seed: int = 0):
    model = copy.deepcopy(_loaded()[0])
    disturb(model, noise, seed)
    return model


@torch.no_grad()
def disturb(model, size: float, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    for x in model.parameters():
        x += size * torch.randn(x.shape, generator=g)


def reward_by_tokens(prompts, completion_ids, **_) -> list[float]:
    """No two rollouts of a group alike, all dyadic: sums are exact in any order."""
    seen: dict[str, int] = {}
    out = []
    for prompt, ids in zip(prompts, completion_ids, strict=True):
        k = seen[prompt] = seen.get(prompt, 0) + 1
        out.append(((sum(ids) * 5 + k) % 8 + k / 8) / 8)
    return out


def make(cls, folder, *, model=None, reward=reward_by_tokens, prompts=PROMPTS, callbacks=None,
         objective=..., dump=None, peft=None, **settings):  # fmt: skip
    from datasets import Dataset
    from trl import GRPOConfig

    defaults = {
        "output_dir": str(folder), "seed": 0, "use_cpu": True, "bf16": False,
        "gradient_checkpointing": False, "num_generations": K, "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4, "num_iterations": 2, "max_completion_length": MAX,
        "temperature": TEMPERATURE, "learning_rate": 3e-4, "lr_scheduler_type": "constant",
        "report_to": "none", "disable_tqdm": True, "logging_steps": 1, "save_strategy": "no",
        "shuffle_dataset": False, "dataloader_pin_memory": False,
    }  # fmt: skip
    more = {} if objective is ... else {"objective": objective}
    if peft is not None:
        more["peft_config"] = peft
    if dump is not None:
        more["dump_rollouts"] = str(dump)
    return cls(
        model=model_of() if model is None else model, reward_funcs=reward,
        args=GRPOConfig(**defaults | settings), callbacks=callbacks,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=copy.deepcopy(_loaded()[1]), **more,
    )  # fmt: skip


def entropy_trainer(*args, **kwargs):
    from entrostat.trainers.trl import EntropyGRPOTrainer

    return make(EntropyGRPOTrainer, *args, **kwargs)


def fixed_rollouts() -> tuple[list[list[int]], list[list[int]]]:
    """Ragged completions, all different, and where a tool wrote (0)."""
    g = torch.Generator().manual_seed(4)
    lengths = [1, 7, 3, 5, 2, 6, 7, 4, 3, 7, 1, 5, 6, 2, 4, 7]
    ids = [torch.randint(3, 13, (n,), generator=g).tolist() for n in lengths]
    tools = [[int((i + t) % 5 != 4 or n == 1) for t in range(n)] for i, n in enumerate(lengths)]
    return ids, tools


def feed(trainer, rewards=REWARDS) -> list[dict]:
    """The fixed rollouts through TRL's own scoring, shuffle and split: its micro-batches."""
    ids, tools = fixed_rollouts()
    tokenizer = trainer.processing_class
    rows = [prompt for prompt in PROMPTS for _ in range(K)]
    encoded = [tokenizer(prompt)["input_ids"] for prompt in rows]
    trainer._generate = lambda prompts: (
        encoded, ids, tools, tokenizer.batch_decode(ids), None, {}, None, None,
    )  # fmt: skip
    trainer.reward_funcs = [lambda **_: rewards]
    trainer.state.max_steps = 100
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    trainer.model.train()
    trainer._prepare_inputs([{"prompt": prompt} for prompt in rows])
    return trainer._buffered_inputs


def logits_of(model, inputs: dict) -> Tensor:
    """[B, T, V] by the model's own forward pass."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    T = inputs["completion_ids"].shape[1]
    return model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, -T - 1 : -1]


def together(pieces: list[dict]) -> dict:
    """The step's micro-batches as one batch."""
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask")
    rows = {name: torch.cat([piece[name] for piece in pieces]) for name in names}
    rows["tool_mask"] = torch.where(rows["completion_mask"] > 0, rows["tool_mask"], 0)
    return rows


def weights(trainer) -> list[Tensor]:
    return [x.detach().clone() for x in trainer.model.parameters()]


def logged(trainer, key: str) -> list[float]:
    return [row[key] for row in trainer.state.log_history if key in row]


def by_prompt(prompts, turn) -> tuple[list[list[int]], list[list[int]]]:
    """Completions that depend on the prompt, its repetition and the turn alone."""
    seen: dict[str, int] = {}
    out = []
    for prompt in prompts:
        k = seen[prompt] = seen.get(prompt, 0) + 1
        word = hashlib.blake2b(f"{prompt}/{k}/{turn}".encode(), digest_size=8).digest()
        g = torch.Generator().manual_seed(int.from_bytes(word, "little") >> 1)
        n = int(torch.randint(1, MAX + 1, (), generator=g))
        out.append(torch.randint(3, 13, (n,), generator=g).tolist())
    return out


def scripted(trainer) -> None:
    """Rollouts that no random stream decides: by the prompt and the optimizer step."""
    tokenizer = trainer.processing_class

    def generate(prompts):
        ids = by_prompt(prompts, trainer.state.global_step)
        encoded = [tokenizer(prompt)["input_ids"] for prompt in prompts]
        return encoded, ids, None, tokenizer.batch_decode(ids), None, {}, None, None

    trainer._generate = generate


def reward_some(prompts, completion_ids, **_) -> list[float]:
    """A prompt in four is paid alike: no signal."""
    return [
        1.0 if prompt == PROMPTS[1] else float(sum(ids) % 5) / 4
        for prompt, ids in zip(prompts, completion_ids, strict=True)
    ]


RUN = {
    "max_steps": 4, "optim": "sgd", "learning_rate": 2e-3, "max_grad_norm": 0.0,
    "gradient_accumulation_steps": 2, "prompts": PROMPTS * 4, "reward": reward_some,
}  # fmt: skip
