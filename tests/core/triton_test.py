"""The Triton kernels under Triton's interpreter, against float64; and compiled, without a GPU."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from long_cases import keep

pytest.importorskip("triton", reason="the Triton kernels need triton")

FIELDS = ("logp", "entropy", "sum_p2", "sum_p2_logp")


def definition(z: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    """Statistics of logits [N, V] as they are defined, float64, differentiable."""
    lp = z.double().log_softmax(-1)
    p = lp.exp()
    return {
        "logp": lp.gather(1, targets[:, None])[:, 0],
        "entropy": -(p * lp).sum(1),
        "sum_p2": p.square().sum(1),
        "sum_p2_logp": (p.square() * lp).sum(1),
    }


def by_triton(z: torch.Tensor, targets: torch.Tensor, tile: tuple[int, int], **more):
    """The head is the identity, so hidden states are the logits."""
    eye = torch.eye(z.shape[1])
    return es.token_stats(z, eye, targets, implementation="triton", tile=tile, moments=True, **more)


@pytest.mark.parametrize("block", [2048, 4])  # a tile's row at once, or in several blocks
@pytest.mark.parametrize("tile", keep([(4, 8), (3, 5), (64, 64), (1, 16)], (3, 5)))
def test_values_and_gradients(tile, block, monkeypatch):
    monkeypatch.setattr("entrostat.core.stats.fold_triton.BLOCK", block)
    g = torch.Generator().manual_seed(0)
    z = (3 * torch.randn(7, 29, generator=g)).requires_grad_()
    targets = torch.randint(0, 29, (7,), generator=g)
    targets[0] = z[0].argmax()
    exact = definition(z, targets)
    found = by_triton(z, targets, tile)
    for field in FIELDS:
        assert_close(getattr(found, field).double(), exact[field], rtol=2e-6, atol=1e-7)
        (mine,) = torch.autograd.grad(getattr(found, field).sum(), z, retain_graph=True)
        (true,) = torch.autograd.grad(exact[field].sum(), z, retain_graph=True)
        assert_close(mine, true, rtol=2e-5, atol=2e-7)


@pytest.mark.parametrize("rest", [1e-1, 1e-4, 1e-8, 1e-12])
@pytest.mark.parametrize("where", [0, 13, 31])
def test_nearly_certain_rows_keep_their_relative_accuracy(rest, where):
    # 31 other tokens of one logit: with r their share and q = r / 31 that of each,
    # log p = log1p(-r) and H = -(1 - r) log1p(-r) - r log q
    z = torch.full((1, 32), math.log(rest / 31) - math.log1p(-rest))
    odds = 31 * math.exp(z[0, 0].item())  # of the float32 number that stands there
    z[0, where] = 0.0
    z.requires_grad_()
    r = odds / (1 + odds)
    entropy = -(1 - r) * math.log1p(-r) - r * math.log(r / 31)
    found = by_triton(z, torch.tensor([where]), (1, 8))
    assert found.entropy.item() == pytest.approx(entropy, rel=1e-6)
    assert found.logp.item() == pytest.approx(math.log1p(-r), rel=1e-6)
    (gradient,) = torch.autograd.grad(found.logp.sum(), z)
    assert gradient[0, where].item() == pytest.approx(r, rel=1e-5)  # 1 - p, which would cancel


@pytest.mark.parametrize("tile", [(2, 4), (2, 24)])
def test_a_maximum_that_moves_at_every_block_and_one_in_the_last(tile, monkeypatch):
    monkeypatch.setattr("entrostat.core.stats.fold_triton.BLOCK", 4)
    rising = torch.arange(24.0).view(1, 24).repeat(2, 1)
    rising[1] = -1e4
    rising[1, 23] = -1e4 + 3
    targets = torch.tensor([3, 23])
    found, exact = by_triton(rising, targets, tile), definition(rising, targets)
    for field in FIELDS:
        assert_close(getattr(found, field).double(), exact[field], rtol=2e-6, atol=1e-7)


def test_targets_that_are_a_column_of_a_table():
    """A kernel counts its targets' places itself, so that a stride would lead to others' ids."""
    z = 3 * torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    column = torch.tensor([[1, 9], [2, 9], [3, 9], [4, 9], [5, 9], [6, 9]])[:, 0]
    assert not column.is_contiguous()
    found, right = by_triton(z, column, (4, 8)), definition(z, column)
    for field in FIELDS:
        assert_close(getattr(found, field).double(), right[field], rtol=1e-5, atol=1e-6)


def test_ties_leave_exactly_one_out():
    z = torch.full((1, 12), -40.0)
    z[0, [2, 3, 9]] = 5.0  # two in one tile of 4, one in another: p = 1/3 each
    found = by_triton(z, torch.tensor([9]), (1, 4))
    assert found.logp.item() == pytest.approx(-torch.tensor(3.0).log().item(), rel=1e-6)
    assert found.entropy.item() == pytest.approx(torch.tensor(3.0).log().item(), rel=1e-6)
    assert found.sum_p2.item() == pytest.approx(1 / 3, rel=1e-6)


def test_bias_minus_infinity_temperature_softcap_and_ignored_targets():
    g = torch.Generator().manual_seed(1)
    hidden, weight = torch.randn(6, 4, generator=g), torch.randn(21, 4, generator=g)
    bias = torch.randn(21, generator=g)
    bias[8:16] = -torch.inf  # a whole tile
    targets = torch.tensor([0, 20, -100, 3, 17, 7])
    found = es.token_stats(
        hidden, weight, targets, bias, temperature=0.7, moments=True, implementation="triton",
        tile=(4, 8),
    )  # fmt: skip
    z = (hidden @ weight.t() + bias)[:, ~bias.isneginf()] / 0.7
    kept = torch.tensor([0, 12, 0, 3, 9, 7])  # the targets' places without the forbidden tokens
    exact = definition(z, kept)
    for field in FIELDS:
        expected = exact[field].clone()
        expected[2] = 0
        assert_close(getattr(found, field).double(), expected, rtol=1e-5, atol=1e-6)
    capped = es.token_stats(
        hidden, weight, targets, softcap=2.0, moments=True, implementation="triton", tile=(4, 8)
    )
    exact = definition(2 * torch.tanh(hidden @ weight.t() / 2), targets.clamp(min=0))
    keep = targets >= 0
    for field in FIELDS:
        assert_close(
            getattr(capped, field).double()[keep], exact[field][keep], rtol=1e-5, atol=1e-6
        )


def test_gradients_in_the_dtype_of_the_products_that_follow():
    """A half is the float32 gradient, rounded once; a softcap's derivative comes before that."""
    from entrostat.core.stats.fold_triton import TritonFold
    from entrostat.core.stats.sums import Head, coefficients
    from entrostat.core.stats.tiled import sums

    g = torch.Generator().manual_seed(2)
    z, targets = torch.randn(6, 9, generator=g), torch.tensor([0, 8, 3, 3, 1, 2])
    incoming = (*torch.randn(2, 6, generator=g), None, None)
    for head in (Head(temperature=0.5), Head(softcap=2.0)):
        found = sums(z, torch.eye(9), None, targets, head, moments=False)
        by = coefficients(found, incoming, targets)

        def gradient(dtype: torch.dtype, head=head, found=found, by=by):
            fold = TritonFold((6, 9), dtype)
            return fold.gradient_(head.apply_(z.clone()), 0, targets, found, by, head)

        exact, half = gradient(torch.float32), gradient(torch.float16)
        assert torch.equal(half.half(), exact.half())
        assert half.dtype == (torch.float32 if head.softcap else torch.float16)


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from entrostat.core.stats import fold_triton as f

