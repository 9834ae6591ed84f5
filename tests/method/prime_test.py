"""PRIME: advantages by hand and by brute force, and the model that the lab trains for them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import f64, refused
from entrostat.config import TrainConfig, from_dict
from entrostat.errors import RunStopped
from entrostat.models.loading import load_policy
from entrostat.models.rollout import Sequences
from entrostat.runs import checkpoint as checkpoints
from entrostat.runs.checkpoint import size_of
from entrostat.tasks import Example
from entrostat.tasks.target_sum import TargetSum
from entrostat.trainers.lab import train
from entrostat.trainers.lab.prime import Phi, accuracies, second_model
from lab_runs import assert_same_run, metrics, small
from long_cases import keep
from stopping import Stop, StopAfter

PRINTED = {"norm": "none", "whiten": False}
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def prepared(data: dict, advantage: str | None = None, **settings: object) -> torch.Tensor:
    """[B, T] advantages."""
    objective = es.make_objective({"name": "prime", **settings}, advantage=advantage)
    zeros = torch.zeros(data["mask"].shape, dtype=torch.float64)
    A = objective.prepare(es.TokenBatch(zeros, zeros, **data)).advantages
    assert A is not None
    return A


# ---------------------------------------------------------------------------- advantages


# two rollouts of one prompt, the first right and a token shorter. Outcome: 1 - 0 and 0 - 1. Mean
# token rewards: .3 and -.1, each the other's baseline, so r - b is .3, .5 and -.6, -.2, -.4
TWO = {
    "mask": torch.tensor([[1, 1, 0], [1, 1, 1]]),
    "rewards": f64([1.0, 0.0]),
    "group": torch.tensor([3, 3]),
    "process_rewards": f64([[0.2, 0.4, 9.0], [-0.3, 0.1, -0.1]]),
}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # returns .8, .5 and -1.2, -.6, -.4
        (PRINTED, [[1.8, 1.5, 0], [-2.2, -1.6, -1.4]]),
        # .3 + .5 .5, .5 and -.6 + .5 (-.2 + .5 (-.4)), -.2 + .5 (-.4), -.4
        (PRINTED | {"gamma": 0.5}, [[1.55, 1.5, 0], [-1.8, -1.4, -1.4]]),
        # the sums of r from each token on are .6, .4 and -.3, 0, -.1: the returns over .6
        (
            {"norm": "batch", "whiten": False},
            [[1 + 8 / 6, 1 + 5 / 6, 0], [-1 - 12 / 6, -1 - 1, -1 - 4 / 6]],
        ),
        # the five values above have mean -1/2 and, in sixths, deviations 17, 14, -15, -9, -7,
        # whose squares add up to 840; variance 840 / 36 / 4
        (
            {},
            [
                [17 / math.sqrt(210), 14 / math.sqrt(210), 0],
                [-15 / math.sqrt(210), -9 / math.sqrt(210), -7 / math.sqrt(210)],
            ],
        ),
    ],
    ids=["printed", "discounted", "norm", "as the code"],
)
def test_advantages_by_hand(settings: dict, expected: list) -> None:
    # 1e-6 is added to the .6
    assert_close(prepared(TWO, **settings), f64(expected), rtol=1e-5, atol=1e-12)


def ragged() -> dict:
    """Groups of 4, 3, 2 and 2, holes, a rollout without tokens; two groups without a signal."""
    g = torch.Generator().manual_seed(7)
    mask = torch.rand(11, 6, generator=g) < 0.7
    mask[4] = False  # so that group 1 has two rollouts that count
    rewards = f64([1.0, 0.0, 0.25, 1.0, 0.5, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    return {
        "mask": mask,
        "rewards": rewards,
        "group": torch.tensor([0, 1, 0, 0, 1, 0, 1, 2, 2, 3, 3]),
        "process_rewards": torch.randn(11, 6, generator=g, dtype=torch.float64),
    }


def reference(
    data: dict, outcome: list[float], gamma: float, norm: str, whiten: bool
) -> list[list[float]]:
    """The same in loops over Python's floats; `outcome` is one advantage per rollout."""
    group, mask = data["group"].tolist(), data["mask"].tolist()
    B, T = len(mask), len(mask[0])
    rewards = data["process_rewards"].tolist()
    r = [[rewards[i][t] for t in range(T) if mask[i][t]] for i in range(B)]
    teaches = [any(outcome[j] and r[j] for j in range(B) if group[j] == group[i]) for i in range(B)]
    largest = max(abs(sum(r[i][t:])) for i in range(B) if teaches[i] for t in range(len(r[i])))
    divisor = largest + 1e-6 if norm == "batch" else 1.0
    found = []
    for i in range(B):
        others = [
            sum(r[j]) / len(r[j]) for j in range(B) if j != i and group[j] == group[i] and r[j]
        ]
        row = [0.0] * len(r[i])
        for t in range(len(r[i])) if teaches[i] else ():
            row[t] = outcome[i]
            if others:
                b = sum(others) / len(others)
                row[t] += (
                    sum(gamma ** (s - t) * (r[i][s] - b) for s in range(t, len(r[i]))) / divisor
                )
        found.append(row)
    if whiten:
        values = [x for i in range(B) if teaches[i] for x in found[i]]
        mean = sum(values) / len(values)
        spread = math.sqrt(sum((x - mean) ** 2 for x in values) / (len(values) - 1) + 1e-8)
        found = [[(x - mean) / spread if teaches[i] else 0.0 for x in found[i]] for i in range(B)]
    out = [[0.0] * T for _ in range(B)]
    for i in range(B):
        for place, x in zip([t for t in range(T) if mask[i][t]], found[i], strict=True):
            out[i][place] = x
    return out


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
@pytest.mark.parametrize("norm", ["batch", "none"])
@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("advantage", ["rloo", "dr_grpo"])
def test_ragged_batches_equal_loops(advantage: str, gamma: float, norm: str, whiten: bool) -> None:
    data = ragged()
    outcome = []
    for R, own in zip(data["rewards"].tolist(), data["group"].tolist(), strict=True):
        group = data["rewards"][data["group"] == own]
        mean = float(group.mean())
        scale = len(group) / (len(group) - 1) if advantage == "rloo" else 1
        outcome.append(scale * (R - mean))
    found = prepared(data, advantage, gamma=gamma, norm=norm, whiten=whiten)
    assert_close(found, f64(reference(data, outcome, gamma, norm, whiten)), **CLOSE)
    assert not found[data["group"] >= 2].any()  # no signal, whatever the token rewards say
    assert found[data["group"] < 2].any()


