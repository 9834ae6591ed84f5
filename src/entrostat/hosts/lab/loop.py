"""The lab: a policy-gradient loop that reads from top to bottom.

One iteration: draw prompts, sample a group for each, score, measure the old policy's log-probs and
entropies exactly, let the controllers see the entropy, drop groups without a signal, update.

Differences from the papers' trainers: `old_logp` and `old_entropy` are always recomputed by the
trainer, over the whole rollout batch; methods select over the whole minibatch, however it is cut
into micro-batches; dropout is off; every random stream is seeded from (seed, iteration, purpose),
so a resumed run repeats what it would have done.

Shapes: B rollouts of an iteration, T completion tokens at most.
"""

from __future__ import annotations

import copy
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...advantage import advantages, with_signal
from ...batch import TokenBatch, masked_mean, response_mean
from ...config import TrainConfig, from_dict, load
from ...dynamics import online
from ...errors import RunStopped
from ...logs.lines import JsonLines
from ...logs.rollouts import save_rollouts
from ...objective import Objective, make_objective
from ...tasks import Task, make_task
from ..mismatch import mismatch
from . import analysis as dynamics
from . import checkpoint as checkpoints
from .abilities import SMALL
from .dump import rollouts_of
from .evaluation import evaluate
from .machine import choose_precision, choose_threads
from .needs import needs_of
from .numerics import exact_figures, rounds, with_rounded_ratio
from .policy import Policy, learning_rate, load_policy
from .prime import second_model
from .progress import Progress
from .prompts import draw, encode, new_tokens, settings, stop_strings
from .rollout import Sequences, sample
from .run_directory import RunDirectory, check_not_back, default_output
from .schedule import learning_rate_at, lengthened
from .scoring import score
from .seeds import generator, stream_seed

FIELDS = ("rewards", "group", "entropy", "old_entropy", "ref_logp", "process_rewards")


