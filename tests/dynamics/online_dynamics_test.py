"""Entropy dynamics of every update: by brute force, however the tokens are cut, in every host.

This file is also a rank of the test with two processes.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import json_lines
from entrostat.core.process_ranks import ranks, shared_generator, sum_over_ranks
from entrostat.dynamics import online
from entrostat.report.dumped import of_dump
from processes import run_ranks

NAN = math.nan
B, T = 6, 5
LENGTHS = (5, 3, 1, 4, 2, 5)
GROUP = (0, 0, 0, 1, 1, 1)
REWARDS = (1.0, 0.0, 0.25, 0.75, 0.0, 1.0)
FIELDS = ("logp", "old_logp", "entropy", "old_entropy")


def make_data(seed: int = 7, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    """Ragged rollouts with NaN wherever no token is, probabilities from .01 to .99."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.arange(T) < torch.tensor(LENGTHS)[:, None]

    def some(low: float, high: float) -> torch.Tensor:
        x = low + (high - low) * torch.rand(B, T, generator=g, dtype=torch.float64)
        return torch.where(mask, x, NAN).to(dtype)

    # likely and unlikely tokens, some of them near the quadrants' bounds
    old = torch.where(some(0, 1) < 0.5, some(0.02, 0.3), some(0.7, 0.99)).log()
    return {
        "logp": old + some(-0.3, 0.0), "old_logp": old, "mask": mask, "entropy": some(0.0, 2.0),
        "old_entropy": some(0.0, 2.0), "rewards": torch.tensor(REWARDS, dtype=dtype),
        "group": torch.tensor(GROUP),
    }  # fmt: skip


def added(parts: list[dict[str, torch.Tensor]]) -> dict[str, float]:
    return {key: math.fsum(float(part[key]) for part in parts) for key in parts[0]}


# ---------------------------------------------------------------------------- by brute force


def tokens_of(batch: es.TokenBatch, terms: es.Terms) -> list[SimpleNamespace]:
    """One object per token at mask 1, in plain numbers."""
    found = []
    for i, j in batch.mask.nonzero().tolist():
        lp, old = float(batch.logp[i, j]), float(batch.old_logp[i, j])
        A, r = float(terms.advantage[i, j]), math.exp(lp - old)
        cut = (A > 0 and r > terms.ratio_max[i, j]) or (A < 0 and r < terms.ratio_min[i, j])
        touched = float(terms.weight[i, j]) != 1 or (terms.ratio == "token" and bool(cut))
        for marks in (terms.frozen, terms.abs_kl, batch.edited):
            touched = touched or (marks is not None and bool(marks[i, j]))
        H = NAN if batch.entropy is None else float(batch.entropy[i, j])
        found.append(SimpleNamespace(lp=lp, p=math.exp(lp), H=H, A=A, touched=touched))
    return found


def by_hand(tokens: list[SimpleNamespace]) -> dict[str, float]:
    """The figures of an update, from their definitions; those of entropy where it is known."""
    N = len(tokens)
    mean_lp, mean_A = (statistics.fmean(getattr(t, k) for t in tokens) for k in ("lp", "A"))
    found = {
        "cov/update": statistics.fmean((t.lp - mean_lp) * (t.A - mean_A) for t in tokens),
        "touched/share": sum(t.touched for t in tokens) / N,
        "quadrant/I": sum(t.A > 0 and t.p > 0.8 for t in tokens) / N,
        "quadrant/II": sum(t.A > 0 and t.p < 0.2 for t in tokens) / N,
        "quadrant/III": sum(t.A < 0 and t.p < 0.2 for t in tokens) / N,
        "quadrant/IV": sum(t.A < 0 and t.p > 0.8 for t in tokens) / N,
    }
    change = [-t.A * (1 - t.p) ** 2 * (t.lp + t.H) for t in tokens]
    if any(map(math.isnan, change)):
        return found
    up, down = sum(c for c in change if c > 0), -sum(c for c in change if c < 0)
    found |= {
        "flow/increase": up / N, "flow/decrease": down / N, "flow/net": sum(change) / N,
        "flow/balance": (down - up) / (down + up),
    }  # fmt: skip
    if any(t.touched for t in tokens):
        found["touched/entropy"] = statistics.fmean(t.H for t in tokens if t.touched)
    return found


