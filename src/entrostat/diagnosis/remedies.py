"""What to try next, as a line to paste for the trainer that wrote the run.

A setting is not offered if the log shows that it is on, if the trainer's version lacks it, or if
entrostat's trainers reject it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..logs.importers.source import number
from ..logs.importers.verl import BEFORE
from ..logs.run import Run
from .causes import Cause
from .events import Event
from .settings import FLAGS, LAB, SWITCH, TRL, VERL
from .signals import signal
from .verdict import Judged, floor_of

PLAIN = 0.2  # smallest weight of a cause that gets a remedy
MOST = 3  # most remedies listed
SHARE = 0.7  # of the first entropy: target for a run that fell from its first iteration
FIRST = ("no_learning_signal", "length_collapse", "not_computed")  # come before any other cause


@dataclass(frozen=True)
class Remedy:
    cause: str  # name of its cause or event
    what: str  # what it changes and what to expect
    paste: str  # lines for the trainer that wrote the run; "" if none are known
    short: str = ""  # in a few words, for a headline


Made = tuple[str, str, str]  # short, what, paste
Make = Callable[[Run, Judged], Made | None]


def remedies_of(
    run: Run, judged: Judged, causes: Sequence[Cause], events: Sequence[Event]
) -> tuple[Remedy, ...]:
    """Remedies for the worst events and strongest causes, without repeats, in the order to try."""
    ends = [e.name for e in events if e.severity == "broken" or e.name == "not_computed"]
    causal = [cause.name for cause in causes if cause.weight >= PLAIN]
    asked = [n for n in ends if n in FIRST] + causal + [n for n in ends if n not in FIRST]
    if not causal and judged.verdict not in ("held", "cannot tell"):
        asked.append("policy_gradient")
    if not judged.iterations:
        asked = ["not_computed"]
    dead = any(name in ("length_collapse", "no_learning_signal") for name in ends)
    seen: dict[str, Remedy] = {}
    for name in asked:
        make = _TABLE.get(name, _hold)
        if (make is _hold and dead) or (made := make(run, judged)) is None:
            continue
        short, what, paste = made
        seen.setdefault(paste or what, Remedy(name, what, paste, short))
    return tuple(seen.values())[:MOST]


# ------------------------------------------------------------------ lines of a trainer


def _flag(run: Run, key: str, n: object = "") -> str:
    trainer = _pasted_into(run)
    line = FLAGS[key].get(trainer, "").format(n=n)
    return f"{_again(run)} {line}" if trainer == LAB and line else line


def _pasted_into(run: Run) -> str:
    """The trainer whose syntax repeats the run: TRL if a user's own script made it.

    Such a script leaves a config.toml but no environment.json; no file contains its rewards.
    """
    script = run.config.get("host") == "trl" and not run.environment_text
    return TRL if run.trainer == LAB and script else run.trainer


def _again(run: Run) -> str:
    """The command that repeats a training with the run's settings."""
    config = shlex.quote(str(run.path / "config.toml"))
    return f"entrostat train --config {config} --output {shlex.quote(f'{run.path}-held')}"


