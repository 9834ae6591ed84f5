"""`entrostat doctor`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .._text import say
from .flags import take, take_switch, whole
from .terminal import quiet_libraries, tell

if TYPE_CHECKING:
    from ..diagnosis.doctor import Finding

_NAMED = 4  # runs of a directory that a message names
DOCTOR = """\
usage: entrostat doctor [--config FILE.toml] [any flag of train] [--prompts N]
                        [--rollouts FILE_OR_RUN] [--json]
       entrostat doctor RUN_OR_LOG [--json]
       entrostat doctor --environment [--json]

Look for what makes a run's figures untrue, or a method idle, before it starts:
load the model, sample a few rollouts, try an iteration's updates, take them
back. Nothing is written. Of a run that is there, ours or another trainer's,
what its log and its rollouts show.

Examples:
  entrostat doctor --config recipes/grpo.toml
  entrostat doctor --method kl_cov --model smollm2 --task words --optim.epochs 1
  entrostat doctor --method thermostat --method.target 1x --prompts 16
  entrostat doctor --config my.toml --rollouts runs/mine
  entrostat doctor outputs/checkpoint-500 --json
  entrostat doctor --environment

  rounding        log-probs or logits that went through 16 bits (bf16, FSDP2's
                  output cast)
  cancellation    entropy as the difference of two large numbers
  mismatch        the sampler's log-probs are not the trainer's
  temperature     tokens, sampler or trainer are at another temperature than is
                  set
  padding         places after a completion's end in the mean
  eos             completions do not end, or their end is not trained on
  group           one rollout a prompt, and nothing to compare it with
  zero_advantage  more than half of the groups have no signal
  ratio           every ratio is 1, so that no clip acts
  selection       what is decided depends on micro-batches or ranks
  gate            a gate on entropy far below the policy's
  authority       a target that the knob cannot reach or hold
  penalties       a method that changes no token's gradient

  --prompts N    sampled, a group of rollouts each; default 8
  --rollouts X   a run's first rollouts, or a dump of some, in the place of
                 sampled ones
  --environment  for bug reports: versions, extras and devices; nothing else is
                 checked
  --json         for programs: a list of findings
  --trust-code   import the code (MODULE:NAME) that the file names

Exit code: 0 nothing is wrong, 1 something is, 2 it cannot be asked. The checks
that need no model are made at the start of every `train`, too. docs/doctor.md
has their limits and reasons.
"""


def doctor_verb(args: list[str]) -> int:
    """Look for faults in a configuration and its first rollouts, or in what a run left."""
    plain, args = take_switch(args, "json")
    prompts, args = take(args, "prompts")
    whole(prompts, "prompts")
    rollouts, args = take(args, "rollouts")
    quiet_libraries()
    environment, args = take_switch(args, "environment")
    if environment:
        return _environment(args, prompts, rollouts, plain)
    from ..errors import RunStopped

    try:
        if args and not args[0].startswith("-"):
            return _show(_of_run(args, prompts, rollouts), plain)
        return _show(_of_config(args, prompts, rollouts), plain)
    except RunStopped as error:
        return tell(str(error), code=1)


def _environment(args: list[str], prompts: str | None, rollouts: str | None, plain: bool) -> int:
    if args or prompts or rollouts:
        given = (args or [f"--prompts {prompts}" if prompts else f"--rollouts {rollouts}"])[0]
        raise ValueError(f"doctor --environment takes --json alone, got {given!r}; remove it")
    from .environment import environment_lines, environment_report

    report = environment_report()
    say(json.dumps(report, indent=2) if plain else "\n".join(environment_lines(report)))
    return 0


def _of_run(args: list[str], prompts: str | None, rollouts: str | None) -> list[Finding]:
    if len(args) > 1 or prompts or rollouts:
        given = [
            *args[1:],
            *(f"--{n}" for n, v in (("prompts", prompts), ("rollouts", rollouts)) if v),
        ]
        raise ValueError(
            f"doctor {args[0]!r} reads what a run left, and takes no {given[0]}; to sample, give "
            f"the configuration: entrostat doctor --config {args[0]}/config.toml"
        )
    from ..diagnosis.doctor import examine_run
    from ..logs.importers import read_all

    runs, _ = read_all(args[0])
    if len(runs) > 1:
        raise ValueError(
            f"doctor {args[0]!r}: {len(runs)} runs lie there; name one: "
            + ", ".join(str(run.path) for run in runs[:_NAMED])
            + f" and {len(runs) - _NAMED} more" * (len(runs) > _NAMED)
        )
    return examine_run(runs[0])


def _of_config(args: list[str], prompts: str | None, rollouts: str | None) -> list[Finding]:
    from ..config import check_model
    from .training import configured

    file, args = take(args, "config")
    config = configured(args, "entrostat doctor", DOCTOR, file)
    check_model(config.model)
    from ..diagnosis.doctor import PROMPTS, rollouts_at
    from ..trainers.lab import examine

    recorded = None if rollouts is None else rollouts_at(rollouts)
    return examine(config, prompts=int(prompts or PROMPTS), rollouts=recorded)


def _show(findings: list[Finding], plain: bool) -> int:
    from ..diagnosis.doctor import lines

    if plain:
        say(json.dumps([finding.to_dict() for finding in findings], indent=2))
    else:
        say("\n".join(lines(findings)))
    return int(any(finding.wrong for finding in findings))