CHAINS = {
    "untouched": ["grpo", "clip_free"],
    "clip": [{"name": "ppo", "low": 0.1, "high": 0.05}],
    "weight": ["grpo", "clip_free", "steer"],
    "frozen": ["grpo", "clip_free", {"name": "clip_cov", "ratio": 0.2, "low": 0.0}],
    "penalised": ["grpo", "clip_free", {"name": "kl_cov", "frac": 0.2}],
    "advantage": ["grpo", "clip_free", {"name": "repo_r", "zeta": 0.05}],
    "rewards": ["grpo", "clip_free", "unlikeliness"],
    "both": ["grpo", "clip_free", "unlikeliness", {"name": "repo_r", "zeta": 0.05}],
    "all": ["dapo", {"name": "repo_r", "zeta": 0.05}, {"name": "clip_cov", "ratio": 0.2}, "steer"],
}  # fmt: skip


@pytest.mark.parametrize("chain", CHAINS)
def test_figures_of_an_update_by_brute_force(chain):
    batch = es.TokenBatch(**make_data())
    objective = es.make_objective(CHAINS[chain])
    batch = objective.prepare(batch)
    terms = objective.plan(batch, torch.Generator().manual_seed(1))
    if chain == "advantage":  # what was edited, from the definition of REPO-R: positive A alone
        outcome = es.advantages("grpo", batch.rewards, batch.group)
        assert torch.equal(batch.edited, batch.mask & (outcome > 0)[:, None])
    if chain in ("rewards", "both"):
        plain = es.advantages("grpo", torch.tensor(REWARDS).double(), batch.group)
        moved = (batch.advantages != plain[:, None]) & batch.mask
        assert torch.equal(batch.edited, moved)
        assert moved.any()
    sums = online.sums(batch.replace(logp=batch.logp.clone().requires_grad_()), terms)
    found = online.figures(added([sums]))
    expected = by_hand(tokens_of(batch, terms))
    assert (expected["touched/share"] > 0) == (chain != "untouched")
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert all(value > 0 for key, value in expected.items() if key.startswith("quadrant/"))
    assert all(value.dtype == torch.float64 for value in sums.values())
    assert not any(value.requires_grad for value in sums.values())


def test_the_flow_is_what_opefo_balances():
    batch = es.TokenBatch(**make_data())
    objective = es.make_objective("opefo")
    batch = objective.prepare(batch.replace(old_logp=batch.logp))
    terms = objective.plan(batch)
    found = online.figures(added([online.sums(batch, terms)]))
    weights = terms.weight[batch.mask].unique()
    lam = found["flow/balance"]
    assert abs(lam) > 0.05
    assert_close(weights, torch.tensor(sorted({1 - lam, 1 + lam}), dtype=torch.float64))
    assert found["touched/share"] == 1
    static = es.make_objective("opefo", mode="static", lam=0.25)
    same = online.figures(added([online.sums(batch, static.plan(batch))]))
    assert same["flow/balance"] == lam  # what is, not what the method was told


# ---------------------------------------------------------------------------- however cut


@pytest.mark.parametrize(
    "rows", [[slice(0, 3), slice(3, 6)], [slice(i, i + 1) for i in range(B)]], ids=["halves", "one"]
)
def test_micro_batches_add_up(rows):
    objective = es.make_objective(CHAINS["all"])
    batch = objective.prepare(es.TokenBatch(**make_data()))
    terms = objective.plan(batch, torch.Generator().manual_seed(1))
    parts = [online.sums(batch[part], terms[part]) for part in rows]
    whole = online.sums(batch, terms)
    assert added(parts) == pytest.approx(added([whole]), rel=1e-14, abs=1e-15)


