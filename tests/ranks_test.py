"""One batch over all ranks: two gloo processes against the same rows on one.

Each rank is a process of its own that runs this file; it hands its numbers back as JSON.
"""

import json
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
import layouts
from contract_test import SPECS
from entrostat.hosts.ranks import gather_batch, number_groups, shared_generator, sum_over_ranks
from entrostat.hosts.ranks import ranks as ranks_of
from processes import run_ranks

WORLDS = (8, 4, 2, 1)
LENGTHS = ([3, 1, 2], [5, 4, 0, 2, 1])  # tokens of the rollouts of rank 0 and of rank 1
GROUPS = ([0, 0, 1], [1, 2, 2, 2, 0])  # groups 0 and 1 lie on both ranks
METHODS = ("clip_cov", "kl_cov", "steer", "repo_r", "forking_tokens", "rand_pos_clip", "quadrant")
PARAMETERS = {
    "clip_cov": {"ratio": 0.1, "low": 0.0},
    "kl_cov": {"frac": 0.2},
    "rand_pos_clip": {"ratio": 0.2},
    "quadrant": {"share": 0.5, "which": "II"},
}


def rows(rank: int, width: int | None = None) -> es.TokenBatch:
    """A rank's rollouts; the values of a token depend on its global row and place alone."""
    lengths = torch.tensor(LENGTHS[rank])
    first = sum(map(len, LENGTHS[:rank]))
    T = width or int(lengths.max())
    place = torch.arange(T)
    row = torch.arange(len(lengths))[:, None] + first
    mask = place < lengths[:, None]
    wave = lambda a, b: torch.sin(a * row + b * place + a)  # noqa: E731
    return es.TokenBatch(
        -1.5 + wave(1.3, 0.7), -1.5 + wave(1.3, 0.7) - 0.1 * wave(0.3, 2.1), mask,
        rewards=(row[:, 0] % 3).float(), group=torch.tensor(GROUPS[rank]),
        entropy=1 + 0.5 * wave(2.2, 1.9), old_entropy=1 + 0.5 * wave(2.1, 1.8),
    )  # fmt: skip


def together() -> es.TokenBatch:
    """All rows on one process, stacked by hand."""
    parts = [rows(rank, width=5) for rank in range(2)]
    names = ("logp", "old_logp", "mask", "rewards", "group", "entropy", "old_entropy")
    return es.TokenBatch(**{n: torch.cat([getattr(p, n) for p in parts]) for n in names})


def decided(objective: es.Objective, batch: es.TokenBatch) -> tuple[es.TokenBatch, es.Terms]:
    batch = objective.prepare(batch)
    return batch, objective.plan(batch, shared_generator(5, "select", 3))


# ---------------------------------------------------------------------------- a rank


