"""The task protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class Example:
    """One prompt and what its verifier needs.

    Attributes:
        prompt: text given to the policy (the user's turn if a chat template is used).
        answer: the value that `Task.score` compares with.
        data: further data for a scorer or a report. Figures label the prompt with `data["label"]`,
            a short text, or else with the end of the prompt.
    """

    prompt: str
    answer: Any = None
    data: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class Task(Protocol):
    """Prompts plus a verifier. Any object with these members will do.

    A task may also have:

    - `score_batch(completions, examples) -> list[float]`, called once for all rollouts of an
      iteration instead of `score` (such as a reward model);
    - `stop: tuple[str, ...]`, texts that end a completion, unless `sampling.stop` is set; `score`
      gets the text before the first of them;
    - `chat: bool`, whether prompts use the tokenizer's chat template, unless `prompt.chat` is set;
      by default they use the template if there is one;
    - `trainable: bool`, False for a test set, on which trainers raise an error;
    - `environment(example) -> Environment` and `turns(split) -> int`: its rollouts take turns with
      an environment (`entrostat.agents`), which gives the reward instead of `score`;
    - `canonical(completion) -> str`, the form in which right answers are compared when distinct
      ones are counted (such as lower case);
    - `remote(completion, example) -> Call | None`, `score` as a call for a worker process
      (`entrostat.workers`), for a scorer that may hang or crash. A completion at which it does gets
      score 0 and is counted, and the run continues. With None `score` is called in the process.
      `remote_setup() -> Call` is a call made once before the first.

    Attributes:
        name: for logs and reports.
        splits: names of its splits: the first is for training, the others are for evaluation.
    """

    name: str
    splits: tuple[str, ...]

    def max_new_tokens(self, split: str) -> int:
        """Most tokens of a completion, unless the run sets another limit."""
        ...

    def size(self, split: str) -> int | None:
        """Number of prompts of a split; None for an endless one."""
        ...

    def example(self, index: int, split: str) -> Example:
        """Prompt number `index` of a split: always the same one."""
        ...

    def score(self, completion: str, example: Example) -> float:
        """The outcome reward of one completion, without eos and padding; parses, never executes.

        If it raises or returns no finite number, the completion gets score 0 and is counted.
        """
        ...
