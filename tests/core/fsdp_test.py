"""Token statistics of an FSDP2-sharded head, on gloo, against the closed form on one process.

Each rank is a process of its own that runs this file; it hands its numbers back as JSON.
"""

import functools
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import entrostat as es
from processes import run_ranks

V, D, N = 13, 4, 5  # V is odd: two ranks hold unequal shards
WORLDS = (1, 2)
IMPLEMENTATIONS = ("plain", "tiled")
GAINS = (1.0, 0.7, -0.4, 0.3)  # of logp, entropy, sum_p2 and sum_p2_logp in the loss
FIELDS = ("logp", "entropy", "sum_p2", "sum_p2_logp")
IGNORE = -100


class Model(nn.Module):
    """Token ids [N] to hidden states [N, D]; the head is a module that forward does not call."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, D)
        self.body = nn.Linear(D, D)
        self.head = nn.Linear(D, V, bias=not tied)
        g = torch.Generator().manual_seed(3)
        for x in self.parameters():
            nn.init.normal_(x, generator=g)
        if tied:
            self.head.weight = self.embedding.weight
        self.double()

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.body(self.embedding(ids)))


def data(rank: int, empty: bool = False) -> tuple[Tensor, Tensor]:
    """ids and targets [N] of a rank, one target ignored, or all of the last rank's."""
    g = torch.Generator().manual_seed(10 + rank)
    ids, targets = torch.randint(0, V, (2, N), generator=g)
    targets[rank] = IGNORE
    if empty and rank:
        targets[:] = IGNORE
    return ids, targets


# ---------------------------------------------------------------------------- a rank


def rank_main(rank: int, world: int, folder: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=world
    )
    gathers, full_tensor = 0, DTensor.full_tensor

    @functools.wraps(full_tensor)
    def counted(*args, **kwargs):
        nonlocal gathers
        gathers += 1
        return full_tensor(*args, **kwargs)

    def run(
        shape: tuple[int, ...], implementation: str, *, tied: bool = False, apart: bool = True,
        stays: bool = False, empty: bool = False, frozen: bool = False, calls: int = 1,
    ) -> dict:  # fmt: skip
        nonlocal gathers
        names = ("replicate", "shard")[-len(shape) :]
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        model = Model(tied)
        model.head.requires_grad_(not frozen)
        if apart:
            fully_shard(model.head, mesh=mesh)
        fully_shard(model, mesh=mesh, reshard_after_forward=not stays)
        ids, targets = data(rank, empty)
        for _ in range(calls):
            hidden = model(ids)
            sharded = isinstance(model.head.weight, DTensor)
            gathers = 0
            DTensor.full_tensor = counted
            try:
                stats = es.token_stats(
                    hidden, model.head.weight, targets, model.head.bias, moments=True,
                    implementation=implementation, tile=(2, 4),
                )  # fmt: skip
                values = [getattr(stats, field) for field in FIELDS]
                sum(a * x.sum() for a, x in zip(GAINS, values, strict=True)).backward()
            finally:
                DTensor.full_tensor = full_tensor
        return {
            "sharded": sharded,
            "gathers": gathers,
            "values": [x.tolist() for x in values],
            "gradients": {
                name: None if x.grad is None else x.grad.full_tensor().tolist()
                for name, x in model.named_parameters()
            },
            "placements": [
                x.grad.placements == x.placements
                for x in model.parameters()
                if x.grad is not None and isinstance(x, DTensor)
            ],
        }

    flat = (world,)
    found = {}
    for implementation in IMPLEMENTATIONS:
        found[implementation] = {
            "head apart": run(flat, implementation),
            "twice": run(flat, implementation, calls=2),
            "tied": run(flat, implementation, tied=True, apart=False),
            "tied, not resharded": run(flat, implementation, tied=True, apart=False, stays=True),
            "not resharded": run(flat, implementation, apart=False, stays=True),
            "frozen": run(flat, implementation, frozen=True),
            "empty": run(flat, implementation, empty=True),
            "replicated": run((world, 1), implementation),
            "replicated once": run((1, world), implementation),
        }
    found["weights"] = weights_of(world, rank, init_device_mesh("cpu", flat))
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def weights_of(world: int, rank: int, mesh: Any) -> list[str]:
    """What is said of a model whose embedding is gathered, then of one with an infinite weight."""
    from torch.distributed.fsdp import fully_shard

    from entrostat.errors import RunStopped
    from entrostat.runs.checkpoint import check_weights

    model, said = Model(), []
    fully_shard(model.head, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    policy: Any = SimpleNamespace(trained=lambda: dict(model.named_parameters()))
    with torch.no_grad():
        model(data(rank)[0])
        for value in (1.0, float("inf")):
            if rank == world - 1:  # the last rank's part alone
                model.head.weight.to_local()[-1, 0] = value
            try:
                check_weights(policy.trained(), 7)
                said.append("")
            except RunStopped as error:
                said.append(str(error))
    return said


# ---------------------------------------------------------------------------- on one process


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: f"{world} ranks")
def ranks(request, tmp_path_factory) -> list[dict]:
    """What each rank found, by implementation and case."""
    world, folder = request.param, tmp_path_factory.mktemp("fsdp")
    return run_ranks(world, folder, lambda rank: [__file__, str(rank), str(world), str(folder)])


