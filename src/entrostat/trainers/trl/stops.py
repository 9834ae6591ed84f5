"""Stop strings in TRL's own generation (`models/stops.py` has the rule).

The token that completes a stop is the completion's last one, trained on like an eos. In
transformers a stopping criterion ends generation there. TRL, which knows eos ids only, returns the
following tokens as padding, which is cut off. vLLM checks the strings itself.

Shapes: b sequences generated at once, n tokens so far.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from ...models.stops import Stops


class Ends(StoppingCriteria):
    """Stopping criterion of one `generate` call; holds each sequence's length at its stop."""

    def __init__(self, stops: Stops) -> None:
        self._stops, self._prompt = stops, 0
        self._at: Tensor | None = None  # [b] int64, 0 before a stop

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        """Whether each sequence has stopped, [b] bool; ids are [b, prompt + n]."""
        if self._at is None:
            self._prompt = input_ids.shape[1] - 1
            self._at = torch.zeros(len(input_ids), dtype=torch.int64, device=input_ids.device)
        now = self._stops.completed(input_ids[:, self._prompt :]) & (self._at == 0)
        self._at = torch.where(now, input_ids.shape[1] - self._prompt, self._at)
        return self._at > 0

    def cut(self, completions: list[list[int]]) -> list[list[int]]:
        assert self._at is not None
        ends = self._at.tolist()
        return [ids[: end or None] for ids, end in zip(completions, ends, strict=True)]


class Ending:
    """Ends of a completion: eos ids, and stop strings if any."""

    def __init__(self, strings: Sequence[str], tokenizer: Any, eos: Sequence[int]) -> None:
        skip = {*eos, tokenizer.pad_token_id}

        def decode(rows: list[list[int]]) -> list[str]:
            return tokenizer.batch_decode([[t for t in row if t not in skip] for row in rows])

        self.strings, self._eos = tuple(strings), set(eos)
        self._stops = Stops(self.strings, decode)

    @contextmanager
    def watched(self, model: Any) -> Iterator[Ends]:
        """Within the context, the model's `generate` stops at the strings."""
        assert self.strings
        own, ends = vars(model).get("generate"), Ends(self._stops)
        model.generate = partial(model.generate, stopping_criteria=StoppingCriteriaList([ends]))
        try:
            yield ends
        finally:
            del model.generate
            if own is not None:
                model.generate = own

    def finished(self, completions: list[list[int]]) -> list[bool]:
        """Whether each completion ended by eos or a stop; the others were truncated."""
        ended = [bool(ids) and ids[-1] in self._eos for ids in completions]
        if not self.strings:
            return ended
        stopped = self._stops.ended(completions)
        return [a or b for a, b in zip(ended, stopped, strict=True)]


def with_stops(args: Any, stop: Sequence[str]) -> Any:
    """Return arguments with which TRL stops at the strings; raise ValueError if it cannot."""
    if not stop:
        return args
    for key, why in (
        ("mask_truncated_completions", "TRL takes a completion without an eos for a truncated one"),
        ("use_transformers_continuous_batching", "it knows eos ids only"),
    ):
        if getattr(args, key):
            raise ValueError(
                f"EntropyGRPOTrainer: {key}=True with stop={tuple(stop)!r}: {why}; set it False, "
                "or train without stops"
            )
    args = copy.copy(args)
    if args.use_vllm:
        own = {"stop": list(stop), "include_stop_str_in_output": True}
        args.generation_kwargs = {**(args.generation_kwargs or {}), **own}
    return args
