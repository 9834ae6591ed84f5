"""`analyze_every`: the entropy effect of a generation batch's optimizer steps, token by token.

This is the lab's analysis, applied to TRL's model, generation batches and optimizer. TRL's rows
become the lab's sequences; TRL's model becomes a policy that is measured without dropout,
checkpointing and autocast. The analysis reads only; its random stream is the lab's for analyses.

    generated      -> a due batch is kept, in the order in which it was sampled
    before_step    -> before the first step: influences; before each: its minibatch
    optimizer step -> the minibatch after it; after the last one the lines and columns are written

Shapes: B rollouts of a generation batch, T completion tokens at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from ...analysis.analysis import Analysis, numbers
from ...analysis.influence import InfluenceInput
from ...config import Analyze
from ...core.batch import TokenBatch
from ...data.seeds import generator
from ...models.capabilities import can_pack, known_head, window
from ...models.policy import Policy
from ...models.policy_evaluator import PolicyEvaluator
from ...models.rollout import Sequences
from .iteration import IMAGES, ROLLOUT, loss_mask
from .step import WHOLE


@dataclass
class TrainedByTRL(Policy):
    """TRL's model as the lab's policy; like TRL's own passes, it gets no position ids."""

    def packs_all(self, sequences: Sequences) -> bool:
        """As in the lab, but a completion that contains tool output is not packed."""
        sampled = sequences.attention[:, sequences.prompt_width :].bool()
        return torch.equal(sequences.mask, sampled) and super().packs_all(sequences)

    def _run_padded(self, sequences: Sequences) -> Any:
        with self.autocast():
            return self.model(
                input_ids=sequences.tokens,
                attention_mask=sequences.attention,
                use_cache=False,
                logits_to_keep=sequences.mask.shape[1] + 1,
            )


class Analyst(TrainerCallback):
    """Analyses the first and every `every`-th generation batch."""

    def __init__(self, trainer: Any, every: int) -> None:
        check(trainer, every)
        self.trainer, self._analyze, self._iteration = trainer, Analyze(every), 0
        self.seconds = 0.0  # duration of the last generation batch's analysis; 0 without one
        self._batch: tuple[dict[str, Any], TokenBatch, TokenBatch] | None = None
        self._analysis: Analysis | None = None
        self._place = torch.empty(0)
        self._update: tuple[Tensor, TokenBatch, float] | None = None
        self._figures: dict[str, float] | None = None

    # ------------------------------------------------------------------ called by the trainer

    def generated(self, output: dict[str, Any], graded: TokenBatch, ready: TokenBatch) -> None:
        """Receive a generation batch before TRL shuffles it.

        `graded` [B, T] has outcome advantages [B] and the reward functions' rewards; `ready` is the
        same batch after preparation.
        """
        trainer = self.trainer
        self._iteration = trainer.state.global_step // trainer.updates + 1
        self._analysis = self._update = self._figures = None
        self.seconds, self._batch = 0.0, None
        if self._analyze.due(self._iteration):
            self._batch = output, graded, ready

    def before_step(self, pieces: list[dict[str, Any]]) -> None:
        """Called before an optimizer step on the micro-batches `pieces`."""
        if self._batch is not None:
            (output, graded, ready), self._batch = self._batch, None
            kept, trained = self.trainer.objective.drop_zero_advantage(ready)
            if len(kept):
                self._place = kept.new_full((len(ready),), -1)
                self._place[kept] = torch.arange(len(kept), device=kept.device)
                with torch.enable_grad():
                    self._analysis = Analysis(self._subject(output, graded, kept, trained))
        if self._analysis is None:
            return
        rows = self._place[torch.cat([piece[ROLLOUT] for piece in pieces])]
        rows = rows[rows >= 0]
        if len(rows):  # empty if all rollouts belong to groups without a signal
            lr = float(self._optimizer.param_groups[0]["lr"])
            self._update = rows, self._analysis.watch.before(rows), lr

    @property
    def running(self) -> bool:
        return self._analysis is not None

    def hold(self, figures: dict[str, float]) -> None:
        """Keep the iteration's metrics until its last step has been made."""
        self._figures = figures

    # ------------------------------------------------------------------ called by transformers

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not isinstance(self._optimizer, torch.optim.Adam | torch.optim.AdamW):
            raise ValueError(
                f"EntropyGRPOTrainer: analyze_every={self._analyze.every}: influences are of a "
                f"step of AdamW, and the optimizer is {type(self._optimizer).__name__}; leave "
                "optim at TRL's default, or set analyze_every=0"
            )

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        analysis, log = self._analysis, self.trainer._run_log
        if analysis is None:
            return
        if self._update is not None:
            rows, before, lr = self._update
            analysis.watch.after(rows, before, lr)
            self._update = None
        if self._figures is None:
            return
        line, change = analysis.finish(self._iteration)
        flat, self.seconds = numbers(line), line["time/analysis"]
        log.analysed(line, change, analysis.influence, analysis.before.mask)
        log.line(self._iteration, flat | self._figures)
        for key, value in flat.items():
            self.trainer._metrics["train"][key].append(value)
        self._analysis = self._figures = None

    # ------------------------------------------------------------------ TRL's as the lab's

    @property
    def _optimizer(self) -> Any:
        wrapped: Any = self.trainer.optimizer
        return getattr(wrapped, "optimizer", wrapped)  # accelerate's

    @cached_property
    def _meter(self) -> PolicyEvaluator:
        """Evaluator of the policy, built once its model is on the training device."""
        trainer = self.trainer
        model: Any = trainer.model
        policy = TrainedByTRL(
            model, trainer._tokenizer, trainer.accelerator.device, trainer.eos_token_ids,
            trainer._tokenizer.pad_token_id, partial(plain, model),
            getattr(model.config, "max_position_embeddings", None),
        )  # fmt: skip
        policy.packs, policy.window = can_pack(policy), window(policy)
        policy.head = known_head(policy)
        return PolicyEvaluator(
            policy, trainer.temperature, trainer.args.per_device_train_batch_size
        )

    def _subject(
        self, output: dict[str, Any], graded: TokenBatch, kept: Tensor, trained: TokenBatch
    ) -> InfluenceInput:
        trainer, correction = self.trainer, output.get("importance_sampling_ratio")
        if correction is not None:
            trained = trained.replace(correction=correction.expand(graded.mask.shape)[kept])
        return InfluenceInput(
            self._meter, trainer.objective, self._optimizer, None,
            trainer.args.max_grad_norm or math.inf, sequences_of(output), graded, kept, trained,
            generator(trainer.args.seed, self._iteration, "analysis", kept.device),
        )  # fmt: skip