def _thermostat(run: Run, target: float | str) -> str:
    """Lines that add the thermostat to the run's method, in its trainer's syntax."""
    trainer = _pasted_into(run)
    if trainer == LAB:
        return f"{_again(run)} --method thermostat --method.target {target}"
    if trainer == TRL:
        return (
            "from entrostat.trainers.trl import EntropyGRPOTrainer\n"
            f"trainer = EntropyGRPOTrainer(..., args=args, entropy={json.dumps(target)})"
        )
    if trainer != VERL:
        return ""
    actor, said = "actor_rollout_ref.actor", run.settings
    low, high = (number(said.get(f"clip_ratio_{side}")) or 0.2 for side in ("low", "high"))
    clip = "" if low == high == 0.2 else f"{{name:ppo,low:{low:g},high:{high:g}}},"
    mean = said.get("loss_agg_mode", "token-mean").replace("-", "_")
    own = {
        "advantage": _ESTIMATORS[said.get("adv_estimator", "grpo").lower()],
        "aggregation": "" if mean == "token_mean" else mean,
    }
    lines = [f" +{actor}.policy_loss.{key}={value}" for key, value in own.items() if value]
    return (
        f"trainer.v1.trainer_mode=entrostat {actor}.strategy=fsdp2 {actor}.calculate_entropy=true "
        f"{actor}.policy_loss._target_=entrostat.trainers.verl.settings.PolicyLoss "
        f"{actor}.policy_loss.loss_mode=entrostat "
        f"'+{actor}.policy_loss.method=[{clip}{{name:thermostat,target:{target}}}]'"
        + "".join(lines) + (" algorithm.adv_estimator=grpo" if own["advantage"] else "")
    )  # fmt: skip


# veRL's estimators without a critic -> entrostat's; "" for the thermostat's own
_ESTIMATORS = {
    "grpo": "", "rloo": "rloo", "reinforce_plus_plus": "reinforce_pp", "grpo_passk": "grpo_passk",
    "opo": "opo",
}  # fmt: skip
# values of veRL's settings with which entrostat's trainer can be added to a run
_TAKEN = {
    "entropy_coeff": ("0", "0.0"), "strategy": ("fsdp", "fsdp2"), "use_kl_loss": ("false",),
    "use_kl_in_reward": ("false",), "adv_estimator": tuple(_ESTIMATORS),
    "loss_agg_mode": ("token-mean", "seq-mean-token-mean"),
}  # fmt: skip


def _refused(run: Run) -> bool:
    """Whether a veRL run's settings or version rule out entrostat's trainer."""
    said = {key: run.settings[key].lower() for key in _TAKEN if key in run.settings}
    other = any(value not in _TAKEN[key] for key, value in said.items())
    return run.trainer == VERL and (other or _is_old(run))


def _is_old(run: Run) -> bool:
    """Whether veRL up to 0.4 wrote the run; it lacks entrostat's trainer and some settings."""
    return BEFORE in run.settings


# ------------------------------------------------------------------ numbers


def _twice_the_limit(run: Run) -> int | str:
    """Twice the response limit in the log; else twice the length of a truncated response."""
    said = number(run.settings.get("max_response_length"))
    limit, cut = signal(run, "limit"), signal(run, "truncated")
    seen = limit is not None and cut is not None and cut.y.any()
    if limit is None and cut is not None and cut.late == 1:
        limit, seen = signal(run, "length"), True  # every response is at the limit
    found = said or number(run.setting("sampling", "max_new_tokens")) or (
        float(limit.y.max()) if seen and limit is not None else None
    )  # fmt: skip
    return "TWICE_THE_LIMIT" if found is None else int(2 * found)


def _rate(divisor: float, unknown: str) -> Callable[[Run], str]:
    def found(run: Run) -> str:
        rate = signal(run, "rate")
        highest = 0.0 if rate is None else float(rate.y.max())
        return f"{highest / divisor:.2g}" if highest > 0 else unknown

    return found


_third, _tenth = _rate(3, "A_THIRD"), _rate(10, "A_TENTH")


# ------------------------------------------------------------------ what depends on the run


def _hold(run: Run, judged: Judged) -> Made | None:
    """The thermostat, at the first entropy or a share of it; else the trainer's own remedy."""
    if run.trainer not in (LAB, TRL, VERL, "a table") or _refused(run):
        return _own_lever(run, judged)
    late = judged.onset is not None and judged.onset.low > run.metrics[0]["iteration"]
    target: float | str = f"{SHARE:g}x" if judged.falling else "1x"
    if late and judged.falling:
        target = float(f"{judged.first:.3g}")
    words = f"at {target:g} nats" if isinstance(target, float) else f"at {target[:-1]} of the first"
    needs = {TRL: ", with TRL 1.16", VERL: ", with veRL 0.9.1"}.get(run.trainer, "")
    return (
        "hold entropy with the thermostat",
        f"Hold entropy with the thermostat ({words}; the target is yours to choose{needs}): "
        "entropy should come to it within some ten iterations and stay, or the page says why not.",
        _thermostat(run, target),
    )