def test_token_rewards_of_zero_leave_the_outcome() -> None:
    data = ragged() | {"process_rewards": torch.zeros(11, 6, dtype=torch.float64)}
    plain = es.make_objective("loop_token").outcome_advantages(
        es.TokenBatch(data["process_rewards"], data["process_rewards"], **data)
    )
    assert plain.advantages is not None
    expected = torch.where(data["mask"], plain.advantages[:, None], 0)
    assert torch.equal(prepared(data, **PRINTED), expected)


def test_the_name_is_the_algorithm() -> None:
    objective = es.make_objective("prime")
    assert (objective.advantage, objective.names, objective.aggregation) == (
        "rloo", ("ppo", "prime"), "token_mean",
    )  # fmt: skip
    ppo, prime = objective.methods
    assert (ppo.low, ppo.high) == (0.2, 0.2)
    assert (prime.beta, prime.gamma, prime.norm, prime.whiten) == (0.05, 1.0, "batch", True)
    base = es.make_objective("loop_token")
    assert repr(objective).replace(f", {prime!r}", "") == repr(base)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"beta": 0.0}, "prime: beta must be above 0"),
        ({"gamma": 1.1}, "prime: gamma must be at least 0 and at most 1"),
        ({"norm": "std"}, "prime: norm must be 'batch' or 'none'"),
        ({"phi_lr": 0.0}, "prime: phi_lr must be above 0"),
        ({"phi_update": "never"}, "prime: phi_update must be 'after' or 'before'"),
    ],
)
def test_settings_that_cannot_be_meant(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        es.make_objective("prime", **settings)


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_other_hosts_are_refused_with_what_to_do(host: str) -> None:
    fields = ("rewards", "group", "entropy", "old_entropy", "ref_logp")
    words = (
        f"`prime` does not run in {host}; it runs in lab.*second model.*lab alone.*"
        "entrostat train.*loop_token"
    )
    with pytest.raises(ValueError, match=words):
        es.make_objective("prime").check_host(host, fields)
    assert es.methods()["prime"].hosts == ("lab",)
    es.make_objective("prime").check_host("lab", (*fields, "process_rewards"))


# ---------------------------------------------------------------------------- the second model


def config(**changes: object) -> TrainConfig:
    return from_dict({"method": [{"name": "prime", **changes}]})


def model(settings: TrainConfig) -> Phi:
    policy = load_policy(settings)
    objective = es.make_objective(settings.method)
    phi = second_model(policy, policy.reference(), objective, settings, True, lambda text: None)
    assert phi is not None
    return phi


def answers(
    seed: int, B: int = 64, decisive: int = 1
) -> tuple[Sequences, torch.Tensor, torch.Tensor]:
    """Four digits d+d+d+d at random after 20/4: right is a 5 or more as the decisive one."""
    g = torch.Generator().manual_seed(seed)
    digits = torch.randint(1, 10, (B, 4), generator=g)
    completion = torch.full((B, 8), 12)  # +
    completion[:, 0:7:2] = digits + 2
    completion[:, 7] = 1  # eos
    prompt = torch.tensor([4, 2, 13, 6, 14]).expand(B, 5)
    tokens = torch.cat([prompt, completion], 1)
    mask = torch.ones(B, 8, dtype=torch.bool)
    ended = torch.ones(B, dtype=torch.bool)
    sequences = Sequences(
        tokens, torch.ones_like(tokens), 5, mask, torch.zeros(B, 8), ended, torch.zeros(B)
    )
    return sequences, (digits[:, decisive] >= 5).float(), torch.zeros(B, dtype=torch.int64)


@pytest.mark.parametrize("decisive", keep([1, 3], 3))
def test_token_rewards_point_at_the_token_that_decides(decisive: int) -> None:
    """None before it, where nobody can know. After it they are phi's to spread as it likes."""
    phi = model(config(phi_lr=1e-3))
    seen = [phi.token_rewards(*answers(s, decisive=decisive), "here")[1] for s in range(30)]
    # before the first update phi is the reference: every r is 0, and it guesses
    assert seen[0]["prime/loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert seen[0]["prime/accuracy"] == seen[0]["prime/pair_accuracy"] == 0.5
    assert seen[0]["prime/reward_mean"] == 0
    assert seen[-1]["prime/loss"] < 0.65
    assert seen[-1]["prime/pair_accuracy"] > 0.95
    sequences, right, group = answers(1000, 256, decisive)  # fresh
    r, _ = phi.token_rewards(sequences, right, group, "here")
    gap = r[right == 1].mean(0) - r[right == 0].mean(0)  # [T]
    assert gap[2 * decisive] > 0.2
    assert gap[: 2 * decisive].abs().max() < 0.02


def test_phis_learning_rate_over_the_run() -> None:
    settings = config(phi_lr="linear 1e-3 1e-4")
    policy, objective = load_policy(settings), es.make_objective(settings.method)
    phi = second_model(policy, policy.reference(), objective, settings, True, lambda text: None)
    assert phi is not None
    for progress, lr in ((0.0, 1e-3), (1.0, 1e-4)):
        objective.observe(entropy=0.5, progress=progress)
        _, figures = phi.token_rewards(*answers(0), "here")
        assert figures["prime/lr"] == pytest.approx(lr)


@pytest.mark.parametrize("update", ["after", "before"])
def test_token_rewards_are_log_ratios_of_phi_before_or_after_its_update(update: str) -> None:
    phi = model(config(phi_update=update, phi_lr=1e-3, beta=0.1))
    phi.token_rewards(*answers(0), "here")
    sequences, right, group = answers(1)

    def by_hand() -> torch.Tensor:
        found = []
        for side in (phi.policy.model, phi.reference.model):
            with torch.no_grad():
                logits = side(sequences.tokens).logits[:, 4:-1].double()
            picked = logits.log_softmax(-1).gather(-1, sequences.completions[..., None])
            found.append(picked[..., 0])
        return 0.1 * (found[0] - found[1])

    before = by_hand()
    r, figures = phi.token_rewards(sequences, right, group, "here")
    after = by_hand()
    assert (before - after).abs().max() > 1e-3
    assert_close(r.double(), before if update == "after" else after, rtol=0, atol=1e-5)
    # loss and accuracies are those of the model that has not seen these rollouts
    score = before.sum(-1)
    loss = -torch.where(right == 1, score.sigmoid(), 1 - score.sigmoid()).log().mean()
    assert figures["prime/loss"] == pytest.approx(loss.item(), abs=1e-6)
    assert figures["prime/accuracy"] == ((score > 0) == (right == 1)).double().mean().item()
    assert figures["prime/reward_mean"] == pytest.approx(r.mean().item(), abs=1e-7)


def test_the_gradient_does_not_depend_on_micro_batches() -> None:
    figures = []
    for size in (128, 5):
        settings = config()
        settings.optim.micro_batch = size
        phi = model(settings)
        for seed in range(2):
            _, found = phi.token_rewards(*answers(seed, 12), "here")
        figures.append(found)
    assert figures[0]["prime/grad_norm"] > 0.01
    for key, value in figures[0].items():
        assert figures[1][key] == pytest.approx(value, rel=2e-3, abs=1e-6), key


def test_accuracies_by_hand() -> None:
    scores = torch.tensor([2.0, -1.0, 0.0, 1.0, 3.0])
    outcomes = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0])
    group = torch.tensor([0, 0, 0, 0, 1])
    # right, right, half, wrong, wrong. Pairs of group 0: 2 > -1, 2 > 1, 0 > -1, 0 < 1
    found = accuracies(scores, outcomes, group)
    assert found == {"prime/accuracy": pytest.approx(0.5), "prime/pair_accuracy": 0.75}
    assert "prime/pair_accuracy" not in accuracies(scores, torch.ones(5), group)


