"""The configuration of a training run: dataclasses.

`method` and `task` are open tables, since their parameters depend on the name, and so are `trl` and
`verl`, whose keys are another library's; their flags are read by `cli/flags.py`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal

import tyro

from ..model_files import TINY
from .instruments import AlarmBand, Analyze, Evaluation, Expectation, Forecast, Trackers
from .ranges import MOST_TOKENS, check_device, check_ranges, within


@dataclass
class Enough:
    """When sampling stops waiting for the last rollouts (REPO App. D.2: 4 of 6, and 90% of all).

    Off while neither is set; where one is, the other is REPO's.
    """

    group: int | None = within(None, 1)
    """Rollouts of every prompt that must be finished (the lab); None takes two thirds, rounded
    up."""
    share: float | None = within(None, 0, 1, above=True)
    """Share of all rollouts that must be finished (the lab); None takes .9."""

    @property
    def on(self) -> bool:
        """Whether rollouts may be dropped."""
        return self.group is not None or self.share is not None

    def least(self, rollouts: int) -> int:
        """Rollouts that every prompt is sure to have, of so many."""
        if not self.on:
            return rollouts
        return math.ceil(2 * rollouts / 3) if self.group is None else self.group


@dataclass
class Sampling:
    """How rollouts are drawn."""

    engine: Literal["transformers", "vllm"] = "transformers"
    """What generates: transformers, or vLLM (host trl or verl; veRL has vLLM unless [verl] says
    otherwise)."""
    prompts: int = within(32, 1, 10**5)
    """Prompts per iteration."""
    rollouts: int = within(8, 1, 10**5)
    """Rollouts per prompt (the group, K)."""
    max_new_tokens: int | None = within(None, 1, MOST_TOKENS)
    """Tokens a rollout may take, or one turn of it; None asks the task."""
    max_context: int | None = within(None, 2)
    """Tokens of a prompt and its rollout together, all turns and observations included; None takes
    the model's context."""
    temperature: float = within(1.0, 0, above=True)
    """Sampling temperature; statistics are of the policy at this temperature."""
    top_p: float = within(1.0, 0, 1, above=True)
    """Nucleus sampling; 1 keeps the whole distribution."""
    batch: int = within(256, 1)
    """Sequences generated at once."""
    stop: tuple[str, ...] | None = None
    """Texts that end a rollout, as eos does; None asks the task, an empty list turns its own
    off."""
    measure: bool = True
    """Measure the old policy in a separate pass; false takes the sampler's figures (float32; the
    lab)."""
    redraws: int = within(0, 0, 255)
    """Most times an iteration that prompts without a signal are drawn anew (the lab, TRL)."""
    enough: Enough = field(default_factory=Enough)


@dataclass
class Prompt:
    """How a task's prompt becomes the policy's input."""

    chat: bool | None = None
    """Use the tokenizer's chat template; None asks the task, else uses it where there is one."""
    system: str = ""
    """System message for the chat template."""


@dataclass
class Optim:
    """Updates."""

    lr: float | None = within(None, 0, above=True)
    """Learning rate; None takes 3e-4 below ten million parameters, 1e-5 with LoRA, else 1e-6."""
    betas: tuple[float, float] = within((0.9, 0.95), 0, 1, below=True)
    """AdamW's decay rates."""
    weight_decay: float = within(0.0, 0)
    """AdamW's decoupled weight decay."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """The learning rate after the warm-up: constant, or falling to `lr_min` by the run's end (veRL
    has no "linear")."""
    lr_min: float = within(0.0, 0, 1)
    """Share of the learning rate that "cosine" and "linear" end at."""
    warmup: int = within(0, 0)
    """Updates over which the learning rate rises linearly to its value."""
    clip: float = within(1.0, 0, above=True)
    """Largest gradient norm."""
    epochs: int = within(2, 1)
    """Passes over a rollout batch."""
    minibatches: int = within(2, 1)
    """Updates per pass. 1 epoch of 1 minibatch is strictly on-policy."""
    keep_size: bool = False
    """Minibatches keep the size that all rollouts give them, so that groups without a signal mean
    fewer updates (REPO 4; the lab). Else the other rollouts are cut into `minibatches`."""
    whole_groups: bool | None = None
    """A minibatch has all rollouts of its prompts, as veRL's always has; a group on the border of
    two is cut. False draws single rollouts. None is true for the thermostat's multiplier in one
    epoch (docs/thermostat_record.md), else false."""
    micro_batch: int = within(128, 1)
    """Sequences in memory at once; any value gives the same gradient."""
    aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"] | None = (
        None
    )
    """How tokens' losses become one number; None takes that of the method's paper."""


@dataclass
class Numerics:
    """Rounding put into the ratio on purpose, to see what it does (docs/numerics.md)."""

    round_logp: Literal["bf16", "fp16"] | None = None
    """Round the policy's log-prob in the ratio as a cast of the model's outputs does; the gradient
    passes. None keeps it exact. Accelerate's FSDP2 in bf16 does both of these in bf16 (the lab)."""
    round_old_logp: Literal["bf16", "fp16"] | None = None
    """The same of the old policy's log-prob."""


