"""The prompts of an iteration, as token ids, and the sampling settings of their completions."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..agents import is_multi_turn
from ..config import TrainConfig
from ..errors import RunStopped, in_one_line
from ..model_files import is_tiny
from ..models.policy import Policy, vocabulary
from ..models.stops import Stops
from ..tasks import Example, Task
from .seeds import stream_seed

_APART = 2**40  # first index for infinite tasks, beyond any run's
_OF_TINY = ("target_sum", "tool_sum")  # tasks in the tiny policy's alphabet


def new_tokens(task: Task, config: TrainConfig, split: str) -> int:
    new = config.sampling.max_new_tokens or task.max_new_tokens(split)
    if not isinstance(new, int) or new < 1:
        raise ValueError(f"task {task.name!r}: max_new_tokens must be at least 1, got {new!r}")
    return new


def turns_of(task: Task, split: str) -> int:
    if not is_multi_turn(task):
        return 1
    turns: Any = task.turns(split)  # pyrefly: ignore[missing-attribute]
    if not isinstance(turns, int) or turns < 1:
        raise ValueError(f"task {task.name!r}: turns must be at least 1, got {turns!r}")
    return turns


def longest(task: Task, config: TrainConfig, split: str) -> int:
    """Most tokens that the policy may sample in one rollout, over all turns."""
    new = new_tokens(task, config, split) * turns_of(task, split)
    return new if config.sampling.max_context is None else min(new, config.sampling.max_context)


def usual(task: Task, config: TrainConfig, split: str) -> int:
    """A usual rollout's most tokens: observations are about as long as the policy's turns."""
    return longest(task, config, split) * (2 if is_multi_turn(task) else 1)


def context_of(policy: Policy, config: TrainConfig) -> int | None:
    """Most tokens of a prompt and its rollout together; None for any number."""
    bounds = [policy.context, config.sampling.max_context]
    return min((bound for bound in bounds if bound is not None), default=None)


def uses_chat(tokenizer: Any, config: TrainConfig) -> bool:
    chat = config.prompt.chat
    return bool(tokenizer.chat_template) if chat is None else chat


def draw(task: Task, config: TrainConfig, iteration: int) -> list[Example]:
    """This iteration's prompts: the next of a finite task's shuffled epochs, or new ones."""
    split = task.splits[0]
    return [example(task, index, split) for index in drawn(task, config, iteration)]


def drawn(task: Task, config: TrainConfig, iteration: int) -> list[int]:
    """The prompts' indices in the task's first split; in a finite one each once per epoch."""
    first = (iteration - 1) * config.sampling.prompts
    places = range(first, first + config.sampling.prompts)
    size = task.size(task.splits[0])
    if size is None:
        return list(places)
    orders = {epoch: _order(config, size, epoch) for epoch in {i // size for i in places}}
    return [int(orders[i // size][i % size]) for i in places]


def _order(config: TrainConfig, size: int, epoch: int) -> np.ndarray:
    """The examples of an epoch, shuffled.

    Where an epoch begins within an iteration, examples that the iteration has from the last epoch
    are moved behind it: none comes twice. A split of less than two iterations is not rearranged.
    """
    order = _shuffled(config, size, epoch)
    prompts = config.sampling.prompts
    before = epoch * size % prompts  # prompts of that iteration from the last epoch
    if before and size >= 2 * prompts:
        asked = _shuffled(config, size, epoch - 1)[-before:]
        head = order[~np.isin(order, asked)][: prompts - before]
        order = np.concatenate([head, order[~np.isin(order, head)]])
    return order


def _shuffled(config: TrainConfig, size: int, epoch: int) -> np.ndarray:
    return np.random.default_rng(stream_seed(config.seed, epoch, "prompts")).permutation(size)


def fresh(task: Task, config: TrainConfig, iteration: int, count: int) -> list[Example]:
    """Prompts like an iteration's, drawn independently; for a finite task they may overlap.

    An infinite task gives prompts that no iteration uses.
    """
    first = _APART + iteration * count
    return _apart(task, stream_seed(config.seed, iteration, "forecast"), first, count)


def redrawn(
    task: Task, config: TrainConfig, iteration: int, again: int, count: int
) -> list[Example]:
    """Prompts that replace some of an iteration's, from its `again`-th further draw."""
    stream = (iteration << 8) + again
    first = 2 * _APART + stream * config.sampling.prompts
    return _apart(task, stream_seed(config.seed, stream, "redraw"), first, count)