def test_an_iteration_is_all_its_tokens_and_no_mean_of_means():
    objective = es.make_objective(CHAINS["clip"])
    updates, tokens = [], []
    for seed, rows in ((7, slice(0, 2)), (48, slice(0, 6))):  # 8 tokens, then 20
        batch = objective.prepare(es.TokenBatch(**make_data(seed)))[rows]
        terms = objective.plan(batch)
        updates.append(online.sums(batch, terms))
        tokens += tokens_of(batch, terms)
    expected = by_hand(tokens)
    total = added(updates)
    assert online.figures(total) == pytest.approx(expected, rel=1e-12)
    # hosts average over updates: only quotients count
    halved = {key: value / 2 for key, value in total.items()}
    found = online.figures({"loss/total": 0.5, **halved})
    assert found == pytest.approx({"loss/total": 0.5, **expected}, rel=1e-12)
    each = [online.figures(added([update])) for update in updates]
    for key in ("flow/net", "cov/update", "touched/share", "touched/entropy"):
        assert abs(statistics.fmean(found[key] for found in each) - expected[key]) > 1e-3


def rank_main(rank: int, folder: Path) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    data = make_data() | {"rollout": torch.arange(6)}
    rows = slice(0, 4) if rank == 0 else slice(4, 6)
    objective = es.make_objective(CHAINS["all"])
    mine = objective.prepare(es.TokenBatch(**data)[rows].replace(ranks=ranks()))
    terms = objective.plan(mine, shared_generator(5, "select"))
    total = sum_over_ranks(online.sums(mine, terms))
    (folder / f"{rank}.json").write_text(json.dumps(online.figures(total)))


def test_ranks_add_up(tmp_path):
    found = run_ranks(2, tmp_path, lambda rank: (__file__, str(rank), str(tmp_path)))
    objective = es.make_objective(CHAINS["all"])
    batch = objective.prepare(es.TokenBatch(**make_data()))
    terms = objective.plan(batch, shared_generator(5, "select"))
    expected = by_hand(tokens_of(batch, terms))
    assert found == [pytest.approx(expected, rel=1e-12)] * 2


# ---------------------------------------------------------------------------- what is not known


def test_masked_entries_change_nothing():
    data = make_data()
    mask = data["mask"]
    A = torch.where(mask, torch.linspace(-1, 1, T).double(), NAN)
    touched = torch.zeros_like(mask) | ~mask  # only where no token is
    touched[0, :2] = True
    found = []
    for junk in (NAN, math.inf, 1e30, 0.0):
        lp, H, a = (torch.where(mask, x, junk) for x in (data["logp"], data["entropy"], A))
        found.append(online.token_sums(lp, a, mask, H, touched))
    for other in found[1:]:
        assert all(torch.equal(value, other[key]) for key, value in found[0].items())
    assert found[0]["sum/tokens"] == sum(LENGTHS)
    assert found[0]["sum/touched"] == 2


def test_without_entropy_its_figures_are_absent():
    data = make_data()
    given = {key: value for key, value in data.items() if "entropy" not in key}
    objective = es.make_objective(CHAINS["clip"])
    batch = objective.prepare(es.TokenBatch(**given))
    terms = objective.plan(batch)
    sums = online.sums(batch, terms)
    expected = by_hand(tokens_of(batch, terms))
    found = online.figures(added([sums]))
    assert found == pytest.approx(expected, rel=1e-12)
    assert not any(key.startswith("flow/") or key == "touched/entropy" for key in found)
    # one update without it takes the iteration's away; it is not that of the others
    full = online.sums(objective.prepare(es.TokenBatch(**data)), terms)
    assert "flow/net" in online.figures(added([full]))
    assert "flow/net" not in online.figures(added([full, sums]))


def test_the_old_policys_entropy_counts_only_while_it_is_the_policy():
    data = make_data() | {"entropy": None}
    objective = es.make_objective("grpo")
    batch = objective.prepare(es.TokenBatch(**data))
    terms = objective.plan(batch)
    assert "flow/net" not in online.figures(added([online.sums(batch, terms)]))
    fresh = batch.replace(logp=batch.old_logp)
    known = fresh.replace(entropy=batch.old_entropy)
    expected = by_hand(tokens_of(known, terms))
    found = online.figures(added([online.sums(fresh, terms)]))
    assert found["flow/net"] == pytest.approx(expected["flow/net"], rel=1e-12)