def statistics(model: Model, ids: Tensor, targets: Tensor) -> list[Tensor]:
    """The four statistics [N] by their definitions, in float64; 0 where ignored."""
    lp = model.head(model(ids)).log_softmax(-1)
    p, keep = lp.exp(), targets != IGNORE
    chosen = lp.gather(1, targets.clamp(min=0)[:, None])[:, 0]
    found = chosen, -(p * lp).sum(1), p.square().sum(1), (p.square() * lp).sum(1)
    return [torch.where(keep, x, 0) for x in found]


def expected(world: int, rank: int, *, tied: bool, empty: bool) -> tuple[list[Tensor], dict]:
    """A rank's statistics, and gradients of the mean over ranks of their losses."""
    model = Model(tied)
    values = [statistics(model, *data(r, empty)) for r in range(world)]
    loss = sum(a * x.sum() for rows in values for a, x in zip(GAINS, rows, strict=True)) / world
    loss.backward()
    return values[rank], {name: x.grad for name, x in model.named_parameters()}


def check(ranks: list[dict], implementation: str, case: str, times: int = 1, **options) -> None:
    for rank, found in enumerate(ranks):
        one = found[implementation][case]
        options = {"tied": False, "empty": False, **options}
        values, gradients = expected(len(ranks), rank, **options)
        for got, exact in zip(one["values"], values, strict=True):
            got = torch.tensor(got, dtype=torch.float64)
            assert_close(got, exact.detach(), rtol=1e-10, atol=1e-12)
        for name, exact in gradients.items():
            got = torch.tensor(one["gradients"][name], dtype=torch.float64)
            assert_close(got, times * exact, rtol=1e-10, atol=1e-12)
        assert all(one["placements"])


by_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


@by_implementation
@pytest.mark.parametrize("case", ["head apart", "replicated", "replicated once"])
def test_a_sharded_head(ranks, implementation, case):
    check(ranks, implementation, case)
    for found in ranks:
        one = found[implementation][case]
        assert one["sharded"]
        assert one["gathers"] == 2  # the weight and the bias, once each; none more in the backward


@by_implementation
def test_gradients_add_up_over_two_backward_passes(ranks, implementation):
    check(ranks, implementation, "twice", times=2)


@by_implementation
@pytest.mark.parametrize("stays", [False, True])
def test_a_sharded_head_that_is_the_embedding(ranks, implementation, stays):
    # FSDP adds the embedding's gradient to the head's; both are means over ranks
    case = "tied, not resharded" if stays else "tied"
    check(ranks, implementation, case, tied=True)
    for found in ranks:
        assert found[implementation][case]["gathers"] == (0 if stays else 1)


@by_implementation
def test_a_head_that_fsdp_left_gathered_is_not_gathered_again(ranks, implementation):
    check(ranks, implementation, "not resharded")
    for found in ranks:
        one = found[implementation]["not resharded"]
        assert not one["sharded"]
        assert one["gathers"] == 0


@by_implementation
def test_a_rank_without_a_target_takes_part(ranks, implementation):
    check(ranks, implementation, "empty", empty=True)


@by_implementation
def test_a_frozen_sharded_head(ranks, implementation):
    _, exact = expected(len(ranks), 0, tied=False, empty=False)
    for found in ranks:
        gradients = found[implementation]["frozen"]["gradients"]
        assert gradients["head.weight"] is None
        assert gradients["head.bias"] is None
        for name in ("embedding.weight", "body.weight", "body.bias"):
            got = torch.tensor(gradients[name], dtype=torch.float64)
            assert_close(got, exact[name], rtol=1e-10, atol=1e-12)


def test_a_part_that_is_not_finite_stops_all_ranks(ranks):
    for found in ranks:
        fine, stopped = found["weights"]
        assert fine == ""
        assert stopped.startswith("iteration 7: after its updates head.weight is not finite.")


if __name__ == "__main__":
    rank_main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