def _own_lever(run: Run, judged: Judged) -> Made | None:
    """The trainer's own remedy, if the thermostat does not fit the run."""
    high, low = (number(run.settings.get(f"clip_ratio_{side}")) for side in ("high", "low"))
    is_on = high is not None and high > (low or 0.2)
    known = run.trainer != VERL or not _is_old(run) or "clip_ratio_high" in run.settings
    own = _flag(run, "clip_high") if judged.falling and known and not is_on else ""
    if own:
        return (
            "a higher upper bound of the clip",
            f"{run.trainer} has no thermostat that fits this run; of its own levers a higher "
            "upper bound of the clip (DAPO) is the usual one. Entropy should fall later. On "
            "small policies we saw little of it (docs/study.md), so look again after the next "
            "run.",
            own,
        )
    if _refused(run):
        return None
    return (
        "TRL or veRL with the thermostat",
        f"{run.source} has no lever of its own that holds entropy; the same settings in TRL or "
        "veRL have the thermostat (docs/thermostat.md).",
        "",
    )


def _other_knob(run: Run, judged: Judged) -> Made:
    return (
        "let the thermostat solve for a bonus",
        "Let the thermostat solve for an entropy bonus; no range ends its authority "
        "(docs/thermostat.md).",
        _thermostat(run, f"{SHARE:g}x"),
    )


def _weaker_bonus(run: Run, judged: Judged) -> Made:
    if own := _flag(run, "bonus"):
        return "leave the bonus out", "Leave the bonus out; entropy should stop rising.", own
    return (
        "let the thermostat solve for the bonus",
        "Let the thermostat solve for the bonus, both ways, in place of a fixed coefficient.",
        _thermostat(run, "1x"),
    )


def _harder(run: Run, judged: Judged) -> Made:
    final, task = shlex.quote(str(run.path / "final")), shlex.quote(run.task)
    lab = (
        f"entrostat eval {final} --on {task} --k 8 --output evals\n"
        f"entrostat subset {task} --by pass_rate --responses evals --low 0.1 --high 0.9 "
        f"--output harder.jsonl\n{_again(run)} --task harder.jsonl"
    )
    return (
        "stop here, or train on harder prompts",
        "Stop here, or train on harder prompts: leave out those that are solved nearly always. "
        "A checkpoint from before the fall keeps the score and the diversity (save.best).",
        lab if _pasted_into(run) == LAB else _flag(run, "harder"),
    )


def _learn(run: Run, judged: Judged) -> Made:
    cut, score = signal(run, "truncated"), signal(run, "score")
    if score is not None and score.late == score.y.max() and score.late > floor_of(score.y):
        return _harder(run, judged)  # all answers are right
    if cut is not None and cut.late > 0.9:
        short, what, paste = _longer(run, judged)
        return short, f"No completion ends, so none can be right. {what}", paste
    return (
        "look at what the reward gives to single answers",
        "Nothing was learnt: print the reward of a few right and a few wrong answers (a parser "
        "that fails gives 0 to all), then take prompts that the model solves now and then.",
        _flag(run, "rollouts", 16),
    )


def _correct(run: Run, judged: Judged) -> Made:
    on = signal(run, "correction") is not None
    if on or run.settings.get("rollout_is", "none").lower() not in ("none", "null"):
        return (
            "make sampler and trainer one policy",
            "The correction for the sampler is on already and hides what it costs: make the two "
            "policies one. The same precision in both (fp16 rather than bf16, REPO App. A.2), "
            "weights synchronised before every batch, log-probs at the sampling temperature.",
            "",
        )
    return (
        "measure and correct the sampler's mismatch",
        "Measure and correct it: log-probs of the sampler in the loss's weights, both in the same "
        "precision (fp16 rather than bf16, REPO App. A.2); `entrostat doctor` finds which cast.",
        _flag(run, "correction"),
    )