sums = ["*fp64"] * 4
for kernel, types, constants in (
    (f._fold_kernel, ["*fp32", "i32", "i32", "i32", "*i64", "*i64", "*fp32", "*fp32", *sums],
     {"MOMENTS": True, "BLOCK": f.BLOCK}),
    (f._gradient_kernel,
     ["*fp32", "i32", "*bf16", "i32", "i32", "i32", "fp32", "*i64", "*i64", *["*fp32"] * 7],
     {"HAS_B": True, "HAS_C": True, "HAS_D": True, "HAS_TARGET": True, "BLOCK": f.BLOCK}),
):
    types = types + ["constexpr"] * len(constants)
    signature = dict(zip(kernel.arg_names, types, strict=True))
    source = ASTSource(kernel, signature, constexprs=constants)
    done = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": f.WARPS})
    assert done.asm["cubin"]
print("compiled")
"""


@pytest.mark.long
def test_the_kernels_compile_for_a_gpu_that_is_not_here(tmp_path: Path):
    """Down to machine code for sm_90; what it does there only a GPU can show."""
    without = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILE], capture_output=True, text=True,
        env=without | {"TRITON_CACHE_DIR": str(tmp_path)}, timeout=800,
    )  # fmt: skip
    assert done.stdout.strip() == "compiled", done.stderr
