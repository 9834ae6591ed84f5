"""Write a task's prompts as veRL's Parquet files: the lab's prompts, order and tokens.

A row is a chat row of veRL's own form, with additions of this trainer under `extra_info`:

    data_source    an example's kind, or the task's name; the name of an evaluation set. veRL
                   groups its metrics by it
    prompt         the turns; for readers, since sampling starts from `prompt_ids`
    reward_model   {"style": "rule", "ground_truth": the answer as text}; veRL's dumps show it
    extra_info     set, the evaluation set's name, "" in training; split and index, by which the
                   task finds its example; prompt_ids, the policy's exact input;
                   max_tokens, the limit of an answer, or of a turn
    __rollout_n__  in the evaluation file: samples, which veRL reads in place of val_kwargs.n

The training file has the prompts of all iterations in order, so veRL must not shuffle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...agents import is_multi_turn
from ...config import TrainConfig
from ...data.generation import observation_tokenizer
from ...data.prompts import (
    context_of,
    drawn,
    encode,
    example,
    new_tokens,
    stop_strings,
    turns_of,
    usual,
    warn_of_lost,
)
from ...logs.files import replace_text, replacing
from ...model_files import find
from ...models.policy import Policy, end_tokens, pad_token
from ...runs.resolve import task_settings
from ...tasks import Example, Task
from ...tasks.sources import from_anywhere
from .model_ref import cannot_load, empty_model, place_of

if TYPE_CHECKING:
    from ...evaluation.eval_sets import ResolvedEvalSet

_ROWS = 4096  # rows written at once
_SAMPLES = "__rollout_n__"


def outline(model: str) -> Policy:
    """The policy without weights, as prompts need it: tokenizer, eos, context, vocabulary."""
    from transformers import AutoTokenizer, GenerationConfig

    name = find(model)
    empty = empty_model(model)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(cannot_load(model, error)) from None
    with suppress(OSError):  # without the file, config.json decides
        empty.generation_config = GenerationConfig.from_pretrained(name)
    eos = end_tokens(empty, tokenizer)
    pad = pad_token(empty, tokenizer, eos)
    context = getattr(empty.config, "max_position_embeddings", None)
    return Policy(empty, tokenizer, torch.device("cpu"), eos, pad, nullcontext, context)


def copy_model(model: str, directory: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    name = find(model)
    weights: Any = AutoModelForCausalLM.from_pretrained(name, dtype="auto", trust_remote_code=False)
    weights.save_pretrained(directory)
    tokenizer: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    tokenizer.save_pretrained(directory)


def room(task: Task, config: TrainConfig, policy: Policy, split: str) -> tuple[int, int]:
    """Maximum tokens of a rollout, and the usual maximum; both without the prompt.

    Observation tokens of several turns count: they may fill the context, and are usually about as
    many as the policy's own.
    """
    most = often = usual(task, config, split)
    if is_multi_turn(task) and (context := context_of(policy, config)) is not None:
        most = context - 1
    return most, min(often, most)


def write_settings(
    path: Path, config: TrainConfig, task: Task, policy: Policy, sets: Iterable[ResolvedEvalSet]
) -> None:
    """Write the settings of agent loop, reward and trainer as JSON, read by `completions.read`."""
    settings = _asked(config, task, policy) | {
        "scoring": asdict(config.scoring),
        "eos": policy.eos,
        "pad": policy.pad,
        "rollouts_every": config.save.rollouts_every,
        "alarm": asdict(config.alarm),
        "sets": {
            one.name: _asked(one.config, one.task, policy) | {"draw": _draw(one)} for one in sets
        },
    }
    replace_text(path, json.dumps(settings, indent=1))


def _asked(config: TrainConfig, task: Task, policy: Policy) -> dict[str, Any]:
    """The part of `completions.Settings` that differs between training and evaluation sets."""
    return {
        "task": from_anywhere(task_settings(config)),  # workers may start in another directory
        "stop": list(stop_strings(task, config)),
        "game": _game(config, task, policy) if is_multi_turn(task) else None,
    }


def _draw(one: ResolvedEvalSet) -> dict[str, Any]:
    if one.greedy:  # as veRL itself requests greedy decoding
        return {"temperature": 0.0, "top_p": 1.0, "top_k": -1}
    return {key: getattr(one.config.sampling, key) for key in ("temperature", "top_p")}


def _game(config: TrainConfig, task: Task, policy: Policy) -> dict[str, Any]:
    """The agent loop's parameters of a multi-turn task (`completions.Settings.game`)."""
    hearing = observation_tokenizer(policy, config)
    hearing("", policy.eos[0])  # fail early if the chat template drops the policy's turns
    return {
        "model": place_of(config.model),
        "turns": {split: turns_of(task, split) for split in task.splits},
        "context": context_of(policy, config),
        "chat": hearing.chat,
        "system": hearing.system,
    }