@dataclass
class Lora:
    """Low-rank adapters (extra `peft`)."""

    rank: int = within(0, 0, 2**16)
    """0 trains the whole model."""
    alpha: int = within(32, 1)
    """Scale of the adapter."""
    targets: str = "all-linear"
    """Modules that get an adapter: "all-linear", or names separated by commas."""


@dataclass
class Scoring:
    """Scorers of others, in processes of their own: reasoning-gym's, MODULE:FUNCTION graders."""

    timeout: float = within(10.0, 0, 10**6, above=True)
    """Seconds for an answer; one that takes longer scores 0 and is counted (`reward/failed`)."""
    workers: int = within(0, 0, 1024)
    """Processes; 0 takes one per processor, at most 16."""
    environment_timeout: float = within(60.0, 0, 10**6, above=True)
    """Seconds for an environment's reply; a rollout whose environment takes longer scores 0."""
    memory: int = within(2048, 64)
    """MiB that such a process may take (Linux); an answer that takes more scores 0."""
    sandbox: Literal["auto", "unsafe"] = "auto"
    """Programs that the policy writes: "auto" isolates them, or raises an error where that is
    impossible; "unsafe" runs them with your own rights (docs/sandbox.md). `--sandbox` for short."""


@dataclass
class Save:
    """What is written."""

    checkpoint_every: int = within(0, 0)
    """Iterations between checkpoints; a killed run loses what came after the last one. 0: every
    iteration where a checkpoint takes less than 64 MB, else by `checkpoint_minutes`; in veRL a
    tenth of the run."""
    checkpoint_minutes: float = within(10.0, 0, above=True)
    """Minutes between checkpoints where `checkpoint_every` is 0 and a checkpoint is large."""
    checkpoints: int = within(2, 0)
    """Checkpoints kept; 0 keeps one until the final model is written."""
    rollouts_every: int = within(1, 0)
    """Iterations between rollout dumps; 0 for none."""
    best: str = ""
    """A figure of the evaluations, such as "test/avg@k": the policy with the highest one is kept in
    best/. Of several, separated by commas, the mean counts, where all are evaluated together."""