def test_sums_of_float32_are_float64():
    lp = torch.full((1, 2), -1.0)
    A = torch.tensor([[2.0**24, 1.0]])  # whose sum float32 does not have
    sums = online.token_sums(lp, A, torch.ones(1, 2, dtype=torch.bool))
    assert sums["sum/advantage"].item() == 2**24 + 1
    half = online.token_sums(lp.bfloat16(), A.bfloat16(), torch.ones(1, 2, dtype=torch.bool))
    assert torch.equal(half["sum/product"], -sums["sum/advantage"])


def test_nothing_to_sum():
    mask = torch.zeros(2, 3, dtype=torch.bool)
    x = torch.full((2, 3), NAN)
    sums = online.token_sums(x, x, mask, x, mask)
    assert online.figures({"a/b": 1.0} | added([sums])) == {"a/b": 1.0}
    batch = es.TokenBatch(x, x, mask, x, group=torch.zeros(2).long())
    assert online.of_rollouts(batch, torch.ones(2), torch.ones(2)) == {}
    flat = online.token_sums(*(torch.zeros(1, 2) for _ in "ab"), torch.ones(1, 2).bool(),
                             torch.ones(1, 2))  # fmt: skip
    assert online.figures(added([flat]))["flow/balance"] == 0  # A = 0: nothing flows


def test_random_streams_and_inputs_stay_as_they_are():
    batch = es.TokenBatch(**make_data())
    objective = es.make_objective("grpo")
    batch = objective.prepare(batch)
    before, terms = torch.get_rng_state(), objective.plan(batch)
    copies = {name: getattr(batch, name).clone() for name in (*FIELDS, "advantages")}
    online.sums(batch, terms)
    online.of_rollouts(batch, batch.advantages[:, 0], batch.rewards)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(getattr(batch, name), value) for name, value in copies.items())


# ---------------------------------------------------------------------------- a rollout batch


def rollouts_by_hand(lp, mask, A, outcome, rewards, group) -> dict[str, float]:
    """Eq. 8's table and Eq. 7, by loops."""
    places = [tuple(place) for place in mask.nonzero().tolist()]
    lps, As = [float(lp[i]) for i in places], [float(A[i]) for i in places]
    mean_lp, mean_A = statistics.fmean(lps), statistics.fmean(As)
    cov = sorted(((x - mean_lp) * (a - mean_A) for x, a in zip(lps, As, strict=True)), reverse=True)
    found = {"cov/mean": statistics.fmean(cov)}
    for name, share in (("0.02", 2e-4), ("0.2", 2e-3), ("2", 0.02), ("20", 0.2)):
        found[f"cov/top_{name}"] = statistics.fmean(cov[: max(1, round(share * len(cov)))])
    prompts = []
    for g in sorted(set(group.tolist())):
        rows = [i for i in range(len(group)) if int(group[i]) == g]
        x = [statistics.fmean(float(v) for v in lp[i][mask[i]]) for i in rows]
        z = [math.exp(v) * float(outcome[i]) for v, i in zip(x, rows, strict=True)]
        mx, mz = statistics.fmean(x), statistics.fmean(z)
        eq7 = statistics.fmean((a - mx) * (b - mz) for a, b in zip(x, z, strict=True))
        prompts.append((statistics.fmean(float(rewards[i]) for i in rows), eq7))
    found["cov/prompt"] = statistics.fmean(eq7 for _, eq7 in prompts)
    third = len(prompts) // 3
    if third:
        ranked = [eq7 for _, eq7 in sorted(prompts)]
        for name, part in (("hard", ranked[:third]), ("middle", ranked[third:-third]),
                           ("easy", ranked[-third:])):  # fmt: skip
            found[f"cov/prompt_{name}"] = statistics.fmean(part)
    return found


def nine_prompts() -> tuple[es.TokenBatch, torch.Tensor, torch.Tensor]:
    """36 rollouts of nine prompts that all differ in difficulty, in no order; edited advantages."""
    g = torch.Generator().manual_seed(3)
    n, width = 36, 8
    mask = torch.arange(width) < torch.randint(1, width + 1, (n, 1), generator=g)
    lp = torch.where(mask, (0.02 + 0.9 * torch.rand(n, width, generator=g).double()).log(), NAN)
    group = torch.cat([torch.arange(18) % 9, torch.randint(0, 9, (18,), generator=g)])
    rewards = torch.rand(n, generator=g).double() * torch.linspace(0.2, 1, 9).double()[group]
    outcome = es.advantages("dr_grpo", rewards, group)
    edited = outcome[:, None] * (1 + 0.3 * torch.rand(n, width, generator=g).double())
    batch = es.TokenBatch(lp, lp, mask, edited, rewards=rewards, group=group)
    return batch, outcome, rewards


