"""The end and the text of a completion, by the lab's rules, in veRL's processes.

Imports no veRL. `data.write_settings` writes the `Settings`.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ...models.stops import cut

Decode = Callable[[list[list[int]]], list[str]]  # ids of several completions to their texts

# veRL starts these engines without a tokenizer, so they cannot check stop strings
_WITHOUT_STOPS = ("sglang", "trtllm")


@dataclass(frozen=True)
class Settings:
    """The settings of a run's training, or of one evaluation set, for veRL's processes."""

    task: dict[str, Any]  # name and parameters, as for `make_task`
    scoring: dict[str, Any]  # the configuration's `scoring`
    stop: tuple[str, ...]  # strings that end a completion
    eos: tuple[int, ...]  # token ids that end a completion
    pad: int  # padding token id
    rollouts_every: int  # iterations between rollout dumps; 0 for none
    alarm: dict[str, Any] = field(default_factory=dict)  # the alarm's band, `low` and `high`
    # of a multi-turn task: `model`, whose tokenizer encodes observations, `turns` by split,
    # `context`, `chat` and `system`
    game: dict[str, Any] | None = None
    # of an evaluation set: sampling parameters that override veRL's
    draw: dict[str, Any] | None = None

    def sampling(self, engine: str) -> dict[str, Any]:
        """Sampling parameters that extend or override those that veRL gives the engine.

        The engine may ignore stops, so `Settings.end` checks them again.
        """
        told = dict(self.draw or {})
        if self.stop and engine not in _WITHOUT_STOPS:
            told |= {"stop": list(self.stop), "include_stop_str_in_output": True}
        return told

    def end(self, tokens: Sequence[int], decode: Decode) -> tuple[int, bool]:
        """Count a completion's tokens up to its end; also return whether it ended by eos or a stop.

        As in the lab, the token that completes a stop is the last one. Tokens that the engine
        sampled after it are discarded.
        """

        def stopped(n: int) -> bool:
            text = self.texts([list(tokens[:n])], decode)[0]
            return any(s in text for s in self.stop)

        if stopped(len(tokens)):
            return bisect_left(range(len(tokens)), True, key=stopped), True
        return len(tokens), bool(tokens) and tokens[-1] in self.eos

    def texts(self, rows: list[list[int]], decode: Decode) -> list[str]:
        """Decode token ids, without eos and padding."""
        skip = {*self.eos, self.pad}
        return decode([[t for t in row if t not in skip] for row in rows])

    def text(self, tokens: Sequence[int], decode: Decode) -> str:
        """A completion's text as the scorer gets it: cut before the first stop."""
        return cut(self.texts([list(tokens)], decode)[0], self.stop)


@cache
def read(path: str, name: str = "") -> Settings:
    """Read a settings file: the part of an evaluation set, or of training with ""."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        sets = data.pop("sets")
        data |= sets[name] if name else {}
        stop, eos = tuple(data.pop("stop")), tuple(data.pop("eos"))
        return Settings(stop=stop, eos=eos, **data)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path}: no settings of a run ({error}); `entrostat train --host verl` writes them, "
            "on a disk that all nodes see"
        ) from None
