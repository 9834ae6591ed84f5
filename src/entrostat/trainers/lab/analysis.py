"""An analysed iteration of the lab (`entrostat.analysis` has what is measured)."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from torch import Tensor

from ...analysis.analysis import Analysis, analyse
from ...analysis.influence import InfluenceInput
from ...data.seeds import generator
from ...models.policy_evaluator import PolicyEvaluator
from ...runs.schedule import learning_rate_at
from .experience import Sampled, Selection
from .state import State


def evaluator_of(state: State) -> PolicyEvaluator:
    """The policy in plain float32, by operations that forward mode knows."""
    policy = replace(state.policy, autocast=nullcontext, half=None, rows=False)
    return PolicyEvaluator(
        policy, state.config.sampling.temperature, state.config.optim.micro_batch
    )


def begin(state: State, sampled: Sampled, rewards: Tensor, selection: Selection) -> Analysis:
    """`analyse` an iteration of the lab.

    Args:
        state: at the start of the iteration; AdamW as the last iteration left it.
        sampled: the rollout batch.
        rewards: [B], the task's.
        selection: what is trained on, at least one rollout.
    """
    config, optim = state.config, state.config.optim
    place = (sampled.iteration - 1) * config.updates
    return analyse(
        InfluenceInput(
            evaluator_of(state),
            state.objective, state.optimizer,
            learning_rate_at(config, place, state.updates), optim.clip, sampled.sequences,
            selection.graded.replace(rewards=rewards), selection.kept, selection.batch,
            generator(config.seed, sampled.iteration, "analysis", state.policy.device),
        )
    )  # fmt: skip
