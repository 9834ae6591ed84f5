"""Objectives behind the loss hooks of tinker, slime and prime-rl.

The stubs have the published signatures: tinker 0.38's `Datum`, `TensorData` and its way to a
gradient, slime's `loss_function` of August 2026 with `get_log_probs_and_entropy`, prime-rl's
`LossInputs` and `compute_loss`. Expected losses are written out.
"""

import sys
from argparse import Namespace
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import refused
from entrostat.trainers import hooks

LENGTHS = [5, 2, 4, 3]
REWARDS = [1.0, 0.0, 0.0, 1.0]
GROUP = [0, 0, 1, 1]


def ragged(seed):
    g = torch.Generator().manual_seed(seed)
    return [-torch.rand(n, generator=g) - 0.1 for n in LENGTHS]


NOW, OLD = ragged(1), ragged(2)
# GRPO of two rewards 1 and 0: half a unit off the mean, over a deviation of 2^-.5
ADVANTAGES = [a * 0.5 / (0.5**0.5 + 1e-6) for a in (1, -1, -1, 1)]


def clipped(lp, old, A, low=0.2, high=0.2):
    r = (lp - old).exp()
    return -torch.minimum(r * A, r.clamp(1 - low, 1 + high) * A)


# ---------------------------------------------------------------------------- tinker


class TensorData:
    """tinker's: data, dtype, shape; `to_torch`."""

    def __init__(self, tensor):
        self.tensor = tensor

    def to_torch(self):
        return self.tensor


def data(**more):
    rows = []
    for i, old in enumerate(OLD):
        fields = {
            "target_tokens": torch.zeros(len(old), dtype=torch.int64), "logprobs": old,
            "mask": torch.ones(len(old)),
        }  # fmt: skip
        fields |= {name: values[i] for name, values in more.items()}
        rows.append(SimpleNamespace(loss_fn_inputs={k: TensorData(v) for k, v in fields.items()}))
    return rows


REWARDED = {
    "reward": [torch.tensor([r]) for r in REWARDS],
    "group": [torch.tensor([g]) for g in GROUP],
}


def through_tinker(loss_fn, rows):
    """As `TrainingClient._compute_custom_loss`: the loss, and -weights of the backward pass."""
    logprobs = [lp.clone().detach().requires_grad_(True) for lp in NOW]
    loss, metrics = loss_fn(rows, logprobs)
    loss.backward()
    assert all(lp.grad is not None for lp in logprobs)  # "No gradient computed" there
    assert all(isinstance(value, float) for value in metrics.values())
    return float(loss.detach()), [lp.grad for lp in logprobs]


def test_tinker_has_the_whole_batch():
    objective = es.make_objective("grpo_token")
    loss, gradient = through_tinker(hooks.tinker_loss(objective), data(**REWARDED))
    leaves = [lp.clone().requires_grad_() for lp in NOW]
    each = [clipped(lp, o, a) for lp, o, a in zip(leaves, OLD, ADVANTAGES, strict=True)]
    expected = torch.cat(each).sum() / sum(LENGTHS)
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    for mine, theirs in zip(gradient, torch.autograd.grad(expected, leaves), strict=True):
        assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_tinker_takes_advantages_and_the_batchs_centre():
    """`center="batch"` needs no entropy: its centre is the mean of log p over the batch."""
    A = [torch.full((n,), a) for n, a in zip(LENGTHS, ADVANTAGES, strict=True)]
    spec = ["grpo_token", {"name": "repo_r", "center": "batch", "zeta": 0.1}]
    objective = es.make_objective(spec)
    entropy = hooks.sampled_entropy(data())
    assert entropy == pytest.approx(-float(torch.cat(OLD).mean()))
    objective.observe(entropy=entropy)
    loss, _ = through_tinker(hooks.tinker_loss(objective), data(advantages=A))
    plain, _ = through_tinker(hooks.tinker_loss(es.make_objective("grpo_token")),
                              data(advantages=A))  # fmt: skip
    rewarded, _ = through_tinker(hooks.tinker_loss(es.make_objective("grpo_token")),
                                 data(**REWARDED))  # fmt: skip
    assert plain == pytest.approx(rewarded, rel=1e-5)
    assert loss != pytest.approx(plain, rel=1e-3)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("repo_r", "`repo_r` needs `old_entropy`.*center='batch'"),
        ("thermostat", "`thermostat` needs `entropy`"),
        ("kl_ref", "`kl_ref` needs `ref_logp`"),
    ],
)
def test_tinker_has_no_entropies(method, words):
    with pytest.raises(ValueError, match=words):
        hooks.tinker_loss(es.make_objective(method))


