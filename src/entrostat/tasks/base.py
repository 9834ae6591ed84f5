"""What a task is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class Example:
    """One prompt and what its verifier needs.

    Attributes:
        prompt: text given to the policy (the user's turn where the tokenizer has a chat template).
        answer: whatever `Task.score` compares with.
        data: anything else a scorer or a report wants. Figures know the prompt by `data["label"]`,
            a short text; without it by the end of the prompt.
    """

    prompt: str
    answer: Any = None
    data: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class Task(Protocol):
    """Prompts plus a verifier. Any object with these members will do.

    A task may also have:

    - `score_batch(completions, examples) -> list[float]`, called once for all rollouts of an
      iteration in place of `score` (a reward model, say);
    - `stop: tuple[str, ...]`, texts that end a completion, unless the run says otherwise
      (`sampling.stop`); `score` gets what comes before the first of them;
    - `chat: bool`, whether prompts go through the tokenizer's chat template, unless the run says
      otherwise (`prompt.chat`); without it they do where there is one;
    - `trainable: bool`, False for a test set: hosts refuse to train on it;
    - `environment(example) -> Environment` and `turns(split) -> int`: its rollouts take turns with
      an environment (`entrostat.agents`), which gives the reward in place of `score`;
    - `canonical(completion) -> str`, the form in which right answers are counted as the same
      (lower case, say);
    - `remote(completion, example) -> Call | None`, what `score` does as a call for a worker process
      (`entrostat.workers`), for a scorer that may hang or crash: then such an answer scores 0, is
      counted, and the run goes on. None: `score` is called here. `remote_setup() -> Call`, made
      once before the first.

    Attributes:
        name: for logs and reports.
        splits: names of its splits; the first is trained on, the others evaluated on.
    """

    name: str
    splits: tuple[str, ...]

    def max_new_tokens(self, split: str) -> int:
        """Tokens that an answer may take, unless the run says otherwise."""
        ...

    def size(self, split: str) -> int | None:
        """Number of prompts of a split; None for an endless one."""
        ...

    def example(self, index: int, split: str) -> Example:
        """Prompt number `index` of a split: always the same one."""
        ...

    def score(self, completion: str, example: Example) -> float:
        """The outcome reward of one completion (eos and padding removed). It parses, never runs.

        An answer that it raises at, or gives no finite number for, scores 0 and is counted.
        """
        ...