def test_figures_of_a_rollout_batch_by_brute_force():
    batch, outcome, rewards = nine_prompts()
    expected = rollouts_by_hand(
        batch.old_logp, batch.mask, batch.advantages, outcome, rewards, batch.group
    )
    found = online.of_rollouts(batch, outcome, rewards)
    assert found == pytest.approx(expected, rel=1e-10, abs=1e-14)
    assert len(found) == 9
    # the current policy does not count
    moved = batch.replace(logp=torch.full_like(batch.logp, -1.0))
    assert online.of_rollouts(moved, outcome, rewards) == found
    unknown = online.of_rollouts(batch, outcome, torch.full_like(rewards, NAN))
    assert unknown == {k: v for k, v in found.items() if not k.startswith("cov/prompt_")}
    alone = batch.replace(group=torch.arange(36))  # no covariance of one response
    assert not any("prompt" in key for key in online.of_rollouts(alone, outcome, rewards))


# ---------------------------------------------------------------------------- hosts


def test_the_lab_logs_what_its_dump_says(tmp_path):
    from entrostat.config import from_dict
    from entrostat.trainers.lab import train

    data = {
        "method": ["grpo", "ppo", {"name": "repo_r", "zeta": 0.05, "controller": "none"}],
        "iterations": 2, "sampling": {"prompts": 8, "rollouts": 4}, "eval": {"prompts": 0},
        "save": {"rollouts_every": 1},
    }  # fmt: skip
    read = {}
    for name, optim in {
        "one": {"epochs": 1, "minibatches": 1},
        "cut": {"epochs": 1, "minibatches": 1, "micro_batch": 5},
        "four": {"epochs": 2, "minibatches": 2},
    }.items():
        run = train(from_dict(data | {"optim": optim, "output": str(tmp_path / name)}))
        lines = json_lines(run / "metrics.jsonl")
        assert not any(key.startswith(online.PART) for line in lines for key in line)
        read[name] = lines[0]
        for line in lines:
            dumped = of_dump(es.load_rollouts(run, line["iteration"]))
            # a response's outcome is not in the dump, its edited advantages are
            kept = {k for k in dumped if "prompt" not in k and (name != "four" or "cov" in k)}
            assert len(kept) == (13 if name != "four" else 5)
            for key in kept:  # another packing's rounding
                assert line[key] == pytest.approx(dumped[key], rel=2e-3, abs=1e-5), (name, key)
            assert line["cov/update"] == pytest.approx(dumped["cov/mean"], rel=1e-3) or (
                name == "four"
            )
            assert {"cov/prompt", "touched/share", "touched/entropy"} <= line.keys()
    # what REPO-R edited, from the rewards; the edit of a nearly certain token is below rounding
    first = es.load_rollouts(tmp_path / "one", 1)
    outcome = es.advantages("grpo", first.rewards, first.group)
    lengths = first.start.diff()
    trained = first.trained.repeat_interleave(lengths)
    moved = (first.advantage != outcome.repeat_interleave(lengths))[trained].double()
    assert 0.1 < moved.mean() < 0.5
    assert read["one"]["touched/share"] == pytest.approx(float(moved.mean()), abs=1e-12)
    for key in (k for k in read["one"] if k.split("/")[0] in ("flow", "touched", "quadrant")):
        assert read["cut"][key] == pytest.approx(read["one"][key], rel=2e-3, abs=1e-5), key