def rank_main(rank: int, folder: Path) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=2
    )
    mine = rows(rank)
    mine = mine.replace(logp=mine.logp.requires_grad_())
    whole, place = gather_batch(mine)
    found = {
        "whole": {
            name: getattr(whole, name).tolist()
            for name in ("logp", "old_logp", "mask", "rewards", "group", "entropy", "old_entropy")
        },
        "none": [whole.ref_logp is None, whole.logp.requires_grad],
        "own": place.own(whole).old_logp.tolist(),
        "mine": mine.old_logp.tolist(),
        "local": gather_batch(mine, groups="local")[0].group.tolist(),
        "numbers": number_groups(["a", "b"] if rank == 0 else ["b", "c", "a"]).tolist(),
        "sum": sum_over_ranks({"x": torch.tensor(rank + 1.0), "y": torch.tensor(0.25)}),
        "terms": {},
    }
    for name in METHODS:
        batch, terms = decided(es.make_objective(name, **PARAMETERS.get(name, {})), whole)
        parts = {"advantage": terms.advantage, "weight": terms.weight, "scale": terms.scale}
        if terms.frozen is not None:
            parts["frozen"] = terms.frozen.float()
        if terms.abs_kl is not None:
            parts["abs_kl"] = terms.abs_kl
        own = place.own(terms)
        assert own.advantage.shape == mine.mask.shape
        assert_close(place.own(batch).old_logp, mine.old_logp)
        found["terms"][name] = {key: value.tolist() for key, value in parts.items()}
    # bf16 on all ranks, then a field that one rank lacks
    half = gather_batch(mine.replace(entropy=mine.entropy.bfloat16()))[0].entropy
    found["half"] = [str(half.dtype), half.tolist()]
    try:
        gather_batch(mine if rank else mine.replace(entropy=None))
    except ValueError as error:
        found["error"] = str(error)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def decisions_main(rank: int, folder: Path) -> None:
    """One of eight: every method on the first 8, 4, 2 of them and alone; what differs in a bit."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=8
    )
    data, found = layouts.fields(), {}
    groups = {world: dist.new_group(range(world)) for world in WORLDS}
    expected = {
        name: layouts.decided(spec, layouts.laid_out(data, torch.arange(layouts.B)))
        for name, spec in SPECS.items()
    }
    for world, group in groups.items():
        if rank < world:
            rows = layouts.cuts(world, seed=world)[rank]
            batch = layouts.laid_out(data, rows, columns=rank % 3).replace(ranks=ranks_of(group))
            for name, spec in SPECS.items():
                mine = layouts.decided(spec, batch)
                found[f"{world} {name}"] = layouts.differences(mine, expected[name], rows)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


# ---------------------------------------------------------------------------- on one process


@pytest.mark.slow  # eight processes; in threads of this one: whole_test.py
def test_every_method_decides_the_same_on_1_2_4_and_8_ranks(tmp_path):
    run_ranks(1, tmp_path, lambda rank: [__file__, "decisions", str(tmp_path)], timeout=400)
    for rank in range(8):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        worlds = [world for world in WORLDS if rank < world]
        assert len(found) == len(worlds) * len(SPECS)
        assert not {name: fields for name, fields in found.items() if fields}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    return run_ranks(2, folder, lambda rank: [__file__, str(rank), str(folder)])


def test_the_whole_is_the_rows_of_all_ranks_in_order(ranks):
    expected = together()
    for found in ranks:
        for name, value in found["whole"].items():
            exact = getattr(expected, name)
            assert_close(torch.tensor(value, dtype=exact.dtype), exact, rtol=0, atol=0)
        assert found["none"] == [True, False]  # a field that none has; no gradient


def test_each_rank_finds_its_own_rows_and_width(ranks):
    for found in ranks:
        assert found["own"] == found["mine"]


@pytest.mark.parametrize("name", METHODS)
def test_terms_are_those_of_one_process(ranks, name):
    objective = es.make_objective(name, **PARAMETERS.get(name, {}))
    batch, terms = decided(objective, together())
    assert batch.advantages.abs().sum() > 0
    for found in ranks:
        for key, value in found["terms"][name].items():
            exact = getattr(terms, key)
            assert_close(torch.tensor(value), exact.float(), rtol=0, atol=0)
    key = {"kl_cov": "abs_kl", "clip_cov": "frozen", "rand_pos_clip": "frozen"}.get(name, "weight")
    values = getattr(terms, key)
    if name != "repo_r":  # something was decided, on some tokens
        assert values[batch.mask].float().std() > 0


def test_group_numbers(ranks):
    for found in ranks:
        assert found["whole"]["group"] == [0, 0, 1, 1, 2, 2, 2, 0]  # equal: one prompt
        assert found["local"] == [0, 0, 1, 3, 4, 4, 4, 2]  # each rank's own, made to differ
    assert ranks[0]["numbers"] == [0, 1]
    assert ranks[1]["numbers"] == [1, 2, 0]


def test_sums_and_dtypes(ranks):
    exact = torch.where(together().mask, together().entropy.bfloat16().float(), 0)
    for found in ranks:
        assert found["sum"] == {"x": 3.0, "y": 0.5}
        assert found["half"][0] == "torch.float32"
        assert_close(torch.tensor(found["half"][1]), exact, rtol=0, atol=0)


def test_ranks_with_other_fields_are_refused_on_each(ranks):
    for found in ranks:
        assert "ranks 0 and 1 differ in entropy" in found["error"]


# ---------------------------------------------------------------------------- without a group


def test_without_a_process_group_it_is_the_identity():
    mine = rows(1)
    whole, place = gather_batch(mine.replace(logp=mine.logp.requires_grad_()))
    assert place.rows == slice(0, 5)
    assert not whole.logp.requires_grad
    for name in ("old_logp", "mask", "group", "rewards"):
        assert getattr(whole, name) is getattr(mine, name) or torch.equal(
            getattr(whole, name), getattr(mine, name)
        )
    assert number_groups(["x", 3, "x"]).tolist() == [0, 1, 0]
    assert sum_over_ranks({"a": torch.tensor(2.5)}) == {"a": 2.5}
    assert sum_over_ranks({}) == {}


def test_the_generator_depends_on_all_of_its_arguments():
    draw = lambda *a: torch.rand(3, generator=shared_generator(*a)).tolist()  # noqa: E731
    assert draw(1, "select", 2) == draw(1, "select", 2)
    others = [draw(1, "select", 3), draw(2, "select", 2), draw(1, "dump", 2), draw(1)]
    assert all(other != draw(1, "select", 2) for other in others)


def test_groups_is_a_word():
    with pytest.raises(ValueError, match="groups must be 'global' or 'local', got 'mine'"):
        gather_batch(rows(0), groups="mine")  # type: ignore[arg-type]


if __name__ == "__main__":
    if sys.argv[1] == "decisions":  # imported once, then eight processes
        fork = get_context("fork")
        eight = [
            fork.Process(target=decisions_main, args=(rank, Path(sys.argv[2]))) for rank in range(8)
        ]
        for process in eight:
            process.start()
        for process in eight:
            process.join()
        sys.exit(any(process.exitcode for process in eight))
    rank_main(int(sys.argv[1]), Path(sys.argv[2]))