def train(
    config: TrainConfig,
    *,
    task: Task | None = None,
    progress: Progress | None = None,
    resume: bool = False,
) -> Path:
    """Train a policy; returns its run directory.

    Args:
        config: everything that determines the run.
        task: an object in place of the configuration's task.
        progress: where to show how it goes; None is silent.
        resume: go on from the newest checkpoint in `config.output`.

    Raises:
        ValueError: a bad setting, found before anything is written.
        RunStopped: the run cannot go on (a reward that is no number, NaN in the loss, a full disk);
            the last checkpoint is intact.
    """
    config = copy.deepcopy(config).validate()
    progress = progress or Progress()
    written = Path(config.output or default_output(config)) / "config.toml"
    longer = None
    if resume and written.exists():
        before = from_dict(load(written))
        config.keep_choices(before)
        longer = lengthened(config, before)
    if task is None:
        chosen: dict[str, Any] = {"seed": config.seed} | config.task
        task = make_task(**chosen)
    new = new_tokens(task, config, task.splits[0])
    stop = stop_strings(task, config)
    if config.prompt.chat is None:
        config.prompt.chat = getattr(task, "chat", None)
    objective = make_objective(
        config.method,
        advantage=config.advantage,
        aggregation=config.optim.aggregation,
        max_length=new,
        updates=config.updates,
    )
    config.advantage, config.optim.aggregation = objective.advantage, objective.aggregation
    objective.check_host("lab", FIELDS, config.updates)
    _check_groups(objective, config.sampling.rollouts)
    _check_task(task)
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        progress.fact(text)

    if longer is not None:
        say(longer)
    choose_precision(config, say)
    torch.manual_seed(config.seed)  # adapters start at random
    policy = load_policy(config)
    frozen = objective.needs & {"ref_logp", "process_rewards"}
    reference = policy.reference() if frozen else None
    trained = policy.trained()
    small = sum(p.numel() for p in policy.model.parameters()) < SMALL
    config.optim.lr = learning_rate(config, small)
    # what cannot work shows here
    prompts = encode(policy, config, draw(task, config, 1), new, ValueError)
    if policy.origin is not None:
        say(f"model: {policy.origin['name']}; its weights were quantised to "
            f"{policy.origin['quantisation']}: a little worse than the original")  # fmt: skip
    choose_threads(config, policy, small, say)
    phi = second_model(policy, reference, objective, config, small, say)
    needs = needs_of(
        policy, config, max(map(len, prompts)), new, reference is not None, phi is not None
    )
    needs.check(Path(config.output or default_output(config)), say)
    optimizer = torch.optim.AdamW(
        trained.values(), lr=config.optim.lr, betas=config.optim.betas,
        weight_decay=config.optim.weight_decay, fused=True,
    )  # fmt: skip
    scaler = torch.amp.GradScaler(policy.device.type, enabled=config.precision == "fp16")

    with RunDirectory.open(config, resume) as run:
        if run.complete(config.iterations):
            progress.end(run.path)
            return run.path
        start, updates = 0, 0
        saved = checkpoints.newest(run.checkpoints) if resume else None
        if saved is not None:
            check_not_back(run.path, config.iterations, saved.iteration)
            checkpoints.restore(saved, trained, optimizer)
            objective.load_state_dict(saved.state["objective"])
            scaler.load_state_dict(saved.state["scaler"])
            if phi is not None:
                phi.restore(saved)
            start, updates = saved.iteration, saved.updates
        elif resume:
            run.check_unsaved()
        save = checkpoints.Schedule(config.save, needs.checkpoint, start)
        say(save.words())
        found = {"packed": policy.packs, "model": policy.origin, "said": said}
        run.describe(config, objective.describe(), found)
        run.forget_after(start)
        metrics_log, evaluations = JsonLines(run.metrics), JsonLines(run.evaluations)
        answers, analysis_log = JsonLines(run.answers), JsonLines(run.analysis)
        progress.begin(config, start)

        for iteration in range(start + 1, config.iterations + 1):
            if iteration == 1:
                evaluations.append(evaluate(policy, task, config, 0, progress, answers))
            began = time.perf_counter()

            # rollouts: the policy as it stands, on this iteration's prompts
            torch.manual_seed(stream_seed(config.seed, iteration, "sample"))
            examples = draw(task, config, iteration)
            K = config.sampling.rollouts
            prompts = encode(policy, config, examples, new)
            sequences = sample(
                policy.model, prompts, rollouts=K,
                generator=generator(config.seed, iteration, "sample", policy.device),
                on_progress=progress.tokens, where=f"iteration {iteration}",
                **settings(policy, config, new, stop),
            )  # fmt: skip
            texts = policy.decode(sequences, stop)
            of_rollout = [example for example in examples for _ in range(K)]
            sampled = time.perf_counter()
            rewards = score(task, texts, of_rollout, iteration).to(policy.device)
            scored = time.perf_counter()

            # the old policy, exactly: what the controllers see and the ratio's denominator
            group = torch.arange(len(examples), device=policy.device).repeat_interleave(K)
            batch = _measure(policy, sequences, rewards, group, config)
            assert batch.old_entropy is not None
            metrics = _describe(batch, sequences, config.sampling.rollouts)
            objective.observe(
                entropy=metrics["entropy/exact"], nll=metrics["entropy/nll"],
                progress=(iteration - 1) / max(1, config.iterations - 1),
            )  # fmt: skip
            metrics |= objective.metrics()

            # groups whose advantages are all 0 teach nothing
            graded = objective.outcome_advantages(batch)
            assert graded.advantages is not None
            kept = with_signal(graded.advantages, group).nonzero()[:, 0]
            metrics["rollout/zero_advantage_groups"] = len(examples) - len(group[kept].unique())
            train_batch = graded[kept]
            if len(kept):
                if reference is not None and "ref_logp" in objective.needs:
                    train_batch = _with_reference(train_batch, reference, sequences[kept], config)
                if phi is not None:
                    token_rewards, figures = phi.token_rewards(
                        sequences[kept], rewards[kept], group[kept], f"iteration {iteration}"
                    )
                    train_batch = train_batch.replace(process_rewards=token_rewards)
                    metrics |= figures
                train_batch = objective.prepare(train_batch)
                metrics |= online.of_rollouts(train_batch, graded.advantages[kept], rewards[kept])
            measured = time.perf_counter()
            place = (iteration - 1) * config.updates  # of an update among those planned

            # what the updates will do to entropy; `finish` below says what they did
            analysis = None
            if config.analyze.due(iteration) and len(kept):
                analysis = dynamics.begin(
                    policy, objective, optimizer, graded.replace(rewards=batch.rewards),
                    train_batch, kept, sequences, config,
                    learning_rate_at(config, place, updates),
                    generator(config.seed, iteration, "analysis", policy.device),
                )  # fmt: skip
            foreseen = time.perf_counter()

            # updates: epochs of minibatches, each cut into micro-batches that add up
            totals: dict[str, list[float]] = {}
            shuffle = generator(config.seed, iteration, "shuffle", torch.device("cpu"))
            select = generator(config.seed, iteration, "select", policy.device)
            made = 0
            for epoch in range(config.optim.epochs if len(kept) else 0):
                order = torch.randperm(len(kept), generator=shuffle).to(policy.device)
                minibatches = order.tensor_split(min(config.optim.minibatches, len(order)))
                first = (iteration - 1) * config.updates + epoch * config.optim.minibatches
                for place, rows in enumerate(minibatches, first):
                    optimizer.param_groups[0]["lr"] = learning_rate_at(config, place, updates)
                    # on analysed iterations, measures the minibatch before and after
                    with dynamics.watched(analysis, rows, optimizer.param_groups[0]["lr"]):
                        figures = update(
                            policy, objective, train_batch[rows], sequences[kept[rows]], optimizer,
                            scaler, config, select, fresh=made == 0,
                            where=f"iteration {iteration}, update {made + 1}",
                        )  # fmt: skip
                    stepped = not figures.get("optim/skipped")
                    made += stepped
                    updates += stepped
                    for key, value in figures.items():
                        totals.setdefault(key, []).append(value)
            means = {key: sum(values) / len(values) for key, values in totals.items()}
            metrics |= online.figures(means)
            metrics["optim/updates"] = made
            metrics["optim/lr"] = learning_rate_at(config, place, max(0, updates - 1))
            ended = time.perf_counter()

            n = int(batch.mask.sum())
            watching = 0.0 if analysis is None else analysis.watch.seconds
            trained_in = ended - began - (foreseen - measured) - watching
            metrics |= {
                "time/sample": sampled - began,
                "time/score": scored - sampled,
                "time/measure": measured - scored,
                "time/update": ended - foreseen - watching,
                "time/iteration": trained_in,
                "time/tokens_per_second": n / trained_in,
                "time/checkpoint": save.newest,
            }
            change = None
            if analysis is not None:
                line, change = analysis.finish(iteration)
                analysis_log.append([line])
                metrics = dynamics.numbers(line) | metrics
            metrics_log.append([{"iteration": iteration, **metrics}])
            last = iteration == config.iterations
            if config.save.rollouts_every and iteration % config.save.rollouts_every == 0:
                save_rollouts(
                    rollouts_of(
                        iteration,
                        policy,
                        sequences,
                        batch,
                        train_batch,
                        kept,
                        examples,
                        texts,
                        change,
                        None if analysis is None else analysis.influence,
                    ),
                    run.rollouts,
                )
            progress.trained(iteration, metrics)
            if last or (config.eval.every and iteration % config.eval.every == 0):
                evaluations.append(evaluate(policy, task, config, iteration, progress, answers))
            if last or save.due(iteration):
                _check_weights(policy, iteration)
                checkpoints.write(
                    run.checkpoints, iteration, updates, trained, optimizer,
                    {"objective": objective.state_dict(), "scaler": scaler.state_dict()}
                    | ({} if phi is None else {"phi": phi.state_dict()}),
                    config.save.checkpoints, {} if phi is None else phi.tensors(),
                )  # fmt: skip
                save.written(iteration)
            progress.iteration(iteration, metrics)
        run.finish(policy.save, config.iterations)
        if not config.save.checkpoints:
            checkpoints.remove(run.checkpoints)
    progress.end(run.path)
    return run.path


