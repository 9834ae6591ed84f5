"""Agents' worlds: tasks whose rollouts take turns with an environment.

A task is multi-turn if it has `environment(example) -> Environment` and `turns(split) -> int`. The
policy says a turn, the environment replies with an observation that the policy reads and that is
not trained on, and so on until the environment is done or turns or context run out; then the
environment gives the reward.

Hosts hold the environments of their rollouts in `Worlds`: one that raises or hangs costs its
rollout and no more. `play` plays a rollout of a scripted policy.
"""

from .worlds import Environment, Episode, Reply, Worlds, is_multi_turn, play, script

__all__ = ["Environment", "Episode", "Reply", "Worlds", "is_multi_turn", "play", "script"]
