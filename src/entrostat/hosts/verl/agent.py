"""A rollout, in veRL's agent loop workers: the row's exact prompt, and the run's stops.

veRL's own `single_turn_agent` renders chat messages again and has no way to name stops.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
from verl.utils.profiler import simple_timer

from .completions import read
from .selfcheck import NAME


@register(NAME)
class TokenLoop(AgentLoopBase):
    """One turn, from token ids to token ids.

    It adds to `extra_fields`: `completion`, the text to score; `finished`, whether it ended itself.
    """

    def __init__(
        self, trainer_config: Any, server_manager: Any, tokenizer: Any, **others: Any
    ) -> None:
        # not the base's, which looks for a chat template that a plain policy does not have
        self.server_manager, self.tokenizer = server_manager, tokenizer
        self.rollout = trainer_config.config.actor_rollout_ref.rollout
        self.settings = read(trainer_config.config.data.entrostat)

    async def run(
        self, sampling_params: dict[str, Any], priority: int = 0, **row: Any
    ) -> AgentLoopOutput:
        """Sample one completion of a row of `data.py`'s."""
        given = row["extra_info"]
        prompt = [int(token) for token in given["prompt_ids"]]
        limit = min(int(given["max_tokens"]), self.rollout.response_length)
        stops = self.settings.sampling(self.rollout.name)
        fixed = getattr(self.rollout, "full_determinism", False)
        metrics: dict[str, Any] = {}
        with simple_timer("generate_sequences", metrics):
            sampled = await self.server_manager.generate(
                request_id=f"det-{int(priority)}" if fixed else uuid4().hex,
                prompt_ids=prompt,
                sampling_params={**sampling_params, **stops, "max_tokens": limit},
                priority=int(priority),
            )
        metrics["num_preempted"] = -1 if sampled.num_preempted is None else sampled.num_preempted
        tokens = list(sampled.token_ids[:limit])
        count, finished = self.settings.end(tokens, self.tokenizer.batch_decode)
        tokens = tokens[:count]
        more = {
            "completion": self.settings.text(tokens, self.tokenizer.batch_decode),
            "finished": finished,
            "turn_scores": [],
            "tool_rewards": [],
        }
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=tokens,
            response_mask=[1] * count,
            response_logprobs=list(sampled.log_probs[:count]) if sampled.log_probs else None,
            num_turns=2,
            metrics=metrics,
            extra_fields=sampled.extra_fields | more,
        )