def update(
    policy: Policy,
    objective: Objective,
    batch: TokenBatch,
    sequences: Sequences,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    config: TrainConfig,
    generator: torch.Generator,
    fresh: bool,
    where: str,
) -> dict[str, float]:
    """One optimizer step on a minibatch, cut into micro-batches that give the same gradient.

    `batch` is prepared, its `logp` and `entropy` those of the old policy, `sequences` its rows.
    `fresh` says that the weights are still the old policy's, so that a plan needs no pass of its
    own and every ratio is exactly 1; `where` names the update in an error message.

    Raises:
        RunStopped: the loss or the gradient is not finite; no step is made.
    """
    pieces = torch.arange(len(batch), device=batch.mask.device).split(config.optim.micro_batch)
    temperature = config.sampling.temperature
    terms = None
    if len(pieces) > 1:
        now = batch
        if objective.reads_current and not fresh:
            with torch.no_grad():
                stats = [policy.token_stats(sequences[rows], temperature) for rows in pieces]
            now = batch.replace(
                logp=torch.cat([s.logp for s in stats]),
                entropy=torch.cat([s.entropy for s in stats]),
            )
        terms = objective.plan(now, generator)
    optimizer.zero_grad(set_to_none=True)
    figures: dict[str, Tensor] = {}
    for rows in pieces:
        stats = policy.token_stats(sequences[rows], temperature)
        part = batch[rows].replace(logp=stats.logp, entropy=stats.entropy)
        if fresh:
            # the same weights were measured before: what differs is the rounding of another
            # packing, which |lp - lp0| would turn into a gradient
            part = part.replace(old_logp=stats.logp.detach())
        exact, mine = part, None if terms is None else terms[rows]
        if rounds(config.numerics):  # methods decide on what is exact; the ratio alone is rounded
            mine = objective.plan(exact, generator) if mine is None else mine
            part = with_rounded_ratio(exact, config.numerics)
        out = objective.loss(part, mine, generator)
        scaler.scale(out.loss).backward()
        if rounds(config.numerics):
            out.metrics |= exact_figures(exact, part, out.terms)
        for key, value in (out.metrics | online.sums(part, out.terms)).items():
            figures[key] = figures[key] + value if key in figures else value
        figures |= out.terms.figures  # of the whole minibatch already
    scaler.unscale_(optimizer)
    parameters = optimizer.param_groups[0]["params"]
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, config.optim.clip))
    numbers = {key: float(value) for key, value in figures.items()}
    if not math.isfinite(numbers["loss/total"]):
        raise RunStopped(f"{where}: the loss is {numbers['loss/total']}. {_KEPT}")
    # under fp16 a step that overflows is skipped and the scale halved: that is how it is found
    if not math.isfinite(norm) and (not scaler.is_enabled() or scaler.get_scale() < 1e-3):
        bad = [n for n, p in policy.trained().items() if not torch.isfinite(_grad(p)).all()]
        raise RunStopped(f"{where}: the gradient is not finite in {', '.join(bad[:3])}. {_KEPT}")
    scaler.step(optimizer)
    scaler.update()
    if scaler.is_enabled():
        numbers["optim/skipped"] = float(not math.isfinite(norm))
        numbers["optim/loss_scale"] = scaler.get_scale()
    return numbers | ({"grad/norm": norm} if math.isfinite(norm) else {})