@pytest.mark.parametrize("rank", [0, 4])
def test_phi_learns_alone_and_shares_what_is_frozen(rank: int) -> None:
    settings = config(phi_lr=1e-2)
    settings.lora.rank = rank
    policy = load_policy(settings)
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    reference = policy.reference()
    objective = es.make_objective(settings.method)
    said: list[str] = []
    phi = second_model(policy, reference, objective, settings, True, said.append)
    assert phi is not None
    for seed in range(3):
        phi.token_rewards(*answers(seed), "here")
    assert all(torch.equal(p, before[n]) for n, p in policy.model.named_parameters())
    theirs = dict(phi.policy.model.named_parameters())
    for name, p in policy.model.named_parameters():
        assert (theirs[name] is p) == (not p.requires_grad), name
    moved = [n for n, p in policy.trained().items() if not torch.equal(p, theirs[n])]
    assert moved
    trained = sum(p.numel() for p in policy.trained().values())
    assert said == [
        f"prime: a second model, {trained:,} parameters trained at 0.01, scores each rollout "
        "batch, then learns from it"
    ]
    assert size_of(policy.trained(), phi.policy.trained()) == 2 * 3 * 4 * trained


# ---------------------------------------------------------------------------- in the loop


def prime(output: Path, **changes: object) -> TrainConfig:
    settings = {"name": "prime", **changes}
    return small(output, method=[settings], iterations=2)


