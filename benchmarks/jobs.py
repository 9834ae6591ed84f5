"""The jobs that `lab_vs_trl.py` gives both trainers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from entrostat.model_files import TINY
from entrostat.tasks import Example, Task, make_task

QUESTIONS = (
    "Why is the sky blue?",
    "How do I boil an egg?",
    "Tell me a story about a fox and a river.",
    "What should I see in Rome in two days?",
)


class LetterE:
    """Four user questions, over and over; the reward is the share of `e` among an answer's letters.

    A reward for timing, not for learning: it is cheap, depends on nothing but the text, and as a
    fraction of some hundred letters it is hardly ever the same twice, so that each group has a
    signal and no update is smaller than another. (The length's parity would be the same in a whole
    group wherever no answer ends before the limit, which is often.)
    """

    name = "letter_e"
    splits: tuple[str, ...] = ("train",)
    chat = True

    def max_new_tokens(self, split: str) -> int:
        return 256

    def size(self, split: str) -> int | None:
        return None

    def example(self, index: int, split: str) -> Example:
        return Example(QUESTIONS[index % len(QUESTIONS)])

    def score(self, completion: str, example: Example) -> float:
        letters = [letter for letter in completion.lower() if letter.isalpha()]
        return letters.count("e") / max(1, len(letters))


class Letters(LetterE):
    """The same reward for a model without a chat template: its prompts are made-up words."""

    name = "letters"
    chat = False

    def example(self, index: int, split: str) -> Example:
        return Example(" ".join("bcdf"[(index + i) % 4] + "aeiou"[i % 5] for i in range(24)))


@dataclass(frozen=True)
class Job:
    """What an iteration is, and how long a run of the benchmark is unless it is told otherwise.

    Attributes:
        model: what the lab calls it.
        task: a task's name, or "letter_e".
        prompts, rollouts, new_tokens: of an iteration, of a prompt, of a rollout at most.
        epochs, minibatches: the updates are their product.
        lr: AdamW's learning rate.
        checkpoint_every: the lab's setting; 0 writes one of a large model every ten minutes.
        threads, huge_pages, rounds, warm_up, iterations: defaults of the flags of these names.
    """

    model: str
    task: str
    prompts: int
    rollouts: int
    new_tokens: int
    epochs: int
    minibatches: int
    lr: float
    checkpoint_every: int
    threads: int
    huge_pages: bool
    rounds: int
    warm_up: int
    iterations: int

    @property
    def batch(self) -> int:
        """Rollouts of an iteration."""
        return self.prompts * self.rollouts

    @property
    def minibatch(self) -> int:
        """Rollouts of an update."""
        return self.batch // self.minibatches

    @property
    def updates(self) -> int:
        """Of an iteration."""
        return self.epochs * self.minibatches

    def make_task(self) -> Task:
        """The same prompts in the same order for both sides and all rounds."""
        own = {LetterE.name: LetterE, Letters.name: Letters}
        return own[self.task]() if self.task in own else make_task(self.task, seed=0)

    def __str__(self) -> str:
        return (
            f"{self.task} with {self.model}: {self.prompts} prompts x {self.rollouts} rollouts of "
            f"at most {self.new_tokens} tokens, {self.updates} updates of {self.minibatch} "
            f"rollouts, lr {self.lr:g}"
        )


@dataclass(frozen=True)
class Run:
    """What one process does: `warm_up` iterations of a job, then `counted` ones."""

    job: Job
    precision: str
    threads: int
    huge_pages: bool
    warm_up: int
    counted: int
    seed: int
    measure: bool = True  # the lab's `sampling.measure`
    device: str = "cpu"
    directory: str = ""  # of a model that has no name

    @property
    def iterations(self) -> int:
        return self.warm_up + self.counted

    @property
    def model(self) -> str:
        return self.directory or self.job.model

    def between(self, ends: list[float]) -> list[float]:
        """Seconds of each counted iteration, from the moments at which all of them ended."""
        return [end - begin for begin, end in pairwise(ends[self.warm_up - 1 :])]


TARGET_SUM = Job(
    TINY, "target_sum", prompts=32, rollouts=8, new_tokens=13, epochs=2, minibatches=2, lr=3e-4,
    checkpoint_every=1, threads=1, huge_pages=False, rounds=5, warm_up=2, iterations=10,
)  # fmt: skip
WORDS = Job(
    "smollm2", "words", prompts=16, rollouts=16, new_tokens=8, epochs=1, minibatches=2, lr=1e-5,
    checkpoint_every=0, threads=2, huge_pages=True, rounds=2, warm_up=1, iterations=2,
)  # fmt: skip
CHAT = Job(
    "smollm2", LetterE.name, prompts=4, rollouts=8, new_tokens=256, epochs=1, minibatches=2,
    lr=1e-6, checkpoint_every=0, threads=2, huge_pages=True, rounds=2, warm_up=1, iterations=2,
)  # fmt: skip
LETTERS = Job(
    "shape", Letters.name, prompts=8, rollouts=16, new_tokens=128, epochs=1, minibatches=2,
    lr=1e-6, checkpoint_every=0, threads=8, huge_pages=False, rounds=1, warm_up=1, iterations=2,
)  # fmt: skip
FEW_LETTERS = replace(LETTERS, prompts=2, rollouts=4, new_tokens=8, threads=1)

# by model, then by job; the first is the default. gpu/model.py makes the model "shape"
JOBS: dict[str, dict[str, Job]] = {
    TINY: {"target_sum": TARGET_SUM},
    "smollm2": {"words": WORDS, "chat": CHAT},
    "shape": {"letters": LETTERS, "few_letters": FEW_LETTERS},
}