def check(trainer: Any, every: int) -> None:
    kind, processes = trainer.accelerator.distributed_type, trainer.accelerator.num_processes
    args = trainer.args
    rounded = {n: p.dtype for n, p in trainer.model.named_parameters() if p.dtype != torch.float32}
    name, dtype = next(iter(rounded.items()), ("", ""))
    for wrong, reason in (
        (every < 1, "must be at least 1, or 0 for none"),
        (trainer.objective is None, "needs an objective, whose loss the influences are of; "
         "make_objective(**from_grpo_config(args)) is TRL's own"),
        (args.steps_per_generation * args.num_iterations % args.gradient_accumulation_steps > 0,
         "needs whole optimizer steps on a generation batch; make steps_per_generation a multiple "
         f"of gradient_accumulation_steps = {args.gradient_accumulation_steps}"),
        (trainer._run_log is None, "has nowhere to write; set dump_rollouts to a directory"),
        (processes > 1 or kind.value not in WHOLE,
         f"needs batch, weights and optimizer in one process, and this run has {processes} "
         f"({kind.value}); start one, or set analyze_every (--analyze.every) to 0"),
        (bool(rounded), f"needs weights in float32, and {name} is {dtype}; load the model with "
         "dtype=torch.float32 (bf16=True may stay)"),
    ):  # fmt: skip
        if wrong:
            raise ValueError(f"EntropyGRPOTrainer: analyze_every={every}: {reason}")


def sequences_of(output: dict[str, Any]) -> Sequences:
    """Convert TRL's generation batch to the lab's sequences, in order; images raise."""
    seen = [name for name in IMAGES if output.get(name) is not None]
    if seen:
        raise ValueError(
            f"EntropyGRPOTrainer: analyze_every: rollouts with images ({seen[0]}) cannot be "
            "analysed; set analyze_every=0"
        )
    mask = loss_mask(output)
    prompts = torch.cat([output["prompt_ids"], output["prompt_mask"]], 1)
    _, number = prompts.unique(dim=0, return_inverse=True)
    rows = torch.arange(len(mask), device=mask.device)
    first = rows.new_full(rows.shape, len(rows)).scatter_reduce(0, number, rows, "amin")
    return Sequences(
        torch.cat([output["prompt_ids"], output["completion_ids"]], 1),
        torch.cat([output["prompt_mask"], output["completion_mask"]], 1),
        output["prompt_ids"].shape[1], mask, torch.zeros(mask.shape, device=mask.device),
        torch.zeros_like(mask[:, 0]), first[number],
    )  # fmt: skip


@contextmanager
def plain(model: nn.Module) -> Iterator[None]:
    """Within the context, TRL's model runs as the lab's; its previous state returns on exit.

    Dropout and gradient checkpointing are off, and the forward pass is the original one, without
    accelerate's autocast.
    """
    training = [module for module in model.modules() if module.training]
    wrapped, original = model.forward, model.__dict__.get("_original_forward")
    model.eval()
    if original is not None:
        model.forward = original
    try:
        with torch.autocast(next(model.parameters()).device.type, enabled=False):
            yield
    finally:
        if original is not None:
            model.forward = wrapped
        for module in training:
            module.training = True