def test_verls_driver_prepares_the_same_figures():
    from entrostat.trainers.verl.driver import prepare

    data = {key: value.float() if value.is_floating_point() else value
            for key, value in make_data(dtype=torch.float32).items()}  # fmt: skip
    batch = es.TokenBatch(**data)
    real = torch.ones(B + 1, dtype=torch.bool)
    real[B] = False  # a row that fills up the batch
    padded = es.TokenBatch(**{
        key: torch.cat([value, value[:1]]) for key, value in data.items()
    })  # fmt: skip
    objective = es.make_objective("repo_r", zeta=0.05)
    objective.observe(entropy=1.0)
    done = prepare(objective, padded, real, 0.0)
    outcome = objective.outcome_advantages(batch).advantages
    assert torch.equal(done.batch.edited[:B], batch.mask & (outcome > 0)[:, None])
    assert not done.batch.edited[B].any()
    assert outcome is not None
    expected = rollouts_by_hand(
        batch.old_logp, batch.mask, done.batch.advantages[:B], outcome, batch.rewards, batch.group
    )
    for key, value in expected.items():
        assert done.metrics[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key
    assert prepare(es.make_objective("grpo"), padded, real, 0.0).batch.edited is None


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
@pytest.mark.parametrize("objective", ["repo_r", None])
def test_trl_logs_what_its_dump_says(objective, tmp_path, monkeypatch):
    pytest.importorskip("trl", reason="trl is an extra")
    monkeypatch.setenv("CI", "1")  # TRL sends no telemetry then
    from trl_runs import entropy_trainer

    if objective is not None:
        objective = es.make_objective(objective, zeta=0.05, controller="none")
    trainer = entropy_trainer(
        tmp_path / "out", objective=objective, dump=tmp_path / "dump", max_steps=2,
        num_iterations=1,
    )  # fmt: skip
    trainer.train()
    text = (tmp_path / "dump" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["iteration"] for line in lines] == [1, 2]
    for line in lines:
        assert not any(key.startswith(online.PART) for key in line)
        dumped = of_dump(es.load_rollouts(tmp_path / "dump", line["iteration"]))
        kept = [key for key in dumped if "prompt" not in key]
        assert len(kept) == 13
        for key in kept:
            assert line[key] == pytest.approx(dumped[key], rel=2e-3, abs=1e-5), key
        assert ("touched/share" in line) == (objective is not None)
        assert "cov/prompt" in line


# ---------------------------------------------------------------------------- dumps and the page


def foreign_dump(iteration: int = 2, **changes) -> es.Rollouts:
    """Another trainer's: a token without a log-prob, a group without a signal, no entropy."""
    lengths = torch.tensor([2, 3, 1, 2])
    n = int(lengths.sum())
    lp = torch.tensor([-0.1, -2.0, NAN, -0.5, -3.0, -0.2, -1.0, -1.0])
    A = torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0, 1.0, 0.0, 0.0])
    return replace(
        es.Rollouts(
            iteration=iteration, prompts=["a"] * 3 + ["b"], completions=[""] * 4,
            rewards=torch.tensor([1.0, 0.0, 1.0, 1.0]), group=torch.tensor([0, 0, 0, 1]).int(),
            finished=torch.zeros(4, dtype=torch.bool), trained=torch.ones(4, dtype=torch.bool),
            start=torch.cat([torch.zeros(1).long(), lengths.cumsum(0)]),
            tokens=torch.arange(n).int(), logp=lp, sampler_logp=torch.full((n,), NAN),
            entropy=torch.full((n,), NAN), advantage=A, pieces={},
        ),
        **changes,
    )  # fmt: skip


