"""A minibatch over gloo processes: every method decides what it decides in one process.

Each rank is a process that runs this file; it hands its numbers back as JSON. What a method may
ask, and the same on threads: whole_test.py.
"""

import json
import sys
from pathlib import Path

import pytest
import torch

from entrostat.core.distributed import Communicator
from entrostat.core.process_ranks import ProcessGroup, shared_generator, sum_over_ranks
from entrostat.core.process_ranks import ranks as ranks_of
from entrostat.testing import Subject, layouts
from processes import fork_ranks, run_ranks
from specs import SPECS

WORLDS = (8, 4, 2, 1)

# ---------------------------------------------------------------------------- a rank


def rank_main(rank: int, folder: Path) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=2
    )
    found = {
        "sum": sum_over_ranks({"x": torch.tensor(rank + 1.0), "y": torch.tensor(0.25)}),
        "ranks": [ranks_of().rank, ranks_of().world],
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def decisions_main(rank: int, world: int, folder: Path) -> None:
    """One of `world`: every method on the first 8, 4, 2 of them and alone; what differs."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=world
    )
    data, found = layouts.fields(), {}
    groups = {size: dist.new_group(range(size)) for size in WORLDS if size <= world}
    expected = {
        name: layouts.decided(Subject(spec), layouts.laid_out(data, torch.arange(layouts.B)))
        for name, spec in SPECS.items()
    }
    for size, group in groups.items():
        if rank < size:
            rows = layouts.cuts(size, seed=size)[rank]
            # gloo's single rank, too, goes through the process group
            batch = layouts.laid_out(data, rows, columns=rank % 3)
            batch = batch.replace(ranks=ProcessGroup(group))
            for name, spec in SPECS.items():
                mine = layouts.decided(Subject(spec), batch)
                found[f"{size} {name}"] = layouts.differences(mine, expected[name], rows)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


# ---------------------------------------------------------------------------- on one process


@pytest.mark.slow  # eight processes; in threads of this one: whole_test.py
def test_every_method_decides_the_same_on_1_2_4_and_8_ranks(tmp_path):
    run_ranks(1, tmp_path, lambda rank: [__file__, "8", str(tmp_path)], timeout=1600)
    for rank in range(8):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert len(found) == len(SPECS) * sum(rank < size for size in WORLDS)
        assert not {name: fields for name, fields in found.items() if fields}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    return run_ranks(2, folder, lambda rank: [__file__, "rank", str(rank), str(folder)])


def test_sums_over_ranks(ranks):
    for rank, found in enumerate(ranks):
        assert found["sum"] == {"x": 3.0, "y": 0.5}
        assert found["ranks"] == [rank, 2]


def test_without_a_process_group_it_is_the_identity():
    assert type(ranks_of()) is Communicator
    assert sum_over_ranks({"a": torch.tensor(2.5)}) == {"a": 2.5}
    assert sum_over_ranks({}) == {}


def test_the_generator_depends_on_all_of_its_arguments():
    draw = lambda *a: torch.rand(3, generator=shared_generator(*a)).tolist()  # noqa: E731
    assert draw(1, "select", 2) == draw(1, "select", 2)
    others = [draw(1, "select", 3), draw(2, "select", 2), draw(1, "dump", 2), draw(1)]
    assert all(other != draw(1, "select", 2) for other in others)


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank_main(int(sys.argv[2]), Path(sys.argv[3]))
    else:  # imported once, then so many processes
        world = int(sys.argv[1])
        fork_ranks(world, decisions_main, world, Path(sys.argv[2]))