def _apart(task: Task, seed: int, first: int, count: int) -> list[Example]:
    """Random examples of a finite split, or those from index `first` on of an infinite one."""
    split = task.splits[0]
    places: Iterable[int] = range(first, first + count)
    if (size := task.size(split)) is not None:
        rng = np.random.default_rng(seed)
        places = np.concatenate([rng.permutation(size) for _ in range(-(-count // size))])[:count]
    return [example(task, int(index), split) for index in places]


def example(task: Task, index: int, split: str) -> Example:
    """A task's example, validated."""
    who = f"{task.name}.example({index}, {split!r})"
    try:
        given = task.example(index, split)
    except Exception as error:
        raise RunStopped(f"{who} raised {in_one_line(error)}") from error
    if not isinstance(given, Example) or not isinstance(given.prompt, str):
        raise RunStopped(
            f"{who} must give an entrostat.Example with a text as prompt, not {given!r:.80}"
        )
    try:
        given.prompt.encode()
    except UnicodeEncodeError:
        raise RunStopped(
            f"{who}: the prompt holds half a surrogate pair, which is no text: "
            f"{given.prompt[:80]!r}"
        ) from None
    return given


def encode(
    policy: Policy, config: TrainConfig, examples: Sequence[Example], new: int,
    refusal: type[Exception] = RunStopped,
) -> list[list[int]]:  # fmt: skip
    """Token ids of each prompt.

    Raises:
        RunStopped: a prompt and its `new` tokens do not fit the context, or a token is not in the
            model's vocabulary; `refusal` instead if no run has begun.
    """
    known, context = vocabulary(policy.model), context_of(policy, config)
    chat = uses_chat(policy.tokenizer, config)
    prompts = []
    for example in examples:
        ids = policy.encode(example.prompt, chat, config.prompt.system)
        if max(ids) >= known:
            raise refusal(
                f"the tokenizer makes token {max(ids)} of the prompt {example.prompt[:60]!r}, but "
                f"the model's vocabulary has {known}: they do not belong together, give the model "
                "with its own tokenizer"
            )
        if context is not None and len(ids) + new > context:
            whose = "the model's context" if context == policy.context else "sampling.max_context"
            raise refusal(
                f"a prompt of {len(ids)} tokens and {new} new ones exceed {whose} of {context}: "
                f"{example.prompt[:60]!r}. Lower --sampling.max-new-tokens (now {new}) or shorten "
                f"the prompt{_another(config)}"
            )
        prompts.append(ids)
    return prompts


def warn_of_lost(
    policy: Policy, config: TrainConfig, examples: Sequence[Example], prompts: Sequence[list[int]]
) -> None:
    """Warn if token ids lack characters of their prompts: the policy cannot read the task."""
    for example, ids in zip(examples, prompts, strict=True):
        read = policy.tokenizer.decode(ids).casefold()  # some tokenizers are lowercase only
        lost = {
            c for c in example.prompt if c.isascii() and c.isalnum() and c.casefold() not in read
        }
        if lost:
            warnings.warn(
                f"the tokenizer of {config.model} leaves out {', '.join(sorted(lost)[:8])}: "
                f"of {example.prompt[:60]!r} the policy reads {read[:60]!r}{_another(config)}",
                stacklevel=2,
            )
            return


def _another(config: TrainConfig) -> str:
    foreign = is_tiny(config.model) and config.task["name"] not in _OF_TINY
    return ". The tiny policy knows target_sum only: give another --model" if foreign else ""


def stop_strings(task: Task, config: TrainConfig) -> tuple[str, ...]:
    if config.sampling.stop is not None:
        return config.sampling.stop
    found = getattr(task, "stop", ())
    if not isinstance(found, tuple | list) or not all(isinstance(s, str) and s for s in found):
        raise ValueError(f"task {task.name!r}: stop must be strings in a tuple, got {found!r}")
    return tuple(found)


def sampler_settings(
    policy: Policy, config: TrainConfig, new: int, stop: tuple[str, ...]
) -> dict[str, Any]:
    """The arguments of `rollout.sample` that are constant in a run."""
    return {
        "max_new_tokens": new,
        "eos": policy.eos,
        "pad": policy.pad,
        "temperature": config.sampling.temperature,
        "top_p": config.sampling.top_p,
        "batch": config.sampling.batch,
        "autocast": policy.autocast,
        "share": policy.shares,
        "prepack": policy.prepacks,
        "graph": policy.graphs,
        "stops": Stops(stop, policy.texts) if stop else None,
    }
