"""The next thing to try, as a line to paste for the trainer that wrote the run."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from ..logs.run import Run
from .causes import Cause
from .verdict import Judged

LAB, TRL, VERL, SLIME, PRIME = "entrostat", "TRL", "veRL", "slime", "prime-rl"
PLAIN = 0.2  # a cause that is less plain does not carry advice
MOST = 3  # a longer list is none to act on
SHARE = 0.7  # of the first entropy: where a run that fell from its first iteration may be held


@dataclass(frozen=True)
class Remedy:
    """A change to try.

    Attributes:
        cause: name of the cause it is for.
        what: a sentence that says what it changes and what one would see.
        paste: lines for the trainer that wrote the run; empty where none is known.
    """

    cause: str
    what: str
    paste: str


def remedies_of(run: Run, judged: Judged, causes: tuple[Cause, ...]) -> tuple[Remedy, ...]:
    """What to try against the plainest causes, each once, the first first.

    Args:
        run: the run: its trainer decides the lines, its settings their numbers.
        judged: what became of its entropy.
        causes: of `causes_of`.
    """
    made = [_remedy(run, judged, cause) for cause in causes if cause.weight >= PLAIN]
    seen: dict[str, Remedy] = {}
    for remedy in made:
        seen.setdefault(remedy.paste or remedy.what, remedy)
    return tuple(seen.values())[:MOST]


def _remedy(run: Run, judged: Judged, cause: Cause) -> Remedy:
    make = _TABLE.get(cause.name, _hold)
    what, lines = make(run, judged)
    paste = lines.get(run.source, "")
    return Remedy(cause.name, what, paste)


Lines = tuple[str, dict[str, str]]


def _hold(run: Run, judged: Judged) -> Lines:
    """The thermostat, at the level from which entropy moved; else what the trainer has itself."""
    if run.source == SLIME and judged.falling:
        return (
            "slime has no thermostat; of its own levers a higher upper bound of the clip (DAPO) is "
            "the usual one. Entropy should fall later. On small policies we saw little of it "
            "(docs/study.md), so look again after the next run.",
            {SLIME: "--eps-clip-high 0.28"},
        )
    if run.source in (SLIME, PRIME):
        return (
            f"{run.source} has no lever of its own that holds entropy; the same settings in TRL or "
            "veRL have the thermostat (docs/thermostat.md).",
            {},
        )
    late = judged.onset is not None and judged.onset.low > run.metrics[0]["iteration"]
    target = f"{judged.first:.3g}" if late and judged.falling else f"{SHARE:g}x"
    if not judged.falling:
        target = "1x"
    return (
        f"Hold entropy with the thermostat ({_words(target)}; the target is yours to choose): "
        "entropy should come to it within some ten iterations and stay, or the page says why "
        "not.",
        _methods(run, {"name": "thermostat", "target": _number(target)}),
    )


def _words(target: str) -> str:
    return f"at {target[:-1]} of the first" if target.endswith("x") else f"at {target} nats"


def _number(target: str) -> float | str:
    return target if target.endswith("x") else float(target)


def _other_knob(run: Run, judged: Judged) -> Lines:
    return (
        "Let the thermostat solve for an entropy bonus; no range ends its authority "
        "(docs/thermostat.md).",
        _methods(run, {"name": "thermostat", "target": f"{SHARE:g}x"}),
    )


def _methods(run: Run, table: dict[str, float | str]) -> dict[str, str]:
    """A method added to what the run trains with, in each trainer's words."""
    flags = " ".join(f"--method.{key} {value}" for key, value in table.items() if key != "name")
    hydra = "{" + ",".join(f"{key}:{value}" for key, value in table.items()) + "}"
    return {
        LAB: f"{_again(run)} --method {table['name']} {flags}",
        TRL: (
            "from entrostat import make_objective\n"
            "from entrostat.trainers.trl import EntropyGRPOTrainer, from_grpo_config\n"
            "own = from_grpo_config(args)  # your GRPOConfig's own loss\n"
            f'own["method"].append({json.dumps(table)})\n'
            "trainer = EntropyGRPOTrainer(..., args=args, objective=make_objective(**own))"
        ),
        VERL: (
            "trainer.v1.trainer_mode=entrostat "
            "actor_rollout_ref.actor.policy_loss._target_="
            "entrostat.trainers.verl.settings.PolicyLoss "
            "actor_rollout_ref.actor.policy_loss.loss_mode=entrostat "
            f"'+actor_rollout_ref.actor.policy_loss.method=[dapo,{hydra}]'"
            + (" actor_rollout_ref.actor.calculate_entropy=true" if "knob" in table else "")
        ),
    }  # fmt: skip