def test_a_dump_gives_what_can_be_had():
    found = of_dump(foreign_dump())
    # tokens 0, 1, 3, 4, 5: without the unknown one and without prompt b
    lp, A = [-0.1, -2.0, -0.5, -3.0, -0.2], [1.0, 1.0, -1.0, -1.0, 1.0]
    mean_lp, mean_A = statistics.fmean(lp), statistics.fmean(A)
    cov = [(x - mean_lp) * (a - mean_A) for x, a in zip(lp, A, strict=True)]
    assert found["cov/mean"] == pytest.approx(statistics.fmean(cov), rel=1e-6)
    assert found["cov/top_20"] == pytest.approx(max(cov), rel=1e-6)
    assert found["quadrant/I"] == pytest.approx(2 / 5)  # .90 and .82
    assert (found["quadrant/II"], found["quadrant/III"]) == pytest.approx((1 / 5, 1 / 5))
    assert not any(key.startswith(("flow", "touched")) or key == "cov/update" for key in found)
    x = [-1.05, -1.75, -0.2]
    z = [math.exp(v) * a for v, a in zip(x, (1, -1, 1), strict=True)]
    mx, mz = statistics.fmean(x), statistics.fmean(z)
    eq7 = statistics.fmean((a - mx) * (b - mz) for a, b in zip(x, z, strict=True))
    assert found["cov/prompt"] == pytest.approx(eq7, rel=1e-5)
    # the sampler's log-probs where the trainer's are missing: now all tokens of prompt a count
    sampler = torch.full((8,), -0.7)
    assert of_dump(foreign_dump(sampler_logp=sampler))["quadrant/I"] == pytest.approx(2 / 6)
    entropy = torch.full((8,), 0.5)
    with_entropy = of_dump(foreign_dump(entropy=entropy))
    change = [-a * (1 - math.exp(x)) ** 2 * (x + 0.5) for x, a in zip(lp, A, strict=True)]
    assert with_entropy["flow/net"] == pytest.approx(statistics.fmean(change), rel=1e-5)
    nothing = torch.full((8,), NAN)
    assert of_dump(foreign_dump(advantage=nothing)) == {}
    assert of_dump(foreign_dump(logp=nothing)) == {}
    assert of_dump(foreign_dump(advantage=torch.zeros(8))) == {}


def make_run(lines: list[dict], **parts):
    from entrostat.logs.run import Run

    return Run(Path("run"), {}, "", "", lines, [], (), **parts)


def test_the_page_draws_what_was_logged():
    from entrostat.report.panels import run_panels
    from entrostat.report.tokens import with_dumps

    line = {"iteration": 1, "entropy/exact": 1.0, "flow/net": 0.1, "cov/mean": 0.01,
            "cov/update": 0.02, "cov/top_2": 0.5, "touched/share": 0.25, "touched/entropy": 2.0,
            "quadrant/I": 0.5, "quadrant/IV": 0.125}  # fmt: skip
    run = make_run([line], dumps={1: foreign_dump}, source="TRL")
    assert with_dumps(run) is run  # the log says more than a dump
    panels = {panel.title: panel for panel in run_panels(run)}
    shown = {title: {c.label: list(c.y) for c in panel.curves} for title, panel in panels.items()}
    assert shown["Token covariance"] == {
        "top 2 %": [0.5], "all": [0.01], "all, in the updates": [0.02]
    }  # fmt: skip
    assert shown["Touched tokens"] == {"": [0.25]}
    assert shown["Entropy of touched tokens"] == {"touched": [2.0], "all": [1.0]}
    assert shown["Quadrants"] == {"I": [0.5], "IV": [0.125]}


def test_the_page_reads_the_dumps_of_other_trainers(tmp_path):
    from entrostat.report.page import write_report
    from entrostat.report.panels import run_panels
    from entrostat.report.tokens import with_dumps

    def broken():
        raise ValueError("cut")

    lines = [{"iteration": i, "reward/mean": 0.5, "cov/mean": 7.0 * (i == 3)} for i in (1, 2, 3)]
    dumps = {1: broken, 2: foreign_dump, 3: lambda: foreign_dump(3), 9: lambda: foreign_dump(9)}
    run = with_dumps(make_run(lines, dumps=dumps, source="prime-rl"))
    assert [row["iteration"] for row in run.metrics] == [1, 2, 3]
    assert run.metrics[0] == lines[0]
    assert run.metrics[1]["quadrant/I"] == pytest.approx(0.4)
    assert run.metrics[2]["cov/mean"] == 7.0  # what the log has stays
    assert "from the rollouts of 2 iterations" in run.notes[-1]
    assert {"Token covariance", "Quadrants"} <= {panel.title for panel in run_panels(run)}
    unknown = {2: lambda: foreign_dump(advantage=torch.full((8,), NAN))}
    for bare in (make_run(lines[:2], dumps=unknown, source="x"), make_run(lines, dumps=dumps)):
        assert with_dumps(bare) is bare  # nothing to be had; ours logs what it has
    page = write_report(make_run(lines, dumps=dumps, source="prime-rl"), tmp_path / "page.html")
    assert "from the rollouts of 2 iterations" in page.read_text()


if __name__ == "__main__":
    rank_main(int(sys.argv[1]), Path(sys.argv[2]))
