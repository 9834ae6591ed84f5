"""A rule: decisions do not depend on the distribution over ranks (threads, here)."""

from __future__ import annotations

import math
from itertools import pairwise

import torch

from ..core.batch import Terms, TokenBatch
from ..core.distributed import Communicator
from ..core.thread_ranks import Threads as Threads
from .data import Data, moved, statistics
from .findings import Broken, rule
from .subject import Subject

B, T = 24, 61
IDLE = 3  # the group without a part in the policy term
HALF = slice(4, 4 + B // 2)  # rows of three whole groups; the idle one and an empty row among them


def fields(dtype: torch.dtype = torch.float32) -> Data:
    """24 rollouts of 6 prompts, every field; ragged, with holes and one without a token.

    Half of the rows are multiples of 1/4, so that many tokens tie. The sums of the others round
    differently in every order.
    """
    g = torch.Generator().manual_seed(3)

    def rand() -> torch.Tensor:
        x = torch.rand(B, T, generator=g, dtype=torch.float64)
        return torch.where(torch.arange(B)[:, None] % 2 == 0, (4 * x).round() / 4, x)

    old = -0.05 - 3 * rand().square()
    mask = torch.arange(T) < torch.randint(2, T + 1, (B, 1), generator=g)
    mask &= torch.rand(B, T, generator=g) > 0.1
    mask[7] = False
    data = statistics(old, rand)
    data["rewards"] = (torch.rand(B, generator=g, dtype=torch.float64) * 4).round() / 3
    data = {key: value.to(dtype) for key, value in data.items()}
    identity = torch.randperm(1000, generator=g)[:B].sort().values
    data["tempered"] = torch.zeros(B, dtype=torch.bool)
    return data | {"mask": mask, "group": torch.arange(B) // 4 * 7 % 6, "rollout": identity}


def laid_out(data: Data, rows: torch.Tensor, columns: int = 0, turned: bool = False) -> TokenBatch:
    """The batch of the given rows in this order, with `columns` additional columns of padding.

    `turned`: its [B, T] fields are stored column by column, like transposed [T, B] data.
    """
    own = {key: value[rows] for key, value in data.items()}
    used = own["mask"].any(0).nonzero()
    width = columns + (int(used.max()) + 1 if len(used) else 0)

    def fit(key: str, value: torch.Tensor) -> torch.Tensor:
        if value.ndim == 1:
            return value
        junk = False if key == "mask" else math.nan
        out = torch.full((len(value), width), junk, dtype=value.dtype)
        n = min(width, T)
        out[:, :n] = value[:, :n]
        return out.t().contiguous().t() if turned else out

    laid: Data = {key: fit(key, value) for key, value in own.items()}
    return TokenBatch(**laid)


def cuts(world: int, seed: int = 0, rows: int = B) -> list[torch.Tensor]:
    """Rows of each of `world` ranks: random order and cuts; the second rank has none.

    With one rank it has all rows; with as many ranks as rows each has one.
    """
    g = torch.Generator().manual_seed(seed)
    order = torch.randperm(rows, generator=g)
    if world in (1, rows):
        return list(order.tensor_split(world))
    ends = torch.randint(1, rows, (world - 2,), generator=g).sort().values.tolist()
    starts = [0, *ends, rows]
    parts = [order[a:b] for a, b in pairwise(starts)]
    return [parts[0], order[:0], *parts[1:]][:world]


def decided(subject: Subject, batch: TokenBatch) -> tuple[TokenBatch, Terms]:
    """Prepare and plan the batch with an objective whose controllers have moved; one idle group."""
    objective = moved(subject.fresh(max_length=16))
    idle = batch.need("group") == IDLE
    batch = objective.prepare(objective.outcome_advantages(batch).replace(idle=idle))
    return batch, objective.plan(batch, torch.Generator().manual_seed(5))


def differences(
    found: tuple[TokenBatch, Terms], whole: tuple[TokenBatch, Terms], rows: torch.Tensor
) -> list[str]:
    """The names of fields that differ in a bit at a token from these rows of the whole batch's."""
    mask, names = found[0].mask, []
    for mine, theirs in zip(found, whole, strict=True):
        for name, value in vars(mine).items():
            expected = vars(theirs)[name]
            if name in ("logp", "whole", "rollout", "ranks"):
                continue
            if not isinstance(value, torch.Tensor) or value.ndim == 0:
                alike = value == expected
            elif expected is None:
                alike = False
            elif value.ndim == 1:
                alike = torch.equal(value, expected[rows])
            else:
                fitted = torch.zeros_like(value)
                n = min(value.shape[1], expected.shape[1])
                fitted[:, :n] = expected[rows][:, :n]
                alike = bool(((value == fitted) | ~mask).all())
            if not alike:
                names.append(name)
    return names


@rule(
    "What is decided is the same to the bit on any number of ranks, with any padding.",
    "Ask batch.whole for every sum, mean, maximum, quantile and choice, on every rank alike; take "
    "none over rows or columns of your own (of a row: entrostat.core.distributed.row_sums).",
)
def layout(subject: Subject) -> None:
    """Check column-major fields; then 1 and 4 ranks (threads), one of the four without rows.

    Then half of the batch with a rank for each of its 12 rows: a row's end is its tensor's end.
    """
    data, everyone = fields(), torch.arange(B)
    expected = decided(subject, laid_out(data, everyone))
    turned = decided(subject, laid_out(data, everyone, turned=True))
    if off := differences(turned, expected, everyone):
        raise Broken(f"of tensors that are stored column by column {', '.join(off)} differ")
    on_ranks(subject, data, expected, 1)
    on_ranks(subject, data, expected, 4)
    half = {key: value[HALF] for key, value in data.items()}
    expected = decided(subject, laid_out(half, torch.arange(B // 2)))
    on_ranks(subject, half, expected, B // 2)


def on_ranks(subject: Subject, data: Data, expected: tuple[TokenBatch, Terms], world: int) -> None:
    rows = cuts(world, seed=world, rows=len(data["mask"]))

    def work(ranks: Communicator) -> list[str]:
        batch = laid_out(data, rows[ranks.rank], columns=ranks.rank % 2)
        found = decided(subject, batch.replace(ranks=ranks))
        return differences(found, expected, rows[ranks.rank])

    off = sorted({name for names in Threads(world).run(work) for name in names})
    if off:
        raise Broken(
            f"on {world} rank{'s' * (world > 1)} in another order and with other padding "
            f"{', '.join(off)} differ from those of one process"
        )