def _again(run: Run) -> str:
    """The command that trains once more with a run's settings."""
    config = shlex.quote(str(run.path / "config.toml"))
    return f"entrostat train --config {config} --output {shlex.quote(f'{run.path}-held')}"


def _lab(run: Run, flags: str) -> str:
    return f"{_again(run)} {flags}"


def _harder(run: Run, judged: Judged) -> Lines:
    final, task = shlex.quote(str(run.path / "final")), shlex.quote(run.task)
    return (
        "Stop here, or train on harder prompts: leave out those that are solved nearly always. "
        "A checkpoint from before the fall keeps the score and the diversity (save.best).",
        {LAB: f"entrostat eval {final} --on {task} --k 8 --output evals\n"
              f"entrostat subset {task} --by pass_rate --responses evals --low 0.1 --high 0.9 "
              "--output harder.jsonl\n"
              f"{_again(run)} --task harder.jsonl",
         VERL: "algorithm.filter_groups.enable=true",
         SLIME: "--dynamic-sampling-filter-path "
                "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std",
         PRIME: "--orchestrator.train.source.0.curriculum.sampler.type difficulty_pool"},
    )  # fmt: skip


def _signal(run: Run, judged: Judged) -> Lines:
    rollouts = _setting(run, "sampling", "rollouts")
    more = 16 if rollouts is None else int(2 * rollouts)
    return (
        "Get more groups with both right and wrong answers: more rollouts a prompt, and prompts "
        "of middling difficulty; the share of groups without a signal should fall.",
        {LAB: _lab(run, f"--sampling.rollouts {more}"), TRL: "num_generations=16",
         VERL: "actor_rollout_ref.rollout.n=16",
         SLIME: "--n-samples-per-prompt 16 --dynamic-sampling-filter-path "
                "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std",
         PRIME: "--orchestrator.group-size 16"},
    )  # fmt: skip


def _longer(run: Run, judged: Judged) -> Lines:
    most = _setting(run, "sampling", "max_new_tokens")
    seen = [v for v in (run.series("rollout/length_max")[1][-1:] or [None]) if v is not None]
    new = int(2 * (most or (seen[0] if seen else 0))) or None
    tokens = "TWICE_AS_MANY" if new is None else str(new)
    return (
        "Allow longer answers, or leave cut ones out of the loss: the share that is cut should "
        "go to a few percent.",
        {LAB: _lab(run, f"--sampling.max-new-tokens {tokens}"),
         TRL: f"max_completion_length={tokens}, mask_truncated_completions=True",
         VERL: f"data.max_response_length={tokens}",
         SLIME: f"--rollout-max-response-len {tokens}",
         PRIME: f"--orchestrator.train.sampling.max-completion-tokens {tokens}  "
                "# and a --seq-len that holds prompt and answer"},
    )  # fmt: skip


def _slower(run: Run, judged: Judged) -> Lines:
    return (
        "A third of the learning rate: the divergence of an iteration should fall about tenfold, "
        "and entropy move later and slower.",
        _rate(run, 3, "A_THIRD"),
    )