def test_tinker_says_what_a_datum_lacks():
    loss = hooks.tinker_loss(es.make_objective("grpo"))
    refused(lambda: loss(data(), NOW), "give each datum advantages")


# ---------------------------------------------------------------------------- slime

VOCABULARY = 7


@pytest.fixture
def slime(monkeypatch):
    """Its `get_log_probs_and_entropy`: responses' log-probs and entropies of packed logits."""

    def get_log_probs_and_entropy(
        logits, *, args, unconcat_tokens, total_lengths, response_lengths, with_entropy=False,
        non_loss_data=True, top_p_token_ids=None, top_p_token_offsets=None,
    ):  # fmt: skip
        assert logits.shape[0] == 1
        found, start = {"log_probs": [], "entropy": []}, 0
        for tokens, total, n in zip(unconcat_tokens, total_lengths, response_lengths, strict=True):
            rows = logits[0, start + total - n - 1 : start + total - 1].log_softmax(-1)
            found["log_probs"].append(rows.gather(1, tokens[-n:, None])[:, 0])
            H = -(rows.exp() * rows).sum(-1)
            found["entropy"].append(H if args.entropy_coef else H.detach())
            start += total
        return torch.empty(0), found

    name = "slime.backends.megatron_utils.loss"
    module = ModuleType(name)
    module.get_log_probs_and_entropy = get_log_probs_and_entropy
    for part in ("slime", "slime.backends", "slime.backends.megatron_utils"):
        monkeypatch.setitem(sys.modules, part, ModuleType(part))
    monkeypatch.setitem(sys.modules, name, module)
    return get_log_probs_and_entropy


def slime_batch():
    g = torch.Generator().manual_seed(3)
    totals = [n + 2 for n in LENGTHS]
    tokens = [torch.randint(VOCABULARY, (n,), generator=g) for n in totals]
    masks = [torch.ones(n) for n in LENGTHS]
    masks[0][1] = 0.0  # what a tool wrote
    return {
        "unconcat_tokens": tokens, "total_lengths": totals, "response_lengths": LENGTHS,
        "loss_masks": masks, "log_probs": OLD, "rewards": ADVANTAGES,
    }, torch.randn(1, sum(totals), VOCABULARY, generator=g, requires_grad=True)  # fmt: skip


def reducer(masks):
    """slime's `get_sum_of_sample_mean`: the sum over samples of their means."""

    def sum_of_sample_mean(x):
        parts = zip(x.split(LENGTHS), masks, strict=True)
        return sum((x_i * m).sum() / m.sum().clamp(min=1) for x_i, m in parts)

    return sum_of_sample_mean


ARGS = Namespace(use_rollout_logprobs=False, entropy_coef=0.0, context_parallel_size=1)


def test_slime_has_exact_entropies_and_its_own_mean(slime):
    objective = es.make_objective(["grpo", {"name": "entropy_bonus", "coef": 0.1}])
    batch, logits = slime_batch()
    hooks.slime_advantages(objective)(ARGS, batch)
    for a, row, m in zip(ADVANTAGES, batch["advantages"], batch["loss_masks"], strict=True):
        assert_close(row, a * m)
    assert batch["returns"] is batch["advantages"]
    mean = reducer(batch["loss_masks"])
    loss, log = hooks.slime_loss(objective)(ARGS, batch, logits, mean)
    _, own = slime(logits, args=Namespace(entropy_coef=1), **{
        k: batch[k] for k in ("unconcat_tokens", "total_lengths", "response_lengths")
    })  # fmt: skip
    each = [
        clipped(lp, o, a) - 0.1 * H
        for lp, o, a, H in zip(own["log_probs"], OLD, ADVANTAGES, own["entropy"], strict=True)
    ]
    expected = mean(torch.cat(each))
    assert_close(loss, expected)
    assert_close(torch.autograd.grad(loss, logits)[0], torch.autograd.grad(expected, logits)[0])
    assert_close(log["entropy_loss"], mean(torch.cat(own["entropy"])).detach())
    assert all(not value.requires_grad for value in log.values())


