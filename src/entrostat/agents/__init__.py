"""Agents' worlds: tasks whose rollouts take turns with an environment.

A task is multi-turn if it has `environment(example) -> Environment` and `turns(split) -> int`. The
policy says a turn, the environment replies with an observation that the policy reads and that is
not trained on, and so on until the environment is done or turns or context run out; then the
environment gives the reward.

- `tool_sum`: one tool call in the tiny policy's alphabet,
- `tools`: generated tasks on files, a database and a calendar, in a sandboxed Python notebook,
- `games`: single-player text games of textarena (extra `games`),
- `appworld`: AppWorld's apps and tasks (its package and data are the user's to install).

Hosts hold the environments of their rollouts in `Worlds`: one that raises or hangs costs its
rollout and no more. `play` plays a rollout of a scripted policy.
"""

from .worlds import Environment, Episode, Reply, Worlds, is_multi_turn, play, script

__all__ = ["Environment", "Episode", "Reply", "Worlds", "is_multi_turn", "play", "script"]
