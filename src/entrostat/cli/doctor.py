"""`entrostat doctor`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .._text import say
from .flags import number, read
from .terminal import quiet_libraries
from .training import FROM_FILE, configured

if TYPE_CHECKING:
    from ..diagnosis.doctor import Finding

_NAMED = 4  # most runs of a directory named in a message
DOCTOR = """\
usage: entrostat doctor [--config FILE.toml] [any flag of train] [OPTIONS]
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
  temperature     tokens, sampler or trainer are at another temperature than set
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
  --rollouts X   a run's first rollouts, or a dump, in place of sampled ones
  --environment  versions, extras and devices, for bug reports; checks nothing
  --json         for programs: a list of findings
  --trust-code   import the code (MODULE:NAME) that the file names

Exit code: 0 nothing is wrong, 1 something is, 2 it cannot be asked. `train`
makes the checks that need no model, too. docs/doctor.md has limits and reasons.
"""


def doctor_verb(args: list[str]) -> int:
    own = {"json": "", "environment": ""}
    given, args = read(args, {**own, "prompts": "N", "rollouts": "X", **FROM_FILE})
    prompts = number(given["prompts"], "prompts")
    others = [f"--{name}" for name, value in given.items() if value and name not in own]
    quiet_libraries()
    if given["environment"]:
        if wrong := [*args, *others]:
            raise ValueError(
                f"doctor --environment takes --json alone, got {wrong[0]!r}; remove it"
            )
        from .environment import environment_lines, environment_report

        report = environment_report()
        say(json.dumps(report, indent=2) if given["json"] else "\n".join(environment_lines(report)))
        return 0
    if args and not args[0].startswith("-"):
        findings = _of_run(args[0], [*args[1:], *others])
    else:
        findings = _of_config(given, args, prompts)
    from ..diagnosis.doctor import lines

    if given["json"]:
        say(json.dumps([finding.to_dict() for finding in findings], indent=2))
    else:
        say("\n".join(lines(findings)))
    return int(any(finding.wrong for finding in findings))


def _of_run(path: str, others: list[str]) -> list[Finding]:
    if others:
        raise ValueError(
            f"doctor {path!r} reads what a run left, and takes no {others[0]}; to sample, give "
            f"the configuration: entrostat doctor --config {path}/config.toml"
        )
    from ..diagnosis.doctor import examine_run
    from ..logs.importers import read_all

    runs, _ = read_all(path)
    if len(runs) > 1:
        places = list(dict.fromkeys(str(run.path) for run in runs))
        if len(places) < len(runs):
            raise ValueError(f"doctor {path!r}: a file has {len(runs)} runs; it reads files of one")
        raise ValueError(
            f"doctor {path!r}: {len(runs)} runs lie there; name one: "
            + ", ".join(places[:_NAMED])
            + f" and {len(runs) - _NAMED} more" * (len(runs) > _NAMED)
        )
    return examine_run(runs[0])


def _of_config(given: Mapping[str, Any], args: list[str], prompts: int | None) -> list[Finding]:
    config = configured(given, args, "entrostat doctor", DOCTOR)
    from ..diagnosis.doctor import PROMPTS, rollouts_at
    from ..trainers.lab import examine

    recorded = None if given["rollouts"] is None else rollouts_at(given["rollouts"])
    return examine(config, prompts=prompts or PROMPTS, rollouts=recorded)
