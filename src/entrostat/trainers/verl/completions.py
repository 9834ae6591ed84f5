"""Where a completion ends and what its text is: the lab's rules, in veRL's processes.

No veRL here. `Settings` is what `data.write_settings` wrote.
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

# what a rollout engine's sampling parameters are called, where they know stops; veRL starts these
# two without a tokenizer, so that they cannot
_WITHOUT_STOPS = ("sglang", "trtllm")


@dataclass(frozen=True)
class Settings:
    """What veRL's processes know of a run's training, or of one of its evaluation sets."""

    task: dict[str, Any]  # name and parameters, as `make_task` takes them
    scoring: dict[str, Any]  # the configuration's
    stop: tuple[str, ...]  # texts that end a completion
    eos: tuple[int, ...]  # ids that end one
    pad: int  # id of padding
    rollouts_every: int  # iterations between rollout dumps; 0 for none
    alarm: dict[str, Any] = field(default_factory=dict)  # its band, `low` and `high`
    # of a task that is played in turns: `model`, whose tokenizer says how observations become
    # tokens, `turns` by split, `context`, `chat` and `system`
    game: dict[str, Any] | None = None
    # of an evaluation set: sampling parameters in place of those that veRL gives
    draw: dict[str, Any] | None = None

    def sampling(self, engine: str) -> dict[str, Any]:
        """What the rollout engine is told beside veRL's sampling parameters, or in their place.

        To stops it may not listen (`Settings.end`).
        """
        told = dict(self.draw or {})
        if self.stop and engine not in _WITHOUT_STOPS:
            told |= {"stop": list(self.stop), "include_stop_str_in_output": True}
        return told

    def end(self, tokens: Sequence[int], decode: Decode) -> tuple[int, bool]:
        """How many of a completion's tokens count, and whether it ended by itself.

        The token that completes a stop is the last one, as in the lab; what an engine sampled
        after it was sampled in vain.
        """

        def stopped(n: int) -> bool:
            text = self.texts([list(tokens[:n])], decode)[0]
            return any(s in text for s in self.stop)

        if stopped(len(tokens)):
            return bisect_left(range(len(tokens)), True, key=stopped), True
        return len(tokens), bool(tokens) and tokens[-1] in self.eos

    def texts(self, rows: list[list[int]], decode: Decode) -> list[str]:
        """Token ids as text, without eos and padding."""
        skip = {*self.eos, self.pad}
        return decode([[t for t in row if t not in skip] for row in rows])

    def text(self, tokens: Sequence[int], decode: Decode) -> str:
        """A completion's text as its scorer gets it: cut before the first stop."""
        return cut(self.texts([list(tokens)], decode)[0], self.stop)


@cache
def read(path: str, name: str = "") -> Settings:
    """The settings in a file: of an evaluation set, or with "" of training."""
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