@dataclass
class TrainConfig:
    """Everything that determines a run."""

    host: Literal["lab", "trl", "verl"] = "lab"
    """What trains: the lab, TRL's GRPOTrainer or veRL's main_ppo."""
    method: tyro.conf.Suppress[list[Any]] = field(default_factory=lambda: ["grpo"])
    """Methods by name, or tables {name = ..., parameter = ...}; `entrostat methods` lists them."""
    advantage: str | None = None
    """Advantage estimator; None takes that of the method's recipe."""
    task: tyro.conf.Suppress[dict[str, Any]] = field(default_factory=lambda: {"name": "target_sum"})
    """The task's name and parameters: target_sum, words, arithmetic, gym:NAME, FILE.jsonl,
    FILE.parquet or MODULE:CLASS; `entrostat tasks` lists their parameters."""
    model: str = TINY
    """A directory, a Hugging Face name, or a name of `entrostat model`: "tiny" ships with it."""
    iterations: int = within(150, 1, 10**9)
    """Rollout batches to train on."""
    seed: int = within(0, 0, 2**32 - 1)
    """Decides prompts, samples, minibatches and selections."""
    output: str = ""
    """Run directory; empty for runs/METHOD-TASK-sSEED, in TRL and veRL with -trl or -verl."""
    device: str = "auto"
    """"cpu", "cuda" or "auto"."""
    precision: Literal["fp32", "bf16", "fp16", "auto"] = "fp32"
    """Arithmetic of the model; weights stay float32, fp16 scales the loss. "auto" takes bf16 where
    the processor multiplies it faster (measured) or the GPU has it, else fp32."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass, for memory."""
    threads: int = within(0, 0, 1024)
    """CPU threads; 0 takes one below ten million parameters, else what a short pass of the model
    is fastest with."""
    sampling: Sampling = field(default_factory=Sampling)
    prompt: Prompt = field(default_factory=Prompt)
    optim: Optim = field(default_factory=Optim)
    numerics: Numerics = field(default_factory=Numerics)
    lora: Lora = field(default_factory=Lora)
    eval: Evaluation = field(default_factory=Evaluation)
    analyze: Analyze = field(default_factory=Analyze)
    forecast: Forecast = field(default_factory=Forecast)
    scoring: Scoring = field(default_factory=Scoring)
    save: Save = field(default_factory=Save)
    alarm: AlarmBand = field(default_factory=AlarmBand)
    log: Trackers = field(default_factory=Trackers)
    expect: tyro.conf.Suppress[dict[str, str]] = field(default_factory=dict)
    """Assertions on figures at the run's end: {"reward/mean" = "last10 > 0.5"}; `entrostat train`
    exits with 1 where one does not hold."""
    trl: tyro.conf.Suppress[dict[str, Any]] = field(default_factory=dict)
    """Arguments of TRL's GRPOConfig that no other setting covers."""
    verl: tyro.conf.Suppress[dict[str, Any]] = field(default_factory=dict)
    """Keys of veRL's configuration, dotted or nested, that no other setting covers."""

    def validate(self) -> TrainConfig:
        """This configuration, if its values can be meant.

        Raises:
            ValueError: names the key, the value and its range.
        """
        check_ranges(self)
        if self.sampling.prompts * self.sampling.rollouts > 10**6:
            raise ValueError(
                f"sampling: {self.sampling.prompts} prompts of {self.sampling.rollouts} rollouts "
                "are more than a million per iteration; lower one of them"
            )
        enough = self.sampling.enough
        if enough.group is not None and enough.group > self.sampling.rollouts:
            raise ValueError(
                f"sampling.enough.group must be at most sampling.rollouts "
                f"({self.sampling.rollouts}), got {enough.group}"
            )
        if self.sampling.redraws and (enough.on or not self.sampling.measure):
            raise ValueError(
                f"sampling.redraws {self.sampling.redraws} takes whole groups, measured anew; "
                "leave sampling.enough out and sampling.measure true"
            )
        if self.sampling.stop is not None and "" in self.sampling.stop:
            raise ValueError("sampling.stop holds an empty text, which would end every rollout")
        if self.host == "lab" and self.sampling.engine != "transformers":
            raise ValueError(
                f"sampling.engine {self.sampling.engine!r} is for the hosts trl and verl; give "
                "--host trl, say"
            )
        for place, one in enumerate(self.eval.sets, 1):
            one.check(f"[[eval]] {place}: ")
        self.log.check(self.trl)
        self.alarm.check()
        for figure, text in self.expect.items():
            Expectation(figure, text)
        if not self.method:
            raise ValueError("method is empty; name at least one")
        for entry in self.method:
            name = entry.get("name") if isinstance(entry, Mapping) else entry
            if not isinstance(name, str):
                raise ValueError(f"method: each is a name or a table with a name, got {entry!r}")
        if not isinstance(self.task.get("name"), str):
            raise ValueError("task needs a name")
        for key, text in (("model", self.model), ("output", self.output)):
            if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
                raise ValueError(
                    f"{key} {text!r} is no UTF-8, which config.toml is written in; rename it, or "
                    "link to it by another name"
                )
        check_device("device", self.device)
        return self

    def _get(self, dotted: str) -> Any:
        return attrgetter(dotted)(self)

    def forget_choices(self, asked: TrainConfig) -> None:
        """Leave open again what a run chose and wrote down, where `asked` leaves it open."""
        for key, left_open in _OPEN.items():
            if asked._get(key) == left_open:
                self._set(key, left_open)

    def keep_choices(self, made: TrainConfig) -> None:
        """Take what a run chose and wrote down, where this leaves it open."""
        for key, left_open in _OPEN.items():
            if self._get(key) == left_open:
                self._set(key, made._get(key))

    def _set(self, dotted: str, value: Any) -> None:
        *tables, name = dotted.split(".")
        setattr(self._get(".".join(tables)) if tables else self, name, value)

    @property
    def updates(self) -> int:
        """Optimizer steps per rollout batch."""
        return self.optim.epochs * self.optim.minibatches

    def to_toml(self) -> str:
        """As a TOML file that `load` reads back to an equal configuration."""
        import tomli_w

        data = dataclasses.asdict(self)
        data["method"] = [
            {k: "none" if v is None else v for k, v in m.items()} if isinstance(m, dict) else m
            for m in data["method"]
        ]  # a parameter's default need not be None, so there it is a word
        return tomli_w.dumps(_plain(data))


# settings that a run resolves itself, with the value that asks it to
_OPEN: dict[str, Any] = {
    "optim.lr": None, "precision": "auto", "threads": 0, "prompt.chat": None, "advantage": None,
    "optim.aggregation": None, "optim.whole_groups": None,
}  # fmt: skip


def _plain(value: Any) -> Any:
    """TOML has no null: what is None is left out and comes back as its default, None."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if v is not None}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