def _check_weights(policy: Policy, iteration: int) -> None:
    """A checkpoint must be good to go on from."""
    sizes = torch._foreach_norm([p.detach() for p in policy.trained().values()])
    for name, size in zip(policy.trained(), torch.stack(list(sizes)).tolist(), strict=True):
        if not math.isfinite(size):
            raise RunStopped(
                f"iteration {iteration}: after its updates {name} is not finite. The checkpoint "
                "before it is good; lower optim.lr"
            )


_KEPT = (
    "The step was not made; the last checkpoint is good. Look at the rollouts, lower optim.lr or "
    "use --precision fp32, then start again or resume"
)


def _grad(parameter: torch.nn.Parameter) -> Tensor:
    return torch.zeros(()) if parameter.grad is None else parameter.grad


def _check_groups(objective: Objective, rollouts: int) -> None:
    """Find a group of one before anything is sampled, by asking the estimator itself."""
    try:
        advantages(objective.advantage, torch.zeros(rollouts), torch.zeros(rollouts),
                   torch.ones(rollouts))  # fmt: skip
    except ValueError as error:
        raise ValueError(f"sampling.rollouts is {rollouts}: {error}") from None


def _check_task(task: Task) -> None:
    for split in task.splits:
        size = task.size(split)
        if size is not None and size < 1:
            raise ValueError(f"task {task.name!r}: the data set is empty (split {split!r})")


def _measure(
    policy: Policy, sequences: Sequences, rewards: Tensor, group: Tensor, config: TrainConfig
) -> TokenBatch:
    old = policy.measure(sequences, config.sampling.temperature, config.optim.micro_batch)
    return TokenBatch(
        old.logp, old.logp, sequences.mask, rewards=rewards, group=group,
        entropy=old.entropy, old_entropy=old.entropy,
    )  # fmt: skip


def _with_reference(
    batch: TokenBatch, reference: Policy, sequences: Sequences, config: TrainConfig
) -> TokenBatch:
    """The batch with its tokens' log-probs under the frozen reference."""
    stats = reference.measure(sequences, config.sampling.temperature, config.optim.micro_batch)
    return batch.replace(ref_logp=stats.logp)


def _describe(batch: TokenBatch, sequences: Sequences, rollouts: int) -> dict[str, float]:
    """What the rollout batch looks like, before any update."""
    assert batch.rewards is not None
    assert batch.old_entropy is not None
    per_group = batch.rewards.view(-1, rollouts)
    lengths = batch.lengths.float()
    values = {
        "entropy/exact": masked_mean(batch.old_entropy, batch.mask),
        # OPEFO Eq. 5: short responses count as much as long ones
        "entropy/response_mean": response_mean(batch.old_entropy, batch.mask),
        "entropy/nll": -masked_mean(batch.old_logp, batch.mask),
        "reward/mean": batch.rewards.mean(),
        "reward/std_in_group": per_group.std(-1, correction=0).mean(),
        "reward/best_in_group": per_group.amax(-1).mean(),
        "rollout/length_mean": lengths.mean(),
        "rollout/length_max": lengths.max(),
        "rollout/truncated": 1 - sequences.finished.float().mean(),
        "rollout/tokens": lengths.sum(),
    }
    figures = {key: float(value) for key, value in values.items()}
    return figures | mismatch(batch.old_logp, sequences.sampler_logp, batch.mask)
