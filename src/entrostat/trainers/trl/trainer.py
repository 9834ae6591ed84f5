"""`EntropyGRPOTrainer`: TRL's GRPOTrainer with an entrostat objective as its loss.

TRL samples, scores, shuffles, runs the model and steps the optimizer. Seven of its methods are
extended (docs/hosts/trl.md has the page for users):

    _calculate_rewards                    -> keeps the raw rewards of all ranks
    _generate_and_score_completions       -> log-probs and entropies of the old policy, controllers,
                                             advantages [B, T]: once per generation batch, all ranks
    _prepare_inputs                       -> under the thermostat, steps of whole prompts
    _compute_loss                         -> terms of the whole optimizer step, all ranks; TRL's own
                                             loss for its log, `Objective.loss` for the gradient
    _get_per_token_logps_and_entropies    -> keeps the forward pass's output for the loss
    training_step                         -> the thermostat decides, if it takes the gradient
    _get_grad_norm                        -> the thermostat observes the gradient norm

Shapes: B rollouts of a micro-batch on this rank, T completion tokens at most.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing

from ...core.batch import TokenBatch
from ...core.distributed import Communicator
from ...core.mismatch import mismatch
from ...core.objective import Objective
from ...core.process_ranks import ranks
from ...core.rollouts import MetricAccumulator, describe, outcome_figures
from ...dynamics import online
from ...method import MethodSpec
from ...models.rounding import logp_rounding, watch_outputs
from . import dynamic, settings
from .analysis import Analyst
from .checkpoints import Begin, EntropyControl
from .dump import RunLog, joined, rollouts_of
from .iteration import IMAGES, OLD_ENTROPY, OLD_LOGP, Scored, addition, loss_mask, watched
from .step import Steps
from .stops import Ending, with_stops

Pass = tuple[Tensor, Tensor, Tensor | None]  # log-probs, entropies [B, T], auxiliary loss []


class EntropyGRPOTrainer(GRPOTrainer):
    """TRL's GRPOTrainer with an entrostat objective; every other argument is TRL's own.

    Args:
        *args: as GRPOTrainer's.
        objective: a name of `entrostat.methods()`, a list of them, or an `Objective`
            (`make_objective(..., advantage=..., aggregation=...)`). It owns advantage, ratio, clip,
            aggregation, entropy terms and reference KL; TRL's arguments for these are set from it,
            and a warning names the changes. `make_objective(**from_grpo_config(args))` is TRL's
            own loss. None trains as TRL does, bit for bit, and only adds our metrics and dumps.
        entropy: target of a thermostat for the mean entropy, added to the loss of `args`: nats per
            token, a share of the first iteration's ("0.8x") or a schedule ("linear 1x 0.6x"). Use
            it instead of `objective`.
        stop: strings that end a completion, as an eos does; the token that completes one is the
            last that is trained on.
        dump_rollouts: directory for `metrics.jsonl` and the rollouts' tokens, or a `RunLog`; None
            writes nothing.
        dump_every: generation batches between token dumps.
        analyze_every: analyse the first and every `analyze_every`-th generation batch; 0 for none.
            An analysis measures the updates' effect on entropy, token by token, into
            `dump_rollouts`. It needs a single process.
        redraws: dynamic sampling: maximum rounds per generation batch in which prompts whose group
            has no signal are drawn anew, until the batch is full.
        **kwargs: as GRPOTrainer's.

    Raises:
        ValueError: TRL cannot run the objective, or both `objective` and `entropy` are given.
    """

    _alone = False  # True: the arguments do not specify the loss, so an objective changes nothing

    def __init__(
        self,
        *args: Any,
        objective: MethodSpec | Objective | None = None,
        entropy: float | str | None = None,
        stop: Sequence[str] = (),
        dump_rollouts: str | RunLog | None = None,
        dump_every: int = 1,
        analyze_every: int = 0,
        redraws: int = 0,
        **kwargs: Any,
    ) -> None:
        given = settings.by_name(args, kwargs)
        given["args"] = with_stops(given["args"], stop)
        said = settings.resolved(given["args"], objective, entropy, self._alone)
        self.objective, given["args"] = said
        named = isinstance(dump_rollouts, str | Path)
        self._run_log = RunLog(dump_rollouts, dump_every) if named else dump_rollouts
        self._passes: list[Pass] | None = None
        self._scored: tuple[Tensor, list[Scored]] | None = None
        self._steps: Steps | None = None
        self._began: tuple[int, int] | None = None  # an optimizer step, and its first micro-batch
        self._observed: int | None = None  # optimizer step last observed by controllers
        self._probing, self._dumped = True, 0
        self._rounding: float | None = None
        self._tally = MetricAccumulator()
        self._analyst: Analyst | None = None
        super().__init__(**given)
        self._redraws = redraws
        dynamic.check(self, redraws)
        self._ending = Ending(stop, self._tokenizer, self.eos_token_ids)
        if self.objective is not None:
            self._steps = Steps(self, self.objective)
        self.add_callback(EntropyControl(self.objective))
        self.add_callback(Begin(self))
        if analyze_every:
            self._analyst = Analyst(self, analyze_every)
            self.add_callback(self._analyst)

    def begin(self, state: Any) -> None:
        """Restore the controllers of the checkpoint that `state` was read from, if any."""
        name = EntropyControl.__name__
        found = state.stateful_callbacks.get(name)
        found = found[-1] if isinstance(found, list) else found
        saved = None if found is None else found["attributes"]["saved"]
        if self.objective is not None and saved is not None:
            self.objective.load_state_dict(saved)
        elif self.objective is not None and state.global_step:
            warnings.warn(
                "EntropyGRPOTrainer: the checkpoint has no controllers' state; they start anew",
                stacklevel=2,
            )
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, EntropyControl):
                callback.objective = self.objective
                state.stateful_callbacks.setdefault(name, callback.state())
        if self._steps is not None:
            self._steps.begin()
        self._began = self._observed = None
        self._dumped = state.global_step // self.updates
        if self._run_log is not None and self.accelerator.is_main_process:
            self._run_log.begin(self, self._dumped, math.ceil(state.max_steps / self.updates))

    @property
    def ranks(self) -> Communicator:
        return ranks(device=self.accelerator.device)

    @property
    def place(self) -> int:
        """Micro-batches done in the current optimizer step; an epoch's last step may be shorter."""
        now = self.state.global_step
        if self._began is None or self._began[0] != now:
            self._began = now, self._step
        return self._step - self._began[1]

    @property
    def updates(self) -> int:
        """Optimizer steps per generation batch, at least 1."""
        micro = self.args.steps_per_generation * self.num_iterations
        return max(1, micro // self.args.gradient_accumulation_steps)

    # ------------------------------------------------------------------ once per generation batch

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        inner = super()._generate_single_turn
        if self.use_vllm or not self._ending.strings:  # vLLM checks for stops itself
            return inner(prompt_ids, *args, **kwargs)
        with self._ending.watched(self.accelerator.unwrap_model(self.model_wrapped)) as ends:
            completions, logprobs = inner(prompt_ids, *args, **kwargs)
        return ends.cut(completions), logprobs

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: list[list[int]]
    ) -> Tensor:
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        # [B of all ranks, reward functions], and this rank's completions before masking
        said = zip(inputs, completion_ids_list, *self._said(completion_ids_list), strict=True)
        self._scored = rewards, [Scored(*each) for each in said]
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        inner = super()._generate_and_score_completions
        with self._listening() as passes:
            output = inner(inputs)
            figures: dict[str, float] = {}
            if self._redraws:
                output, figures = dynamic.redrawn(self, output, inner, self._redraws)
        old = output.get("old_per_token_logps")
        # TRL's own pass, if it made one, is recognized by the tensor that it returned
        found = next((each for each in passes if each[0] is old), None)
        with torch.no_grad():
            logp, entropy, _ = found or self.extra_pass(self.model, output)
        output |= {OLD_LOGP: logp, OLD_ENTROPY: entropy}
        self._grade(output)
        self._record(figures)
        if self._steps is not None:
            self._steps.generated()
        self._probing = True
        return output

    def extra_pass(self, model: nn.Module, inputs: dict[str, Any]) -> Pass:
        """Log-probs and entropies [B, T] of rollouts, in a pass that TRL does not make.

        Its dropout does not advance the training random streams.
        """
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        kwargs = self.args.gradient_checkpointing_kwargs
        device = self.accelerator.device
        own = [] if device.type == "cpu" else [device]
        with (
            torch.random.fork_rng(own, device_type=device.type),
            disable_gradient_checkpointing(self.model, kwargs),
        ):
            return super()._get_per_token_logps_and_entropies(
                model, ids, attention, inputs["completion_ids"].shape[1],
                batch_size=self.args.per_device_train_batch_size, compute_entropy=True,
                **{key: inputs.get(key) for key in IMAGES},
            )  # fmt: skip

    @torch.no_grad()
    def _grade(self, output: dict[str, Any]) -> None:
        """Update controllers; compute a batch's advantages [B, T] and metrics over all ranks."""
        assert self._scored is not None
        scores, rows = self._scored
        mask = loss_mask(output)
        B, first = len(mask), self.accelerator.process_index * len(mask)
        rewards = (scores * self.reward_weights.to(scores.device)).nansum(1)
        rewards[scores.isnan().all(1)] = math.nan  # every reward function None, as in TRL
        group = torch.arange(len(rewards), device=rewards.device) // self.num_generations
        mine = slice(first, first + B)
        batch = TokenBatch(
            output[OLD_LOGP], output[OLD_LOGP], mask, rewards=rewards[mine], group=group[mine],
            entropy=output[OLD_ENTROPY], old_entropy=output[OLD_ENTROPY],
            ref_logp=output.get("ref_per_token_logps"),
            rollout=torch.arange(len(rewards), device=mask.device)[mine], ranks=self.ranks,
        )  # fmt: skip
        # a truncated completion that TRL masks counts with its full length
        full = torch.tensor([len(row.ids) for row in rows], device=mask.device)
        figures = describe(batch, torch.where(mask.any(1), mask.sum(1), full))
        if len(self.reward_func_names) > 1:  # TRL logs them too
            each = zip(self.reward_func_names, scores.nanmean(0).tolist(), strict=True)
            self._tally.add({f"rewards/{name}/mean": mean for name, mean in each})
        finished = torch.tensor([row.finished for row in rows], device=mask.device)
        (ended,), _ = batch.whole.gather(finished)
        figures["rollout/truncated"] = 1 - float(ended.float().mean())
        sampler = output.get("sampling_per_token_logps")  # given by vLLM
        if sampler is not None:
            figures |= mismatch(batch.old_logp, sampler, mask, batch.whole)
        if self.objective is None:
            A = output["advantages"]
            (signals,) = batch.whole.group_sums(group[mine], (A != 0).long())
            ready = batch.replace(advantages=A[:, None] * mask, idle=signals == 0)
            outcome = ready.replace(advantages=A)
            figures |= watched(ready, A, exact=self.updates == 1)
        else:
            if self.objective.advantage == "gdpo":
                weights = tuple(self.reward_weights.tolist())
                batch = batch.replace(reward_parts=scores[mine], reward_weights=weights)
            # 0 in the first iteration, 1 in the last, as in the lab
            last = math.ceil(self.state.max_steps / self.updates) - 1
            progress = min(1.0, self.state.global_step // self.updates / max(1, last))
            # of an optimizer step's generation batches, controllers observe the first
            again = self._observed == self.state.global_step
            self._observed = self.state.global_step
            ready = self.objective.rollouts(batch, None if again else figures, progress=progress)
            outcome = ready.replace(advantages=ready.outcome)
            figures |= self.objective.metrics()
            figures |= online.of_rollouts(ready, ready.need("outcome"), rewards[mine])
            output |= addition(ready)
            if self._analyst is not None:
                self._analyst.generated(output, outcome.replace(rewards=batch.rewards), ready)
        figures |= outcome_figures(outcome)
        self._record(figures)
        iteration = self.state.global_step // self.updates + 1
        if self._run_log is not None and self._run_log.due(iteration) and self._dumped < iteration:
            self._dumped = iteration
            own = rollouts_of(
                iteration, self._tokenizer, output, ready, rewards[mine],
                self._prompts(output, rows), rows,
            )  # fmt: skip
            every = gather_object([own])
            if self.accelerator.is_main_process:
                self._run_log.rollouts(joined(every))

    def _prompts(self, output: dict[str, Any], rows: list[Scored]) -> list[str]:
        prompts = zip(output["prompt_ids"], output["prompt_mask"].bool(), strict=True)
        return [self._tokenizer.decode(ids[m], skip_special_tokens=True) for ids, m in prompts]

    def other_rows(self, draw: int, count: int) -> list[dict[str, Any]]:
        """`count` other prompts for this process, in the `draw`-th redraw of a generation batch."""
        return dynamic.dataset_rows(self, draw, count)

    def _said(self, completions: list[list[int]]) -> tuple[list[str], list[bool]]:
        """Decoded texts, and whether each ended by eos or a stop."""
        texts = self._tokenizer.batch_decode(completions, skip_special_tokens=True)
        return texts, self._ending.finished(completions)

    # ------------------------------------------------------------------ every micro-batch

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        inputs = super()._prepare_inputs(generation_batch)
        return inputs if self._steps is None else self._steps.micro_batch(inputs)

    def _compute_loss(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        plan = None if self._steps is None else self._steps.plan(model)
        watch = watch_outputs(model) if self._probing else nullcontext()
        with self._listening() as passes, watch as outputs:
            loss = super()._compute_loss(model, inputs)  # this also logs TRL's own metrics
        logp, entropy, aux = passes[0]
        if outputs is not None:
            self._probe(logp, outputs.logp)
        micro = self.current_gradient_accumulation_steps
        if plan is not None:
            assert self._steps is not None
            out = plan.loss(plan.at(logp, entropy))
            self._steps.add(out, entropy)
            # the scale is the whole step's; gradients are averaged over ranks
            loss = out.loss * self.accelerator.num_processes
            if aux is not None:
                loss = loss + self.router_aux_loss_coef * aux / micro
        if self.place + 1 == micro:
            self._end_step()
        return loss

    @contextmanager
    def _listening(self) -> Iterator[list[Pass]]:
        """Collect the outputs of the policy's forward passes, in order."""
        self._passes = passes = []
        try:
            yield passes
        finally:
            self._passes = None

    def _get_per_token_logps_and_entropies(
        self, model: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        inner = super()._get_per_token_logps_and_entropies
        if self._passes is None or model is self.ref_model:
            return inner(model, *args, **kwargs)
        # these entropies cost nothing extra
        logp, entropy, aux = inner(model, *args, **{**kwargs, "compute_entropy": True})
        assert entropy is not None
        self._passes.append((logp, entropy, aux))
        return logp, entropy, aux

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        if self._steps is not None:
            self._steps.after_backward()
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)
        if self._steps is not None:
            self._steps.stepped(float(norm))
        return norm

    def _record(self, figures: dict[str, float]) -> None:
        """Add metrics to TRL's log, which averages them over the logged steps, and to ours."""
        for key, value in figures.items():
            self._metrics["train"][key].append(value)
        self._tally.add(figures)

    def _probe(self, logp: Tensor, inside: Tensor | None) -> None:
        """Log `numerics/logp_rounding`; warn the first time there is any rounding."""
        self._probing = False
        if inside is not None and inside.shape != logp.shape:
            inside = inside[:, -logp.shape[1] :] if inside.shape[0] == logp.shape[0] else None
        found = logp_rounding(logp, inside)
        if self._rounding is None and found.dtype is not None and self.accelerator.is_main_process:
            warnings.warn(f"EntropyGRPOTrainer: {found.warning()}", stacklevel=2)
        self._rounding = found.error
        self._record({"numerics/logp_rounding": found.error})

    def _end_step(self) -> None:
        """Log an optimizer step; after a generation batch's last, write the iteration's line."""
        if self._steps is not None:
            total = self._steps.end()
            for key, value in online.figures(total).items():
                self._metrics["train"][key].append(value)
            self._tally.add(total)
        done = self.state.global_step + 1
        if done % self.updates:
            return
        if self._analyst is not None and self._analyst.running:
            self._analyst.hold(self._tally.figures())
        elif self._run_log is not None and self.accelerator.is_main_process:
            self._run_log.line(done // self.updates, self._tally.figures())
        self._tally = MetricAccumulator()