@pytest.mark.long
@pytest.mark.parametrize("update", ["after", "before"])
def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path, update: str) -> None:
    whole = train(prime(tmp_path / "whole", phi_update=update))
    with pytest.raises(Stop):
        train(prime(tmp_path / "run", phi_update=update), progress=StopAfter(1))
    train(prime(tmp_path / "run", phi_update=update), resume=True)
    assert_same_run(whole, tmp_path / "run")
    last = "checkpoints/000002.safetensors"
    assert (whole / last).read_bytes() == (tmp_path / "run" / last).read_bytes()
    saved = checkpoints.newest(whole / "checkpoints")
    assert saved is not None
    own = {name.removeprefix("phi/") for name in saved.tensors if name.startswith("phi/")}
    assert own == {name for name in saved.tensors if not name.startswith("phi/")}
    assert saved.state["phi"]["updates"] > 2  # several in each of the two iterations
    different = [n for n in own if not torch.equal(saved.tensors[n], saved.tensors[f"phi/{n}"])]
    assert different


def test_the_first_iteration_is_that_without_token_rewards_and_the_second_is_not(
    tmp_path: Path,
) -> None:
    with_phi = metrics(train(prime(tmp_path / "with", **PRINTED)))
    without = metrics(train(small(tmp_path / "without", method=["loop_token"], iterations=2)))
    for key, value in without[0].items():
        assert with_phi[0][key] == value, key
    assert with_phi[1]["reward/mean"] == without[1]["reward/mean"]  # the same first update
    assert with_phi[1]["loss/policy"] != without[1]["loss/policy"]
    assert {key for key in with_phi[0] if key.startswith("prime/")} == {
        f"prime/{key}"
        for key in ("loss", "accuracy", "pair_accuracy", "reward_mean", "grad_norm", "lr")
    }
    said = json.loads((tmp_path / "with/environment.json").read_text())
    assert "prime: a second model, 149,248 parameters trained at 0.0001" in json.dumps(said)


class Percent(TargetSum):
    """Right is worth 100."""

    def score(self, completion: str, example: Example) -> float:
        return 100 * super().score(completion, example)


def test_outcomes_that_no_cross_entropy_can_take_end_the_run(tmp_path: Path) -> None:
    refused(lambda: train(prime(tmp_path / "run"), task=Percent()), "`prime`", error=RunStopped)


@pytest.mark.long
def test_a_reference_penalty_and_token_rewards_share_the_reference(tmp_path: Path) -> None:
    """The penalty's reference is at the sampling temperature, phi's at 1."""
    chain = ["prime", {"name": "kl_ref", "coef": 0.1}]
    run = train(small(tmp_path / "run", method=chain, iterations=2))
    assert all("prime/loss" in line and "kl/old_new" in line for line in metrics(run))
