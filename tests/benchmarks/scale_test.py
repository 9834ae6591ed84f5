"""benchmarks/scale.py: its arithmetic by hand; a rank that answers for all decides as all do."""

import importlib
from types import ModuleType

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from entrostat.core.distributed import Communicator
from paths import ROOT


@pytest.fixture(scope="module")
def scale() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("scale")


def test_70b_on_64_gpus_is_bound_by_products(scale):
    # a GPU has 512 * 32768 / 64 = 262144 tokens, 16 micro-batches of 16384. A token's forward pass:
    # products 2 (70.55e9 - 128256 * 8192) = 138.998654e9, attention 2 * 32768 * 8192 * 80 =
    # 42.949673e9. All four passes: 4 * 262144 * 181.948327e9 = 1.9078665e17 in all, at 3.956e14 a
    # second. The network has 4 * 2 * 70.55e9 * 16 bytes, at 43e9 a second: 210 s
    seconds, moved, state = scale.update(scale.MODELS[2], 64, 512, 32768)
    assert seconds == pytest.approx(482.27, rel=1e-5)
    assert moved == pytest.approx(9.0304e12, rel=1e-9)
    assert state == pytest.approx(17.6375e9, rel=1e-9)  # 16 * 70.55e9 / 64


def test_7b_on_1024_gpus_with_short_rollouts_is_bound_by_the_network(scale):
    # 1024 tokens a GPU, one micro-batch; 8 * 7.616e9 = 60.928e9 bytes at 43e9 a second. Products:
    # 4 * 1024 * (2 (7.616e9 - 152064 * 3584) + 2 * 2048 * 3584 * 28) / 3.956e14 = .15 s
    seconds, moved, state = scale.update(scale.MODELS[0], 1024, 512, 2048)
    assert seconds == pytest.approx(1.416930, rel=1e-6)
    assert moved == pytest.approx(60.928e9, rel=1e-9)
    assert state == pytest.approx(119e6, rel=1e-9)


def test_all_reduces_wait_for_the_tree(scale):
    # 8 nodes: 6.8 + 2 (7 * .6 + 3 * 5) = 45.2 microseconds each; one node: 6.8 + 2 * 4.2 = 15.2
    assert scale.all_reduce(10, 0, 64) == pytest.approx(452e-6)
    assert scale.all_reduce(10, 0, 8) == pytest.approx(152e-6)
    assert scale.all_reduce(0, 43e6, 8) == pytest.approx(1e-3)


def test_a_rank_that_answers_for_four_plans_as_four_do(scale):
    spec = {"name": "kl_cov", "frac": 0.125}  # 64 of 512 tokens: 16 of each copy, none tied away
    ranks = scale.Mirror(4)
    mine = es.make_objective(spec).plan(scale.share(2, 64, ranks), torch.Generator())
    one = scale.share(2, 64, Communicator())
    names = ("logp", "old_logp", "mask", "advantages", "entropy", "old_entropy")
    four = es.TokenBatch(**{name: getattr(one, name).repeat(4, 1) for name in names})
    all_of_it = es.make_objective(spec).plan(four, torch.Generator())
    assert int((mine.abs_kl > 0).sum()) == 16
    assert_close(mine.abs_kl, all_of_it.abs_kl[:2], rtol=0, atol=0)
    assert_close(mine.scale, all_of_it.scale[:2], rtol=0, atol=0)
    # a threshold of float32 is found in three rounds of 2048 counts of 8 bytes, sent twice; the
    # rest are a few numbers a call
    assert 0 < ranks.sent - 3 * 2 * 2048 * 8 < 16 * 2 * ranks.calls
