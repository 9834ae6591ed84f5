"""A task's prompts as the Parquet files that veRL reads: the lab's prompts, order and tokens.

A row is a chat row of veRL's own form, with what this host adds under `extra_info`:

    data_source    the task's name
    prompt         the turns; for readers, since sampling starts from `prompt_ids`
    reward_model   {"style": "rule", "ground_truth": the answer as text}; veRL's dumps show it
    extra_info     split and index, by which the task finds its example again; prompt_ids, the
                   policy's input, token for token; max_tokens that an answer may take

The training file has the prompts of all iterations, one after another, so veRL must not shuffle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ...agents import is_multi_turn
from ...config import TrainConfig
from ...logs.files import replacing
from ...models import find
from ...tasks import Example, Task
from ...tasks.sources import from_anywhere
from ..lab.abilities import SMALL
from ..lab.policy import Policy, end_tokens, learning_rate, vocabulary
from ..lab.prompts import (
    context_of,
    drawn,
    encode,
    example,
    new_tokens,
    stop_strings,
    turns_of,
    usual,
)
from ..lab.turns import hearing_of
from ..resolve import check_task, task_of
from .recipe import place_of

_ROWS = 4096  # written at once


@dataclass(frozen=True)
class Written:
    """What was found while the files were written.

    Attributes:
        prompt: tokens of the longest prompt.
        evaluated: (split, prompts) that are evaluated on.
    """

    prompt: int
    evaluated: tuple[tuple[str, int], ...]


def make(config: TrainConfig, task: Task | None = None) -> Task:
    """The configuration's task; veRL's processes make it again, so no other can be meant.

    Raises:
        ValueError: there is none of that name, or `task` is another.
    """
    made = task_of(config)
    if task is not None and type(task) is not type(made):
        raise ValueError(
            f"host verl: task is a {type(task).__name__}, but veRL's workers make theirs from the "
            f"configuration, {config.task['name']!r}; name its class there, MODULE:CLASS"
        )
    check_task(made)
    return made


def outline(model: str) -> Policy:
    """What prompts need of a policy: tokenizer, ends, context and vocabulary, without its weights.

    Args:
        model: name, or path of a directory.

    Raises:
        ValueError: there is no such model, or it has no tokenizer or no eos.
    """
    from transformers import AutoTokenizer, GenerationConfig

    name = find(model)
    empty = _empty(model)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(_cannot(model, error)) from None
    with suppress(OSError):  # without a file it follows from config.json
        empty.generation_config = GenerationConfig.from_pretrained(name)
    eos = end_tokens(empty, tokenizer)
    pad = tokenizer.pad_token_id
    pad = pad if pad is not None and 0 <= pad < vocabulary(empty) else eos[0]
    context = getattr(empty.config, "max_position_embeddings", None)
    return Policy(empty, tokenizer, torch.device("cpu"), eos, pad, nullcontext, context)


def copy_model(model: str, directory: Path) -> None:
    """Weights and tokenizer of a model, as they are, into a directory."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    name = find(model)
    weights: Any = AutoModelForCausalLM.from_pretrained(name, dtype="auto", trust_remote_code=False)
    weights.save_pretrained(directory)
    tokenizer: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    tokenizer.save_pretrained(directory)


def learning_rate_of(config: TrainConfig) -> float:
    """The learning rate, by the lab's rule where it is left open.

    Raises:
        ValueError: the model that decides it cannot be found.
    """
    if config.optim.lr is not None or config.lora.rank:
        return learning_rate(config, small=False)
    return learning_rate(config, sum(p.numel() for p in _empty(config.model).parameters()) < SMALL)


