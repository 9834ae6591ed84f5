"""A rule: a decision does not depend on how the minibatch lies on ranks."""

from __future__ import annotations

import torch

from ..core.distributed import Communicator
from .findings import Broken, rule
from .layouts import B, Threads, cuts, decided, differences, fields, laid_out
from .subject import Subject


@rule(
    "What is decided is the same to the bit on any number of ranks, with any padding.",
    "Ask batch.whole for every sum, mean, maximum, quantile and choice, on every rank alike; take "
    "none over rows or columns of your own (of a row: entrostat.core.distributed.row_sums).",
)
def layout(subject: Subject) -> None:
    """Column by column; then 1, 4 and 24 ranks that are threads; one of four has no row."""
    data, everyone = fields(), torch.arange(B)
    expected = decided(subject, laid_out(data, everyone))
    turned = decided(subject, laid_out(data, everyone, turned=True))
    if off := differences(turned, expected, everyone):
        raise Broken(f"of tensors that are stored column by column {', '.join(off)} differ")
    for world in (1, 4, B):  # the last: a row's end is its tensor's end
        rows = cuts(world, seed=world)

        def work(ranks: Communicator, rows: list[torch.Tensor] = rows) -> list[str]:
            batch = laid_out(data, rows[ranks.rank], columns=ranks.rank % 2)
            found = decided(subject, batch.replace(ranks=ranks))
            return differences(found, expected, rows[ranks.rank])

        off = sorted({name for names in Threads(world).run(work) for name in names})
        if off:
            raise Broken(
                f"on {world} rank{'s' * (world > 1)} in another order and with other padding "
                f"{', '.join(off)} differ from those of one process"
            )
