"""`EntropyGRPOTrainer`: TRL's GRPOTrainer whose loss an entrostat objective decides.

The seam, and what TRL does with it (docs/hosts/trl.md has the page for users):

    _calculate_rewards                    -> the raw rewards of all ranks are kept
    _generate_and_score_completions       -> log-probs and entropies of the old policy, controllers,
                                             advantages [B, T]: once a generation batch, all ranks
    _compute_loss                         -> terms of the whole optimizer step, all ranks; TRL's
                                             arithmetic on a copy of its inputs; additive terms
    _get_per_token_logps_and_entropies    -> inside the loss: per-token advantages go into that copy

TRL's surrogate is -min(r A, clip(r) A) with A [B, T], so a weight is folded into A, and a frozen
token has A = 0 with its value added back. Where the objective means another ratio than the token's
(GSPO, REINFORCE), TRL is handed log-probs whose ratio has the value and the gradient that is meant.

Shapes: B rollouts of a micro-batch on this rank, T completion tokens at most.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from trl import GRPOConfig, GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing

from ...advantage import Groups
from ...batch import Terms, TokenBatch
from ...dynamics import online
from ...loss import MAX_LOG_RATIO, loss_metrics, surrogate
from ...method import MethodSpec
from ...objective import Objective
from ..mismatch import mismatch
from ..ranks import gather_batch, shared_generator, sum_over_ranks
from ..rounding import logp_rounding, watch_outputs
from . import settings
from .control import Begin, EntropyControl
from .dump import RunLog, own_rows, rollouts_of
from .iteration import describe, prepared, watched

# what we add to TRL's batch: it survives its shuffle and its split
OLD_LOGP, OLD_ENTROPY = "entrostat_old_logp", "entrostat_old_entropy"
ADVANTAGE, KEPT, REWARD, GROUP = (
    "entrostat_advantage", "entrostat_kept", "entrostat_reward", "entrostat_group",
)  # fmt: skip
EDITED = "entrostat_edited"  # only where a method edits advantages
_IMAGES = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes",
    "num_tiles", "image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids",
)  # fmt: skip


@dataclass
class _Step:
    """The plan of one optimizer step.

    Attributes:
        terms: of each of this rank's micro-batches.
        fresh: the weights are still those of the old policy.
        count, sequences: trained tokens, and rollouts that have one, over all ranks.
        norm: the constant of "seq_mean_token_sum_norm".
        figures: of the whole step, from the terms; sums over the micro-batches so far.
    """

    terms: list[Terms]
    fresh: bool
    count: int
    sequences: int
    norm: int
    figures: dict[str, float]
    sums: dict[str, Tensor]


@dataclass
class _Editing:
    """One loss: TRL's inputs, copied, with what is put into them.

    Attributes:
        inputs: the copy that TRL reads; `advantages` is filled once the log-probs are known.
        mask: [B, T] bool, the tokens that count.
        part: what the objective sees, logp and entropy with gradient; None before the forward pass.
    """

    inputs: dict[str, Any]
    terms: Terms
    step: _Step
    mask: Tensor
    factor: float
    part: TokenBatch | None = None


class EntropyGRPOTrainer(GRPOTrainer):
    """TRL's GRPOTrainer with an entrostat objective; every other argument is TRL's own.

    Args:
        *args: as GRPOTrainer's.
        objective: a name of `entrostat.methods()`, a list of them, or an `Objective`
            (`make_objective(..., advantage=..., aggregation=...)`). It owns advantage, ratio, clip,
            aggregation, entropy terms and reference KL; TRL's arguments that say the same are left
            at their defaults and set from it. None trains as TRL does, bit for bit, and only adds
            our figures and dumps.
        dump_rollouts: directory for `metrics.jsonl` and the rollouts' tokens; None writes nothing.
        dump_every: write the tokens of every so many generation batches.
        **kwargs: as GRPOTrainer's.

    Raises:
        ValueError: a TRL argument contradicts the objective, or TRL's loss cannot express it.
    """

    def __init__(
        self,
        *args: Any,
        objective: MethodSpec | Objective | None = None,
        dump_rollouts: str | None = None,
        dump_every: int = 1,
        **kwargs: Any,
    ) -> None:
        args, kwargs, config = _config(args, kwargs)
        settings.check_generation(config)
        self.objective: Objective | None = None
        if objective is not None:
            self.objective = settings.build(objective, config)
            config = settings.settle(config, self.objective)
            settings.warn_of_inert(self.objective, config)
        self._run_log = None if dump_rollouts is None else RunLog(dump_rollouts, dump_every)
        self._caught: list[tuple[Tensor, Tensor]] | None = None
        self._rewards: Tensor | None = None
        self._editing: _Editing | None = None
        self._plan: _Step | None = None
        self._generated_at: int | None = None
        self._probing = True
        self._rounding: float | None = None
        self._iteration: dict[str, list[float]] = {}
        kwargs["args"] = config
        super().__init__(*args, **kwargs)
        self._control = EntropyControl()
        self._control.objective = self.objective
        self.add_callback(self._control)
        self.add_callback(Begin(self))

    # ------------------------------------------------------------------ checkpoints

    def begin(self, state: Any) -> None:
        """Take up the controllers of the checkpoint that `state` was read from, if any."""
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
        self._plan = self._generated_at = None
        if self._run_log is not None and self.accelerator.is_main_process:
            self._run_log.open(state.global_step // self._updates)

    @property
    def _updates(self) -> int:
        """Optimizer steps a generation batch, at least 1."""
        micro = self.args.steps_per_generation * self.num_iterations
        return max(1, micro // self.args.gradient_accumulation_steps)

    # ------------------------------------------------------------------ once a generation batch

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        rewards = super()._calculate_rewards(*args, **kwargs)
        self._rewards = rewards  # [B of all ranks, reward functions]
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        self._caught = []
        try:
            output = super()._generate_and_score_completions(inputs)
            caught = self._caught
        finally:
            self._caught = None
        old = output.get("old_per_token_logps")
        # TRL's own pass, where it made one, is known by the tensor that it gave back
        found = next((pair for pair in caught if pair[0] is old), None)
        logp, entropy = found or self._measure(self.model, output)
        output |= {OLD_LOGP: logp, OLD_ENTROPY: entropy}
        self._grade(output)
        self._generated_at, self._plan, self._probing = self.state.global_step, None, True
        return output

    @torch.no_grad()
    def _measure(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies [B, T] of the policy as it stands, without gradient."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        kwargs = self.args.gradient_checkpointing_kwargs
        with disable_gradient_checkpointing(self.model, kwargs):
            logp, entropy, _ = super()._get_per_token_logps_and_entropies(
                model, ids, attention, inputs["completion_ids"].shape[1],
                batch_size=self.args.per_device_train_batch_size, compute_entropy=True,
                **{key: inputs.get(key) for key in _IMAGES},
            )  # fmt: skip
        return logp, entropy

    @torch.no_grad()
    def _grade(self, output: dict[str, Any]) -> None:
        """Controllers, advantages [B, T] and figures of a generation batch, over all ranks."""
        assert self._rewards is not None
        mask = _loss_mask(output)
        B = len(mask)
        scores = self._rewards  # every reward function None: NaN, as in TRL
        rewards = (scores * self.reward_weights.to(scores.device)).nansum(1)
        rewards[scores.isnan().all(1)] = math.nan
        group = torch.arange(len(rewards), device=rewards.device) // self.num_generations
        mine = slice(self.accelerator.process_index * B, (self.accelerator.process_index + 1) * B)
        whole, place = gather_batch(
            TokenBatch(
                output[OLD_LOGP], output[OLD_LOGP], mask, rewards=rewards[mine], group=group[mine],
                entropy=output[OLD_ENTROPY], old_entropy=output[OLD_ENTROPY],
                ref_logp=output.get("ref_per_token_logps"),
            )
        )  # fmt: skip
        figures = describe(whole, self.num_generations) | _mismatch(output, mask)
        if self.objective is None:
            advantages = gather_batch(
                TokenBatch(output[OLD_LOGP], output[OLD_LOGP], mask, output["advantages"])
            )[0].advantages
            assert advantages is not None
            kept, full = advantages != 0, advantages[:, None] * whole.mask
            figures |= watched(whole, advantages, exact=self._updates == 1)
        else:
            self._observe(figures)
            figures |= self.objective.metrics()
            ready = prepared(self.objective, whole)
            kept, full = ready.kept, ready.advantages
            figures |= ready.figures
            if ready.edited is not None:
                output[EDITED] = ready.edited[place.rows, : place.width]
        assert whole.group is not None
        idle = Groups(whole.group, torch.float32).sum(kept.float()) == 0
        figures["rollout/zero_advantage_groups"] = float(idle.sum()) / self.num_generations
        self._record(figures)
        output |= {
            ADVANTAGE: full[place.rows, : place.width], KEPT: kept[place.rows],
            REWARD: rewards[mine], GROUP: group[mine],
        }  # fmt: skip
        self._dump(output, mask, whole, full, kept)

    def _observe(self, figures: dict[str, float]) -> None:
        assert self.objective is not None
        if not figures["rollout/tokens"]:
            return
        # 0 in the first iteration, 1 in the last, as in the lab
        last = math.ceil(self.state.max_steps / self._updates) - 1
        self.objective.observe(
            entropy=figures["entropy/exact"], nll=figures["entropy/nll"],
            progress=min(1.0, self.state.global_step // self._updates / max(1, last)),
        )  # fmt: skip

    # ------------------------------------------------------------------ once an optimizer step

    @torch.no_grad()
    def _planned(self, model: nn.Module) -> tuple[_Step, int]:
        """The plan of the optimizer step that is under way, and the micro-batch's place in it."""
        assert self.objective is not None
        steps, micro = self.args.steps_per_generation, self.current_gradient_accumulation_steps
        i = self._step % micro
        if i == 0 or self._plan is None:
            first = self._step - i
            buffered = self._buffered_inputs
            pieces = [buffered[(first + k) % steps] for k in range(micro)]
            self._plan = self._make_plan(model, pieces)
        return self._plan, i

    def _make_plan(self, model: nn.Module, pieces: list[dict[str, Any]]) -> _Step:
        assert self.objective is not None
        fresh = self._generated_at == self.state.global_step
        current: list[tuple[Tensor, Tensor]] = [(p[OLD_LOGP], p[OLD_ENTROPY]) for p in pieces]
        if self.objective.reads_current and not fresh:
            current = [self._measure(model, piece) for piece in pieces]
        reference = "ref_logp" in self.objective.needs
        whole, place = gather_batch(
            TokenBatch(
                torch.cat([logp for logp, _ in current]), _cat(pieces, OLD_LOGP),
                torch.cat([_trained(piece) for piece in pieces]), _cat(pieces, ADVANTAGE),
                rewards=_cat(pieces, REWARD), group=_cat(pieces, GROUP),
                entropy=torch.cat([entropy for _, entropy in current]),
                old_entropy=_cat(pieces, OLD_ENTROPY),
                ref_logp=_cat(pieces, "ref_per_token_logps") if reference else None,
            )
        )  # fmt: skip
        choice = shared_generator(self.args.seed, "select", self.state.global_step)
        terms = self.objective.plan(whole, choice)
        if bool((terms.weight < 0).any()):
            raise ValueError(
                "EntropyGRPOTrainer: a method gave a negative weight, which would turn TRL's clip "
                "around; put the sign into the advantage (`prepare`), or use the lab"
            )
        own, parts, start = place.own(terms), [], 0
        for piece in pieces:
            stop = start + len(piece["completion_ids"])
            parts.append(own[start:stop])
            start = stop
        return _Step(
            parts, fresh, int(whole.mask.sum()), int((whole.lengths > 0).sum()),
            self.objective.max_length or whole.mask.shape[1],
            {key: float(value) for key, value in terms.figures.items()}, {},
        )  # fmt: skip

    # ------------------------------------------------------------------ every micro-batch

    def _compute_loss(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        if self.objective is None:
            loss = super()._compute_loss(model, inputs)
            if (self._step + 1) % self.current_gradient_accumulation_steps == 0:
                self._write_line()
            return loss
        step, i = self._planned(model)
        mask = _trained(inputs)
        edited = dict(inputs)
        # TRL's own way to leave tokens out of the loss and yet attend to them
        edited["tool_mask"] = mask.to(inputs["completion_mask"].dtype)
        micro, world = self.current_gradient_accumulation_steps, self.accelerator.num_processes
        factor = 1.0
        if self.loss_type == "dapo":  # TRL: sum / (items / world * micro / steps); ours: sum / N
            items = max(1, step.count) * self.args.steps_per_generation
            if items % micro == 0:
                edited["num_items_in_batch"] = torch.tensor(items // micro, device=mask.device)
            else:
                edited["num_items_in_batch"] = torch.tensor(items / micro, device=mask.device)
        else:  # TRL: the mean over rollouts, of equal micro-batches; ours: over those with a token
            factor = len(mask) * micro * world / max(1, step.sequences)
            if self.loss_type == "dr_grpo":
                factor *= self.max_completion_length / step.norm
        self._editing = editing = _Editing(edited, step.terms[i], step, mask, factor)
        try:
            with self._as_terms(editing.terms):
                loss = super()._compute_loss(model, edited)
        finally:
            self._editing = None
        if _adds(editing.terms):
            loss = loss + self._additions(editing, loss.detach())
        self._count(editing, last=i == micro - 1)
        return loss

    def _get_per_token_logps_and_entropies(
        self, model: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        inner = super()._get_per_token_logps_and_entropies
        if self._caught is not None:  # generating: the policy's entropies come at no cost
            if model is not self.model:
                return inner(model, *args, **kwargs)
            result = inner(model, *args, **{**kwargs, "compute_entropy": True})
            self._caught.append((result[0], result[1]))
            return result
        if self._probing and torch.is_grad_enabled():
            self._probing = False
            with watch_outputs(model) as watched:
                result = self._forward(inner, model, *args, **kwargs)
            self._probe(result[0], watched.logp)
        else:
            result = self._forward(inner, model, *args, **kwargs)
        if self._editing is None:
            return result
        logp, entropy, aux = result
        assert entropy is not None
        return self._edit(self._editing, logp, entropy), entropy, aux

    def _forward(
        self,
        inner: Any,
        model: nn.Module,
        ids: Tensor,
        attention: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """TRL's forward pass, on the rollouts that have a trained token only, where it is text.

        A rollout of the others is kept where there is no such: every rank has to take part.
        """
        editing = self._editing
        rows = None
        if editing is not None and not self.aux_loss_enabled:
            rows = editing.mask.any(1).nonzero()[:, 0]
            images = any(kwargs.get(key) is not None for key in _IMAGES)
            if images or len(rows) == len(ids):
                rows = None
        if rows is None:
            return inner(model, ids, attention, *args, **kwargs)
        assert editing is not None
        rows = rows if len(rows) else rows.new_zeros(1)
        logp, entropy, aux = inner(model, ids[rows], attention[rows], *args, **kwargs)
        # the others' ratio is 1, and their loss is masked
        old = editing.inputs.get("old_per_token_logps")
        blank = torch.zeros_like(editing.mask, dtype=logp.dtype)
        full = (blank if old is None else old.to(logp.dtype)).index_copy(0, rows, logp)
        return full, blank.to(entropy.dtype).index_copy(0, rows, entropy), aux

    def _edit(self, editing: _Editing, logp: Tensor, entropy: Tensor) -> Tensor:
        """Put the per-token advantages into TRL's inputs; the log-probs that TRL is to see."""
        inputs, terms, mask = editing.inputs, editing.terms, editing.mask
        old = inputs.get("old_per_token_logps")
        old = logp.detach() if old is None else old
        if terms.ratio != "token" and (editing.step.fresh or terms.ratio == "none"):
            old = inputs["old_per_token_logps"] = logp.detach()
        reference = inputs.get("ref_per_token_logps")
        editing.part = part = TokenBatch(
            logp, old, mask, entropy=entropy, ref_logp=reference, edited=inputs.get(EDITED)
        )  # fmt: skip
        A = terms.advantage * terms.weight
        if editing.factor != 1:
            A = A * editing.factor
        if terms.frozen is not None:
            A = torch.where(terms.frozen, 0, A)
        inputs["advantages"] = torch.where(mask, A, 0).to(logp.dtype)
        if terms.ratio != "sequence" or editing.step.fresh:
            return logp
        # the sequence's ratio in value, the token's in gradient (GSPO-token): exp(seen - old) is it
        mean = (part.logp - part.old_logp).detach().sum(-1, keepdim=True)
        mean = mean / part.lengths.clamp(min=1).unsqueeze(-1)
        seen = old + mean.clamp(max=MAX_LOG_RATIO) + (logp - logp.detach())
        return torch.where(mask, seen, logp)

    def _additions(self, editing: _Editing, loss: Tensor) -> Tensor:
        """What the objective adds to TRL's `loss`: penalties, and the value of frozen tokens."""
        terms, part, world = editing.terms, editing.part, self.accelerator.num_processes
        assert part is not None
        total = torch.zeros((), device=part.mask.device)
        if any(x is not None for x in (terms.abs_kl, terms.entropy, terms.ref_kl)):
            total = total + (self._penalties(editing) * terms.scale).sum()
        with torch.no_grad():
            _, policy, _ = surrogate(part, terms)
            correction = editing.inputs.get("importance_sampling_ratio")
            if terms.ratio != "none" and terms.frozen is None:
                value = torch.zeros_like(total)
            elif correction is None and not self.aux_loss_enabled:
                value = (policy * terms.scale).sum() - loss / world
            else:  # something of TRL's is in its loss as well
                as_trl = policy
                if terms.ratio == "none":  # TRL's ratio of 1 has the gradient, and the value -A
                    as_trl = torch.where(part.mask, -terms.weight * terms.advantage, 0)
                if terms.frozen is not None:
                    as_trl = torch.where(terms.frozen, 0, as_trl)
                missing = (policy - as_trl) * terms.scale
                value = (missing if correction is None else missing * correction).sum()
        # scale is that of the whole step; gradients are averaged over ranks, not over micro-batches
        return world * (total + value)

    def _penalties(self, editing: _Editing) -> Tensor:
        """[B, T] with gradient: the loss of the additive terms, as the lab computes it."""
        part, terms = editing.part, editing.terms
        assert part is not None
        if (
            editing.step.fresh
        ):  # |lp - lp0| would turn the rounding of another batch into a gradient
            part = part.replace(old_logp=part.logp.detach())
        return surrogate(part, replace(terms, weight=torch.zeros_like(terms.weight)))[0]

    @contextmanager
    def _as_terms(self, terms: Terms) -> Iterator[None]:
        """TRL's settings, as attributes of the trainer, for one loss."""
        changes: dict[str, Any] = {
            "epsilon_low": _bound(terms.ratio_min, -1),
            "epsilon_high": _bound(terms.ratio_max, 1),
            "importance_sampling_level": "token",
            "beta": 0.0,  # the reference KL is among the additions
        }
        before = {name: getattr(self, name) for name in changes}
        for name, value in changes.items():
            setattr(self, name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    # ------------------------------------------------------------------ figures

    @torch.no_grad()
    def _count(self, editing: _Editing, last: bool) -> None:
        """Add up a micro-batch's figures; log the optimizer step's when it is the last."""
        part, terms, step = editing.part, editing.terms, editing.step
        assert part is not None
        part = part.replace(logp=part.logp.detach())
        _, policy, ratio = surrogate(part, terms)
        figures = loss_metrics(part, terms, policy, ratio) | online.sums(part, terms)
        figures["loss/total"] = figures["loss/policy"]
        if any(x is not None for x in (terms.abs_kl, terms.entropy, terms.ref_kl)):
            more = (self._penalties(editing).detach() * terms.scale).sum()
            figures["loss/total"] = figures["loss/total"] + more
        if part.ref_logp is not None:
            gap = part.ref_logp - part.logp
            figures["kl/ref"] = (gap.expm1() - gap).sum() / terms.count
        for key, value in figures.items():
            step.sums[key] = step.sums[key] + value if key in step.sums else value
        if last:
            total = sum_over_ranks(step.sums)
            self._record({**online.figures(total), **step.figures})
            for key in total.keys() & {online.PART + name for name in online.PARTS}:
                self._iteration.setdefault(key, []).append(total[key])
            self._plan = None
            self._write_line()

    def _probe(self, logp: Tensor, inside: Tensor | None) -> None:
        """`numerics/logp_rounding`, and a warning the first time there is any."""
        if inside is not None and inside.shape != logp.shape:
            inside = inside[:, -logp.shape[1] :] if inside.shape[0] == logp.shape[0] else None
        found = logp_rounding(logp, inside)
        if self._rounding is None and found.dtype is not None and self.accelerator.is_main_process:
            warnings.warn(f"EntropyGRPOTrainer: {found.warning()}", stacklevel=2)
        self._rounding = found.error
        self._record({"numerics/logp_rounding": found.error})

    def _record(self, figures: dict[str, float]) -> None:
        """Put figures into TRL's log, which averages them over the logged steps."""
        for key, value in figures.items():
            self._metrics["train"][key].append(value)
            self._iteration.setdefault(key, []).append(value)

    def _write_line(self) -> None:
        """The iteration's line, after the last update on its generation batch."""
        done = self.state.global_step + 1
        if done % self._updates:
            return
        figures, self._iteration = self._iteration, {}
        if self._run_log is not None and self.accelerator.is_main_process:
            means = {key: sum(values) / len(values) for key, values in figures.items()}
            self._run_log.line(done // self._updates, online.figures(means))

    def _dump(
        self, output: dict[str, Any], mask: Tensor, whole: TokenBatch, advantage: Tensor,
        kept: Tensor,
    ) -> None:  # fmt: skip
        """The tokens of this generation batch, if they are due."""
        iteration = self.state.global_step // self._updates + 1
        log = self._run_log
        if log is None or not log.due(iteration):
            return
        rows = gather_object(own_rows(self._tokenizer, output, mask, self.eos_token_ids))
        if self.accelerator.is_main_process:
            log.rollouts(rollouts_of(iteration, whole, advantage, kept, rows, self._tokenizer))


def _config(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any], Any]:
    """TRL's positional arguments made keywords, and its configuration."""
    names = ("model", "reward_funcs", "args")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if len(args) > len(names):
        raise TypeError("EntropyGRPOTrainer: pass everything after `args` by name")
    config = given.pop("args", None)
    if config is None:
        model = given.get("model")
        name = model if isinstance(model, str) else getattr(model, "name_or_path", "") or "model"
        config = GRPOConfig(f"{name.rstrip('/').split('/')[-1]}-GRPO")
    return (), given, config


def _cat(pieces: list[dict[str, Any]], key: str) -> Tensor:
    return torch.cat([piece[key] for piece in pieces])


def _loss_mask(inputs: dict[str, Any]) -> Tensor:
    """[B, T] bool: the tokens that TRL trains on."""
    mask = inputs["completion_mask"]
    return (mask * inputs["tool_mask"] if "tool_mask" in inputs else mask).bool()


def _trained(inputs: dict[str, Any]) -> Tensor:
    """[B, T] bool: without the rollouts of groups that teach nothing."""
    return _loss_mask(inputs) & inputs[KEPT][:, None]


def _mismatch(output: dict[str, Any], mask: Tensor) -> dict[str, float]:
    """`mismatch/...` of all ranks, where the sampler said its log-probs (vLLM does)."""
    sampler = output.get("sampling_per_token_logps")
    if sampler is None:
        return {}
    both, _ = gather_batch(TokenBatch(sampler, output[OLD_LOGP], mask))
    return mismatch(both.old_logp, both.logp, both.mask)


def _adds(terms: Terms) -> bool:
    extra = (terms.abs_kl, terms.entropy, terms.ref_kl, terms.frozen)
    return terms.ratio == "none" or any(x is not None for x in extra)


def _bound(bound: Tensor, sign: int) -> Any:
    """TRL's epsilon of a clip bound: a number where all tokens have one bound, else [B, T]."""
    if not bound.numel():
        return math.inf
    first = float(bound.flatten()[0])
    return sign * (first - 1) if bool((bound == first).all()) else sign * (bound - 1)


__all__ = ["EntropyControl", "EntropyGRPOTrainer"]
