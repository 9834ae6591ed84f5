"""`games`: text games for one player, from the package textarena.

These are its games that need no network, no word lists and no judge. Rules, wording and scores are
the package's (MIT licence).
"""

from __future__ import annotations

import random
import threading
from typing import Any

from .._names import unknown
from ..errors import extra
from ..tasks.base import Example
from .worlds import Reply

# textarena's name, and the most moves that the task allows, invalid ones included
GAMES = {
    "guess_the_number": ("GuessTheNumber-v0", 20),
    "mastermind": ("Mastermind-v0", 40),
    "mastermind_hard": ("Mastermind-v0-hard", 40),
    "tower_of_hanoi": ("TowerOfHanoi-v0", 28),
    "frozen_lake": ("FrozenLake-v0", 40),
    "minesweeper": ("Minesweeper-v0-small", 50),
}
_ONE_AT_A_TIME = threading.Lock()  # the games use Python's global random generator


class Games:
    """Prompt: the rules and the first position; then moves in brackets, such as `[2 1 4 5]`.

    In training the reward is the game's own, from 0 to 1, with partial credit for the progress of
    the last move; in evaluation it is 1 for a win. A game that is not over when turns run out is
    lost.

    Args:
        seed: seed of the training games; `test` is the same in all runs.
        game: "guess_the_number", "mastermind", "mastermind_hard", "tower_of_hanoi" (always the
            same), "frozen_lake" or "minesweeper".
    """

    name = "games"
    splits: tuple[str, ...] = ("train", "test")

    def __init__(self, seed: int = 0, game: str = "mastermind") -> None:
        if game not in GAMES:
            raise ValueError(f"task 'games': {unknown('game', game, GAMES)}")
        self._seed, self._game = seed, game
        _textarena()

    def max_new_tokens(self, split: str) -> int:
        return 128

    def turns(self, split: str) -> int:
        """Most moves that the task allows, invalid ones included."""
        return GAMES[self._game][1]

    def size(self, split: str) -> int | None:
        return None

    def example(self, index: int, split: str) -> Example:
        seed = self._seed if split == "train" else 0
        drawn = random.Random(f"games/{self._game}/{seed}/{split}/{index}").randrange(2**31)
        return Example(
            f"{_World(self._game, drawn).begin()}\n",
            data={"label": f"{self._game} {index}", "game": self._game, "seed": drawn},
        )

    def environment(self, example: Example) -> _World:
        world = _World(example.data["game"], example.data["seed"])
        world.begin()
        return world


class _World:
    def __init__(self, game: str, seed: int) -> None:
        self._env: Any = _textarena().make(f"{GAMES[game][0]}-raw")
        self._seed = seed
        self._random = random.Random(seed).getstate()

    def begin(self) -> str:
        self._alone(lambda: self._env.reset(num_players=1, seed=self._seed))
        return self._heard()

    def reply(self, text: str) -> Reply:
        done, _ = self._alone(lambda: self._env.step(text))
        return Reply(f"{self._heard()}\n", done)

    def reward(self, training: bool) -> float:
        reward = float((self._env.state.rewards or {}).get(0, 0.0))
        return min(max(reward, 0.0), 1.0) if training else float(reward >= 1)

    def close(self) -> None:
        """Nothing to release."""

    def _alone(self, move: Any) -> Any:
        """Make a move with this world's state of the global random generator, then restore it."""
        with _ONE_AT_A_TIME:
            before = random.getstate()
            random.setstate(self._random)
            try:
                return move()
            finally:
                self._random = random.getstate()
                random.setstate(before)

    def _heard(self) -> str:
        """The game's messages since the last call, without the player's."""
        _, said = self._env.get_observation()
        return "\n".join(text for _, text, kind in said if kind.name != "PLAYER_ACTION").strip()


def _textarena() -> Any:
    with extra("games", "task 'games'"):
        import textarena
    return textarena