def _per_token(run: Run, judged: Judged) -> Made:
    lab = f"entrostat report {shlex.quote(str(run.path))}  # entropy/exact"
    return (
        "look at the exact entropy of a token",
        "Look at the exact entropy of a token before anything is changed: no lever helps a figure "
        "that follows the length.",
        lab if run.trainer == LAB else _flag(run, "per_token"),
    )


def _compute(run: Run, judged: Judged) -> Made:
    own, flag = "Have the trainer log the mean entropy of its tokens.", _flag(run, "entropy")
    if judged.iterations and not flag:
        return "see how entropy is computed", "See where the trainer computes it.", ""
    return "switch the entropy on", f"Log the entropy. {SWITCH.get(run.trainer, own)}", flag


# ------------------------------------------------------------------ the table


def _change(
    flag: str, n: Callable[[Run], object], short: str, what: str
) -> Callable[[Run, Judged], Made]:
    """A remedy that changes one of the trainer's settings, with a number from the log."""
    return lambda run, judged: (short, what, _flag(run, flag, n(run)))


_longer = _change(
    "length", _twice_the_limit, "allow longer answers",
    "Allow longer answers, or leave cut ones out of the loss: the share that is cut should go to a "
    "few percent.",
)  # fmt: skip
_much_slower = _change(
    "lr", _tenth, "a tenth of the learning rate from a checkpoint before the fall",
    "A tenth of the learning rate, from the start or a checkpoint before the fall: of five "
    "settings changed one at a time in such runs of ours, it alone gave all of the score back "
    "(docs/study.md).",
)  # fmt: skip
_TABLE: dict[str, Make] = {
    "reward_saturated": _harder,
    "score_lost": _much_slower,
    "length_collapse": _change(
        "lr", _tenth,
        "go back to a checkpoint before it, and see what the reward gives to short answers",
        "Go back to a checkpoint before the fall and print the reward of the shortest responses: a "
        "length penalty, or a reward that nothing earns, teaches silence. A tenth of the learning "
        "rate keeps one bad batch from doing it again.",
    ),
    "no_learning_signal": _learn,
    "not_computed": _compute,
    "not_finite": _change(
        "lr", _third, "go back to a checkpoint before it, at a third of the learning rate",
        "Go back to a checkpoint before it, and look at that iteration's gradient norm: "
        "a third of the learning rate makes it rarer.",
    ),
    "zero_signal_groups": _change(
        "rollouts", lambda run: int(2 * (number(run.setting("sampling", "rollouts")) or 8)),
        "more rollouts a prompt, prompts of middling difficulty",
        "Get more groups with both right and wrong answers: more rollouts a prompt, and prompts "
        "of middling difficulty; the share of groups without a signal should fall.",
    ),
    "truncation": _longer,
    "learning_rate": _change(
        "lr", _third, "a third of the learning rate",
        "A third of the learning rate: the divergence of an iteration should fall about tenfold, "
        "and entropy move later and slower.",
    ),
    "clip_always": _change(
        "updates", lambda run: int(number(run.settings.get("train_batch_size")) or 0) // 2
        or "HALF_THE_TRAIN_BATCH_SIZE", "fewer updates a batch",
        "Fewer updates a batch: one pass, two minibatches. The clipped share should fall under a "
        "few percent; what is left then says whether entropy needs a lever of its own.",
    ),
    "sampler_mismatch": _correct,
    "entropy_definition": _per_token,
    "knob_saturated": _other_knob,
    "entropy_bonus": _weaker_bonus,
}  # fmt: skip
