"""Agent tasks: rollouts that take turns with an environment.

A task is multi-turn if it has `environment(example) -> Environment` and `turns(split) -> int`. The
policy generates a turn, and the environment replies with an observation, whose tokens are not
trained on. This repeats until the environment is done, or turns or context run out. Then the
environment gives the reward.

Trainers hold the environments of their rollouts in `Worlds`: if one raises or hangs, only its
rollout fails. `play` runs a rollout of a scripted policy.
"""

from .worlds import Environment, Episode, Reply, Worlds, is_multi_turn, play, script

__all__ = ["Environment", "Episode", "Reply", "Worlds", "is_multi_turn", "play", "script"]