def write(
    directory: Path, config: TrainConfig, task: Task, policy: Policy,
    sets: Sequence[ResolvedEvalSet], note: Callable[[str], None] = lambda _: None,
) -> tuple[int, int]:  # fmt: skip
    """Write `train.parquet` and `test.parquet`.

    Returns the tokens of the longest training prompt and of the longest evaluation prompt; 0 if
    there is none.
    """
    known: dict[str, list[int]] = {}
    split, widest = task.splits[0], 0
    new, finite = new_tokens(task, config, split), task.size(split) is not None
    first = [example(task, index, split) for index in drawn(task, config, 1)]
    warn_of_lost(policy, config, first, encode(policy, config, first, new, ValueError))

    def training() -> Iterator[dict[str, Any]]:
        nonlocal known, widest
        for iteration in range(1, config.iterations + 1):
            indices = drawn(task, config, iteration)
            examples = [example(task, index, split) for index in indices]
            unknown = {e.prompt: e for e in examples if e.prompt not in known}
            found = encode(policy, config, list(unknown.values()), new, ValueError)
            ids = known | dict(zip(unknown, found, strict=True))
            known = ids if finite else {}  # a finite task's prompts repeat
            prompts = [ids[each.prompt] for each in examples]
            widest = max(widest, *map(len, prompts))
            for index, each, prompt in zip(indices, examples, prompts, strict=True):
                kind = each.data.get("kind") or task.name
                yield _row(kind, "", split, index, each, prompt, new, config)

    note(f"writing the prompts of {config.iterations} iterations")
    _parquet(directory / "train.parquet", training())
    held_out = [row for one in sets for row in _evaluated(one, policy)]
    # veRL requires a second file even without evaluation
    rows = held_out or [next(training()) | {_SAMPLES: 1}]
    _parquet(directory / "test.parquet", rows, _SAMPLES)
    return widest, max((len(r["extra_info"]["prompt_ids"]) for r in held_out), default=0)


def _evaluated(one: ResolvedEvalSet, policy: Policy) -> Iterator[dict[str, Any]]:
    task, split, config = one.task, one.split, one.config
    examples = [example(task, index, split) for index in range(one.count)]
    new = new_tokens(task, config, split)
    prompts = encode(policy, config, examples, new, ValueError)
    for index, (each, ids) in enumerate(zip(examples, prompts, strict=True)):
        row = _row(one.name, one.name, split, index, each, ids, new, config)
        yield row | {_SAMPLES: config.eval.samples}


def _row(
    source: str, name: str, split: str, index: int, example: Example, ids: list[int], new: int,
    config: TrainConfig,
) -> dict[str, Any]:  # fmt: skip
    system = config.prompt.system
    turns = [{"role": "system", "content": system}] if system else []
    return {
        "data_source": source,
        "prompt": [*turns, {"role": "user", "content": example.prompt}],
        "reward_model": {"style": "rule", "ground_truth": str(example.answer)},
        "extra_info": {
            "set": name, "split": split, "index": index, "prompt_ids": ids, "max_tokens": new,
        },
    }  # fmt: skip


def _parquet(path: Path, rows: Iterable[dict[str, Any]], *numbers: str) -> None:
    """Write rows; `numbers` are additional integer columns."""
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
            "set": text, "split": text, "index": number, "prompt_ids": pa.list_(number),
            "max_tokens": number,
        }),
        **dict.fromkeys(numbers, number),
    })  # fmt: skip
    with replacing(path) as part, ParquetWriter(part, schema) as writer:
        left = iter(rows)
        while some := list(islice(left, _ROWS)):
            writer.write_table(pa.Table.from_pylist(some, schema))
