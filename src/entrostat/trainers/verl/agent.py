"""Rollouts in veRL's agent loop workers, with the row's exact prompt and the run's stops.

veRL's own `single_turn_agent` renders chat messages again and does not support stop strings. Its
`tool_agent_loop` supports tools, but not the environments of `entrostat.agents`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
from verl.utils.profiler import simple_timer

from .completions import Settings, read
from .reward import judged, place
from .selfcheck import NAME
from .turns import Said, Table, play

logger = logging.getLogger(__name__)


@register(NAME)
class TokenLoop(AgentLoopBase):
    """One turn, or several with the task's environment, from token ids to token ids.

    It adds to `extra_fields`: `completion`, the text to score; `finished`, whether the policy or
    the environment ended the rollout. Multi-turn rollouts also have `turns`, the number of policy
    turns, and `observed`, the number of observation tokens.
    """

    def __init__(
        self, trainer_config: Any, server_manager: Any, tokenizer: Any, **others: Any
    ) -> None:
        # skip the base's __init__, which needs a chat template; a base model may have none
        self.server_manager, self.tokenizer = server_manager, tokenizer
        self.rollout = trainer_config.config.actor_rollout_ref.rollout
        self.path = trainer_config.config.data.entrostat

    async def run(
        self, sampling_params: dict[str, Any], priority: int = 0, **row: Any
    ) -> AgentLoopOutput:
        given = row["extra_info"]
        settings = read(self.path, str(given["set"]))
        prompt = [int(token) for token in given["prompt_ids"]]
        limit = min(int(given["max_tokens"]), self.rollout.response_length)
        source = _Source(self, settings, sampling_params, limit, int(priority))
        if settings.game is not None:
            return await self._played(source, given, prompt)
        said = await source.turn(prompt)
        more = {
            "completion": settings.text(said.tokens, self.tokenizer.batch_decode),
            "finished": said.finished,
        }
        return source.output(prompt, said.tokens, [1] * len(said.tokens), said.logps, more, turns=1)

    async def _played(
        self, source: _Source, given: Mapping[str, Any], prompt: list[int]
    ) -> AgentLoopOutput:
        table, split, index = _table(self.path, str(given["set"])), given["split"], given["index"]
        played = await play(table, str(split), int(index), prompt, source.limit, source.turn)
        if played.failure:
            logger.warning("%s: its environment %s", place(given), played.failure)
        one = played.rollout
        more = {
            "completion": played.text, "finished": one.done, "turns": one.turns,
            "observed": one.observed, "reward_extra_info": judged(
                played.reward, bool(played.failure), place(given), played.text
            ),
        }  # fmt: skip
        logps = one.logp if played.measured else None
        output = source.output(
            prompt, one.ids, [int(own) for own in one.sampled], logps, more, turns=one.turns
        )
        output.reward_score = played.reward
        return output


@cache
def _table(path: str, name: str) -> Table:
    return Table(path, name)


@dataclass
class _Source:
    """Samples the turns of one rollout on one engine replica, which keeps its KV cache."""

    loop: TokenLoop
    settings: Settings  # of training, or of the row's evaluation set
    params: dict[str, Any]  # veRL's sampling parameters
    limit: int  # maximum tokens of a turn
    priority: int  # of its requests
    metrics: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    request: str = field(default_factory=lambda: uuid4().hex)

    def __post_init__(self) -> None:
        if getattr(self.loop.rollout, "full_determinism", False):
            self.request = f"det-{self.priority}"

    async def turn(self, context: list[int]) -> Said:
        settings, decode = self.settings, self.loop.tokenizer.batch_decode
        own = settings.sampling(self.loop.rollout.name)
        with simple_timer("generate_sequences", self.metrics):
            sampled = await self.loop.server_manager.generate(
                request_id=self.request,
                prompt_ids=context,
                sampling_params={**self.params, **own, "max_tokens": self.limit},
                priority=self.priority,
            )
        if sampled.num_preempted is not None:
            before = self.metrics.get("num_preempted", 0)
            self.metrics["num_preempted"] = before + sampled.num_preempted
        # range of weight versions: the oldest of the first turn, the newest of the last
        first = self.extra.get("min_global_steps")
        self.extra |= sampled.extra_fields
        if first is not None:
            self.extra["min_global_steps"] = first
        tokens = list(sampled.token_ids[: self.limit])
        count, finished = settings.end(tokens, decode)
        logps = list(sampled.log_probs[:count]) if sampled.log_probs else None
        return Said(tokens[:count], logps, finished)

    def output(
        self, prompt: list[int], ids: list[int], mask: list[int], logps: list[float] | None,
        more: dict[str, Any], turns: int,
    ) -> AgentLoopOutput:  # fmt: skip
        """Build veRL's output of the rollout; veRL counts replies as turns too."""
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=ids,
            response_mask=mask,
            response_logprobs=logps,
            num_turns=2 * turns,
            metrics={"num_preempted": -1} | self.metrics,
            extra_fields=self.extra | {"turn_scores": [], "tool_rewards": []} | more,
        )
