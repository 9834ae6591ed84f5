"""Settings of an evaluation, and presets of the five papers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

from ..config import Scoring
from ..config.ranges import check_device, check_ranges, within

ENDLESS = 100  # problems of a set without an end


@dataclass(frozen=True)
class Decoding:
    k: int = 16  # responses per problem
    temperature: float = 1.0  # for sampling; also for log-probs and entropies
    top_p: float = 1.0  # nucleus sampling; log-probs and entropies use the whole distribution
    greedy: bool = False  # greedy decoding, so k is 1; metrics at temperature 1
    max_new_tokens: int | None = None  # None takes the task's


GREEDY = Decoding(k=1, greedy=True)
SMALL = ("aime24", "aime25", "amc23")  # 30, 30 and 40 problems: sampled several times
# the papers' sets, to which a paper's length applies; other sets use their task's length
BENCHMARKS = (
    *SMALL, "math500", "minerva", "olympiadbench", "omni_math", "livecodebench", "ifeval",
)  # fmt: skip


@dataclass(frozen=True)
class Preset:
    where: str  # paper and section
    small: Decoding  # for AIME and AMC
    others: Decoding  # for any other set
    tokens: int | None  # `max_new_tokens` on `BENCHMARKS`; None takes the task's

    def decoding(self, task: str) -> Decoding:
        found = self.small if task in SMALL else self.others
        tokens = self.tokens if task in BENCHMARKS else None
        return dataclasses.replace(found, max_new_tokens=tokens)


_NUCLEUS = Decoding(k=32, temperature=1.0, top_p=0.7)
_ONCE = Decoding(k=1, temperature=1.0, top_p=0.7)
PRESETS: dict[str, Preset] = {
    "cov": Preset("COV Tab. 2, App. F.2", Decoding(k=32, temperature=0.6), GREEDY, 8192),
    # 3000 tokens for Qwen2.5-Math-7B; 8000 for Qwen3-4B
    "opefo": Preset("OPEFO Sec. 6.1", _NUCLEUS, _ONCE, 3000),
    "steer": Preset("STEER App. D", _NUCLEUS, _ONCE, 3072),
    # the length of the rollouts; the paper gives none for evaluation
    "par": Preset("PAR App. B", Decoding(k=64), Decoding(k=64), 4096),
    "repo": Preset("REPO Sec. 4, Tab. 3", Decoding(k=64), Decoding(k=64), 4096),
}


@dataclass
class EvalConfig:
    """All settings of an evaluation, except the models."""

    on: str = ""
    """Sets, separated by commas: a task's name, or NAME/SPLIT. Default: the run's own sets."""
    preset: Literal["none", "cov", "opefo", "steer", "par", "repo"] = "none"
    """A paper's settings; other flags override it."""
    k: int | None = within(None, 1)
    """Responses per problem; None takes the preset's, else 16."""
    temperature: float | None = within(None, 0)
    """Sampling temperature; None takes the preset's, else 1."""
    top_p: float | None = within(None, 0, 1, above=True)
    """Nucleus sampling; None takes the preset's, else 1 (the whole distribution)."""
    greedy: bool | None = None
    """Take the likeliest token each time, one response per problem."""
    max_new_tokens: int | None = within(None, 1)
    """Longest response in tokens; None takes the preset's, else the run's on its own task, else the
    task's."""
    stop: tuple[str, ...] | None = None
    """Texts that end a response; None takes the run's on its own task, else the task's; an empty
    list turns them off."""
    problems: int | None = within(None, 1)
    """Number of problems of each set, from the first; None takes all, or 100 of an endless set."""
    seed: int = within(0, 0)
    """Random seed: a problem's samples depend only on (seed, set, problem)."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """Engine that generates. vLLM measures no entropies and no clusters."""
    output: str = ""
    """Directory; empty for runs/eval/NAME, or runs/eval where several are evaluated."""
    base: str = ""
    """Base model: prompt entropies are also reported relative to its own (PAR App. C.2)."""
    prompt_chat: bool | None = None
    """Use the tokenizer's chat template; None: as the run, else the task, else if there is one."""
    prompt_system: str | None = None
    """System message for the chat template; None takes the run's."""
    cluster_distance: float = within(0.1, 0)
    """Cosine distance that separates clusters of responses; 0 leaves clusters out."""
    resamples: int = within(1000, 0)
    """Bootstrap resamples of the problems for 95% intervals; 0 leaves intervals out."""
    device: str = "auto"
    """"cpu", "cuda" or "auto"."""
    precision: Literal["fp32", "bf16", "fp16", "auto"] = "fp32"
    """Arithmetic of the model."""
    threads: int = within(0, 0, 1024)
    """CPU threads; 0 takes one below ten million parameters, else what is fastest."""
    batch: int = within(256, 1)
    """Responses generated at once."""
    micro_batch: int = within(32, 1)
    """Responses measured at once."""
    scoring: Scoring = field(default_factory=Scoring)

    def validate(self) -> EvalConfig:
        check_ranges(self, "--")
        if self.temperature == 0:
            raise ValueError("--temperature 0 is greedy decoding: write --greedy")
        if self.greedy and (self.temperature or self.top_p):
            raise ValueError("--greedy takes the likeliest token: leave out temperature and top_p")
        if self.greedy and self.k is not None and self.k > 1:
            raise ValueError(f"--greedy gives {self.k} equal responses: leave out --k")
        if self.stop is not None and "" in self.stop:
            raise ValueError("--stop holds an empty text, which would end every response")
        check_device("--device", self.device)
        return self

    def decoding(self, task: str) -> Decoding:
        """Decoding settings for a task: the preset's, overridden by those given."""
        found = PRESETS[self.preset].decoding(task) if self.preset != "none" else Decoding()
        tokens = found.max_new_tokens if self.max_new_tokens is None else self.max_new_tokens
        if self.greedy:
            return dataclasses.replace(GREEDY, max_new_tokens=tokens)
        given = {
            key: value
            for key in ("k", "temperature", "top_p")
            if (value := getattr(self, key)) is not None
        }
        if found.greedy and (given not in ({}, {"k": 1}) or self.greedy is False):
            # the paper decodes greedily, but temperature or several responses are requested
            found = Decoding(k=1)
        return dataclasses.replace(found, **given, max_new_tokens=tokens)

    def names(self) -> list[str]:
        return [name for part in self.on.split(",") if (name := part.strip())]
