"""The learning rate of every update: warm-up, then `optim.schedule`.

There are two counters. The warm-up counts updates made: it exists for AdamW's moments, which are
empty before the first update. The schedule counts updates planned: `iterations` x `epochs` x
`minibatches`, including updates skipped for lack of a signal. So the scheduled rate depends on the
iteration alone: runs with skipped batches, resumed and other runs agree, and all reach its end.

With w = `warmup`, N updates planned, the share s = `lr_min`, and x = (u - w) / (N - w), in [0, 1],
at the place u = 0, ..., N - 1:

    rate / lr = min(1, (made + 1) / w) (1 - (1 - s) fall(x))

    fall(x) = 0 (constant), x (linear), (1 - cos pi x) / 2 (cosine)

After the warm-up these are torch's LinearLR and CosineAnnealingLR over N - w steps and
transformers' schedulers of these names. The last update's place is N - 1: its rate is above s.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..config import TrainConfig

_FALL: dict[str, Callable[[float], float]] = {
    "constant": lambda x: 0.0,
    "linear": lambda x: x,
    "cosine": lambda x: (1 - math.cos(math.pi * x)) / 2,
}


def learning_rate_at(config: TrainConfig, place: int, made: int) -> float:
    """The learning rate of one update; `optim.lr` is set.

    Before it, `place` updates were planned (0 for the run's first) and `made` were made.
    """
    optim = config.optim
    assert optim.lr is not None
    rise = min(1.0, (made + 1) / max(1, optim.warmup))
    after = config.iterations * config.updates - optim.warmup
    x = min(1.0, max(0, place - optim.warmup) / max(1, after))
    return optim.lr * rise * (1 - (1 - optim.lr_min) * _FALL[optim.schedule](x))


def lengthened(config: TrainConfig, before: TrainConfig) -> str | None:
    """A message if a resumed run's schedule ends elsewhere than before; else None."""
    if config.optim.schedule == "constant" or config.iterations == before.iterations:
        return None
    return (
        f"learning rate: the {config.optim.schedule} now ends at iteration {config.iterations}, "
        f"not {before.iterations}: what is trained from here on is not what a run of "
        f"{config.iterations} iterations would have been"
    )