def _empty(model: str) -> Any:
    """The model without weights: tensors that have shapes only."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        settings = AutoConfig.from_pretrained(find(model), trust_remote_code=False)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(settings)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(_cannot(model, error)) from None


def _cannot(model: str, error: Exception) -> str:
    reason = str(error).strip().split("\n")[0][:300]
    return f"model {model!r}: cannot load it: {reason}"


def room(task: Task, config: TrainConfig, policy: Policy) -> tuple[int, int]:
    """Tokens that a rollout may take, and that one usually takes at most; a prompt is not counted.

    Of several turns those of the environment are among them: they may fill the context, and are
    usually about as many as the policy's own.
    """
    splits = task.splits if config.eval.prompts else task.splits[:1]
    most = often = max(usual(task, config, split) for split in splits)
    if is_multi_turn(task) and (context := context_of(policy, config)) is not None:
        most = context - 1
    return most, min(often, most)


def write_settings(path: Path, config: TrainConfig, task: Task, policy: Policy) -> None:
    """Write what agent loop, reward and trainer read: JSON, as `completions.Settings` says."""
    chosen: dict[str, Any] = {"seed": config.seed} | config.task
    settings = {
        "task": from_anywhere(chosen),  # workers may start elsewhere
        "scoring": asdict(config.scoring),
        "stop": list(stop_strings(task, config)),
        "eos": policy.eos,
        "pad": policy.pad,
        "rollouts_every": config.save.rollouts_every,
        "game": _game(config, task, policy) if is_multi_turn(task) else None,
    }
    with replacing(path) as part:
        part.write_text(json.dumps(settings, indent=1), encoding="utf-8")


def _game(config: TrainConfig, task: Task, policy: Policy) -> dict[str, Any]:
    """What the agent loop needs to play the task, as `completions.Settings` says."""
    hearing = hearing_of(policy, config)
    hearing("", policy.eos[0])  # what stands between turns shows whether there can be any
    return {
        "model": place_of(config.model),
        "turns": {split: turns_of(task, split) for split in task.splits},
        "context": context_of(policy, config),
        "chat": hearing.chat,
        "system": hearing.system,
    }


def write(
    directory: Path, config: TrainConfig, task: Task, policy: Policy,
    note: Callable[[str], None] = lambda _: None,
) -> Written:  # fmt: skip
    """Write `train.parquet` and `test.parquet`.

    Raises:
        ValueError: pyarrow is not installed, or the prompts do not fit the model.
        RunStopped: the task raised, or the disk is full.
    """
    widest = 0
    known: dict[str, list[int]] = {}  # a finite task's prompts come again

    def tokens(examples: list[Example], new: int) -> list[list[int]]:
        nonlocal widest
        unknown = {e.prompt: e for e in examples if e.prompt not in known}
        found = encode(policy, config, list(unknown.values()), new, ValueError)
        ids = known | dict(zip(unknown, found, strict=True))
        if task.size(task.splits[0]) is not None:
            known.update(ids)
        widest = max(widest, *(len(ids[e.prompt]) for e in examples))
        return [ids[e.prompt] for e in examples]

    def rows(split: str, indices: Iterable[int]) -> list[dict[str, Any]]:
        indices, new = list(indices), new_tokens(task, config, split)
        examples = [example(task, i, split) for i in indices]
        return [
            _row(task, split, index, each, ids, new, config.prompt.system)
            for index, each, ids in zip(indices, examples, tokens(examples, new), strict=True)
        ]

    def training() -> Iterator[dict[str, Any]]:
        for iteration in range(1, config.iterations + 1):
            yield from rows(task.splits[0], drawn(task, config, iteration))

    note(f"writing the prompts of {config.iterations} iterations")
    evaluated = tuple((split, evaluation_prompts(task, config, split)) for split in task.splits[1:])
    evaluated = tuple((split, count) for split, count in evaluated if count)
    held_out = [row for split, count in evaluated for row in rows(split, range(count))]
    # veRL wants a second file also where it evaluates nothing
    _parquet(directory / "test.parquet", held_out or rows(task.splits[0], [0]))
    _parquet(directory / "train.parquet", training())
    return Written(widest, evaluated)


def evaluation_prompts(task: Task, config: TrainConfig, split: str) -> int:
    """How many prompts of a split are evaluated on: as in the lab, the first ones."""
    size = task.size(split)
    return config.eval.prompts if size is None else min(config.eval.prompts, size)


def _row(
    task: Task, split: str, index: int, example: Example, ids: list[int], new: int, system: str
) -> dict[str, Any]:
    turns = [{"role": "system", "content": system}] if system else []
    return {
        "data_source": task.name,
        "prompt": [*turns, {"role": "user", "content": example.prompt}],
        "reward_model": {"style": "rule", "ground_truth": str(example.answer)},
        "extra_info": {"split": split, "index": index, "prompt_ids": ids, "max_tokens": new},
    }


def _parquet(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter
    except ImportError:
        raise ValueError(
            "host verl writes Parquet, which takes pyarrow: pip install pyarrow"
        ) from None
    text, number = pa.string(), pa.int64()
    schema = pa.schema({
        "data_source": text,
        "prompt": pa.list_(pa.struct({"role": text, "content": text})),
        "reward_model": pa.struct({"style": text, "ground_truth": text}),
        "extra_info": pa.struct({
            "split": text, "index": number, "prompt_ids": pa.list_(number), "max_tokens": number,
        }),
    })  # fmt: skip
    with replacing(path) as part, ParquetWriter(part, schema) as writer:
        waiting: list[dict[str, Any]] = []
        for row in rows:
            waiting.append(row)
            if len(waiting) == _ROWS:
                writer.write_table(pa.Table.from_pylist(waiting, schema))
                waiting = []
        writer.write_table(pa.Table.from_pylist(waiting, schema))