def _much_slower(run: Run, judged: Judged) -> Lines:
    return (
        "A tenth of the learning rate, from the start or a checkpoint before the fall: of five "
        "settings changed one at a time in such runs of ours, it alone gave all of the score back "
        "(docs/study.md).",
        _rate(run, 10, "A_TENTH"),
    )


def _rate(run: Run, divisor: float, unknown: str) -> dict[str, str]:
    """The highest learning rate that a run logged, divided."""
    rates = [v for name in ("optim/lr", "learning_rate", "actor/lr", "train/lr-pg_0")
             for v in run.series(name)[1]]  # fmt: skip
    rate = f"{max(rates) / divisor:.2g}" if rates and max(rates) > 0 else unknown
    return {
        LAB: _lab(run, f"--optim.lr {rate}"), TRL: f"learning_rate={rate}",
        VERL: f"actor_rollout_ref.actor.optim.lr={rate}", SLIME: f"--lr {rate}",
        PRIME: f"--trainer.optim.lr {rate}",
    }  # fmt: skip


def _fewer_updates(run: Run, judged: Judged) -> Lines:
    return (
        "Fewer updates a batch: one pass, two minibatches. The clipped share should fall under a "
        "few percent; what is left then says whether entropy needs a lever of its own.",
        {LAB: _lab(run, "--optim.epochs 1 --optim.minibatches 2"), TRL: "num_iterations=1",
         VERL: "actor_rollout_ref.actor.ppo_epochs=1 actor_rollout_ref.actor.ppo_mini_batch_size="
               "HALF_THE_TRAIN_BATCH_SIZE",
         SLIME: "--num-steps-per-rollout 2"},
    )  # fmt: skip


def _correct(run: Run, judged: Judged) -> Lines:
    return (
        "Measure and correct it: log-probs of the sampler in the loss's weights, both in the same "
        "precision (fp16 rather than bf16, REPO App. A.2); `entrostat doctor` finds which cast.",
        {LAB: _lab(run, "--precision fp32"),
         TRL: "vllm_importance_sampling_correction=True, bf16=False, fp16=True",
         VERL: "algorithm.rollout_correction.rollout_is=token "
               "algorithm.rollout_correction.rollout_is_threshold=2.0",
         SLIME: "--use-tis",
         PRIME: "--orchestrator.max-off-policy-steps 1"},
    )  # fmt: skip


def _per_token(run: Run, judged: Judged) -> Lines:
    return (
        "Look at the exact entropy of a token before anything is changed: no lever helps a figure "
        "that follows the length.",
        {LAB: f"entrostat report {shlex.quote(str(run.path))}  # entropy/exact",
         TRL: "from entrostat.trainers.trl import EntropyGRPOTrainer\n"
              "trainer = EntropyGRPOTrainer(..., objective=None)  # TRL's loss, our figures",
         VERL: "actor_rollout_ref.actor.loss_agg_mode=token-mean",
         SLIME: "--calculate-per-token-loss"},
    )  # fmt: skip


def _weaker_bonus(run: Run, judged: Judged) -> Lines:
    if run.source == SLIME:
        return "Leave the bonus out; entropy should stop rising.", {SLIME: "--entropy-coef 0"}
    return (
        "Let the thermostat solve for the bonus, both ways, in place of a fixed coefficient.",
        _methods(run, {"name": "thermostat", "target": "1x"}),
    )


_TABLE = {
    "reward_saturated": _harder,
    "score_lost": _much_slower,
    "zero_signal_groups": _signal,
    "truncation": _longer,
    "learning_rate": _slower,
    "clip_always": _fewer_updates,
    "sampler_mismatch": _correct,
    "entropy_definition": _per_token,
    "knob_saturated": _other_knob,
    "entropy_bonus": _weaker_bonus,
}


def _setting(run: Run, table: str, key: str) -> float | None:
    """A positive number of the run's settings."""
    found = run.config.get(table)
    value = found.get(key) if isinstance(found, dict) else None
    known = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return value if known else None