def test_slime_refuses_cut_rollouts(slime):
    objective = es.make_objective("grpo")
    batch, logits = slime_batch()
    args = Namespace(**vars(ARGS) | {"context_parallel_size": 2})
    refused(
        lambda: hooks.slime_loss(objective)(args, batch, logits, reducer(batch["loss_masks"])),
        "context_parallel_size",
    )


# ---------------------------------------------------------------------------- prime-rl


def inputs(i, **more):
    """prime-rl's LossInputs of one sequence."""
    n = LENGTHS[i]
    given = {
        "trainer_logprobs": NOW[i].clone().requires_grad_(), "inference_logprobs": OLD[i],
        "ref_logprobs": None, "advantages": torch.full((n,), ADVANTAGES[i]),
        "loss_mask": torch.arange(n) != 1, "loss_weights": None,
    }  # fmt: skip
    return SimpleNamespace(**given | more)


def test_prime_rls_own_ipo():
    """Its `ipo_loss_fn`, summed over the tokens of a sequence, weights included."""
    weights = torch.linspace(0.5, 1.5, LENGTHS[0])
    row = inputs(0, loss_weights=weights)
    out = hooks.prime_rl_loss(row, method="ipo", threshold=0.2, kl=1e-2)
    lp, old = row.trainer_logprobs, row.inference_logprobs
    keep = (lp.exp() - old.exp()).abs().detach() <= 0.2
    each = -keep.float() * row.advantages * (lp - old).exp() + 1e-2 * (lp - old) ** 2
    expected = (each * weights)[row.loss_mask].sum()
    assert 0 < int((keep & row.loss_mask).sum()) < int(row.loss_mask.sum())
    assert_close(out.loss, expected)
    (mine,), (theirs,) = (torch.autograd.grad(x, lp) for x in (out.loss, expected))
    assert_close(mine, theirs)
    assert all(value.ndim == 0 for value in out.metrics.values())


@pytest.mark.parametrize(
    "method", ["ppo", "cispo", "sapo", "gmpo", "up", "dppo", "ipo", "icepop", "vespo", "gspo",
               "off_policy_mask", "w_reinforce"],
)  # fmt: skip
def test_prime_rl_runs_what_weighs_a_rollout_alone(method):
    row = inputs(2)
    out = hooks.prime_rl_loss(row, method=method)
    (gradient,) = torch.autograd.grad(out.loss, row.trainer_logprobs)
    assert bool(gradient.isfinite().all())
    assert gradient[1] == 0


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("m2po", "m2po decides on the tokens of several rollouts"),
        ("clip_cov", "decides on the tokens of several rollouts"),
        ("entropy_bonus", "needs `entropy`"),
        ({"name": "repo_r", "center": "batch"}, "decides on the tokens of several rollouts"),
    ],
)
def test_prime_rl_refuses_what_needs_more(method, words):
    with pytest.raises(ValueError, match=words):
        hooks.prime_rl_loss(inputs(0), method=method)


def test_a_reference_arrives_at_prime_rl():
    ref = OLD[1] - 0.3
    row = inputs(1, ref_logprobs=ref)
    chain = ["ppo", {"name": "kl_ref", "coef": 0.5}]
    out, plain = (hooks.prime_rl_loss(row, method=m) for m in (chain, "ppo"))
    d = (ref - NOW[1])[row.loss_mask]
    assert_close(out.loss - plain.loss, 0.5 * (d.exp() - d - 1).sum())
