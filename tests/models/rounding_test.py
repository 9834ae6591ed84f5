"""Log-probs rounded on their way out: a real FSDP2 model on gloo, one and two processes.

Each rank is a process of its own that runs this file; it hands its numbers back as JSON.
"""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from entrostat.models.rounding import Rounding, logp_rounding, use_float32_outputs, watch_outputs
from long_cases import keep
from processes import run_ranks

V, D, N = 31, 8, 64


class Model(nn.Module):
    """Token ids [N] to the log-probs [N] of the next ones, in float32 as a fused head gives."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, D)
        self.body = nn.Linear(D, D)
        self.head = nn.Linear(D, V)
        self.between: torch.dtype | None = None
        g = torch.Generator().manual_seed(3)
        for x in self.parameters():
            nn.init.normal_(x, generator=g)

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.body(self.embedding(ids)))
        self.between = hidden.dtype
        logp = self.head(hidden).float().log_softmax(-1)
        return {"log_probs": logp[:-1].gather(1, ids[1:, None])[:, 0]}


def rank_main(rank: int, world: int, folder: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=world
    )
    ids = torch.randint(0, V, (N,), generator=torch.Generator().manual_seed(rank))

    def run(output: torch.dtype | None, *, fix: bool = False) -> dict:
        half = output or torch.bfloat16
        policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half, output_dtype=output)
        model = Model()
        fully_shard(model.body, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        changed = use_float32_outputs(model) if fix else None
        again = use_float32_outputs(model) if fix else None
        with watch_outputs(model) as watched:
            out = model(ids)["log_probs"]
        logp = out.detach()
        seen = model._forward_hooks
        found = logp_rounding(logp.float(), watched.logp)
        out.sum().backward()
        assert model.head.weight.grad is not None
        exact = None if watched.logp is None else watched.logp.double()
        return {
            "dtype": str(found.dtype), "error": found.error, "warning": found.warning(),
            "by hand": float((logp.double() - exact).abs().mean()), "out": str(logp.dtype),
            "blind": logp_rounding(logp.float()).error, "changed": [changed, again],
            "between": str(model.between), "hooks": len(seen),
        }  # fmt: skip

    found = {
        "bf16": run(torch.bfloat16),
        "fp16": run(torch.float16),
        "fixed": run(torch.bfloat16, fix=True),
        "none": run(None, fix=True),
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


@pytest.fixture(scope="module", params=keep((1, 2), 1), ids=lambda world: f"{world} ranks")
def ranks(request, tmp_path_factory) -> list[dict]:
    world, folder = request.param, tmp_path_factory.mktemp("rounding")
    return run_ranks(world, folder, lambda rank: [__file__, str(rank), str(world), str(folder)])


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_fsdp2s_cast_is_found_and_measured(ranks, name):
    dtype = {"bf16": "bfloat16", "fp16": "float16"}[name]
    for found in ranks:
        one = found[name]
        assert one["out"] == one["dtype"] == f"torch.{dtype}"
        assert one["error"] == pytest.approx(one["by hand"], rel=1e-9)
        assert one["error"] > 0
        # where the values inside are not known: the average of a uniform error, to a third
        assert one["blind"] == pytest.approx(one["error"], rel=1 / 3)
        assert f"rounded to {dtype}" in one["warning"]
        assert "MixedPrecisionPolicy(output_dtype=torch.float32)" in one["warning"]
        assert one["hooks"] == 1  # FSDP2's own; ours is gone


def test_the_fix_takes_the_rounding_away_and_leaves_the_layers_alone(ranks):
    for found in ranks:
        one = found["fixed"]
        assert one["changed"] == [True, False]
        assert (one["dtype"], one["error"], one["by hand"]) == ("None", 0, 0)
        assert one["warning"] is None
        assert one["out"] == "torch.float32"
        assert one["between"] == "torch.bfloat16"


def test_a_policy_without_a_cast_has_nothing_to_find_or_fix(ranks):
    for found in ranks:
        one = found["none"]
        assert one["changed"] == [False, False]
        assert (one["dtype"], one["error"], one["out"]) == ("None", 0, "torch.float32")


# ---------------------------------------------------------------------------- values alone


def test_the_error_of_a_rounding_by_hand():
    """bfloat16 has 7 bits after the first: near 1 the last is worth 2^-7, near 4 it is 2^-5."""
    inside = torch.tensor([-(1 + k / 128 + 1 / 512) for k in range(16)])
    out = inside.bfloat16().float()  # each is a quarter of 2^-7 away
    assert logp_rounding(out, inside) == Rounding(torch.bfloat16, 1 / 512)
    assert logp_rounding(out) == Rounding(torch.bfloat16, 2**-7 / 4)
    assert logp_rounding(4 * out) == Rounding(torch.bfloat16, 2**-5 / 4)
    # a 16-bit tensor says so itself
    assert logp_rounding(inside.half(), inside).dtype is torch.float16


def test_what_is_exact_inside_is_rounded_by_somebody_else():
    """Values that are 16-bit already inside the model: the cast on the way out costs nothing."""
    out = torch.tensor([-(1 + k / 128) for k in range(16)])
    assert logp_rounding(out, out.clone()) == Rounding(torch.bfloat16, 2**-7 / 4)


def test_float32_and_too_few_values_say_nothing():
    exact = torch.log(torch.linspace(0.1, 0.9, 50))
    assert logp_rounding(exact) == Rounding(None, 0.0)
    assert logp_rounding(exact.double()) == Rounding(None, 0.0)
    assert logp_rounding(torch.tensor([-1.0, -0.5, 0.0, -1.0])) == Rounding(None, 0.0)
    assert logp_rounding(torch.zeros(100)) == Rounding(None, 0.0)
    padded = torch.cat([exact.bfloat16().float(), torch.zeros(9), torch.tensor([-math.inf])])
    assert logp_rounding(padded).dtype is torch.bfloat16


def test_an_accelerators_plugin_is_changed():
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.bfloat16)
    plugin = SimpleNamespace(mixed_precision_policy=policy)
    accelerator = SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin))
    trainer = SimpleNamespace(accelerator=accelerator, model_wrapped=nn.Linear(1, 1))
    assert use_float32_outputs(trainer)
    assert plugin.mixed_precision_policy.output_dtype is torch.float32
    assert plugin.mixed_precision_policy.param_dtype is torch.bfloat16
    assert not use_float32_outputs(accelerator)
    assert not use_float32_outputs(SimpleNamespace(state=SimpleNamespace(fsdp_plugin=None)))


def test_accelerates_own_plugin_rounds_until_it_is_changed():
    """Canary: accelerate's FSDP2 plugin still sets output_dtype, and our fix still reaches it."""
    from accelerate.utils import FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    plugin.set_mixed_precision("bf16")
    assert plugin.mixed_precision_policy.output_dtype is torch.bfloat16, (
        "accelerate no longer rounds the outputs of FSDP2: the warning can go"
    )
    assert use_float32_outputs(SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)))
    assert plugin.mixed_precision_policy.output_dtype is torch.float32
    assert plugin.mixed_precision_policy.param_dtype is torch.bfloat16


def test_a_model_without_log_probs_shows_none():
    with watch_outputs(model := nn.Linear(2, 2)) as watched:
        model(torch.zeros(1, 2))
    assert watched.logp is None


if __name__ == "__main__":
    rank_main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
