"""`train --analyze`: what it measures is true, and it changes nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

import entrostat as es
from builders import json_lines
from entrostat.analysis import analysis
from entrostat.analysis.update_probe import UpdateProbe
from entrostat.config import from_dict
from entrostat.core.stats import TokenStats
from entrostat.evaluation.in_training import prompt_entropies
from entrostat.logs.rollouts import Rollouts, load_rollouts
from entrostat.models.loading import load_policy
from entrostat.models.policy_evaluator import PolicyEvaluator
from entrostat.models.rollout import Sequences
from long_cases import keep

# an analysis costs a pass for every place on the step, 5 where the step is small and 33 where it is
# large, times the micro-batches: two where the cut is what matters (`analysed`,
# `test_weights_are_the_same_with_and_without`), else one
SMALL: dict[str, Any] = {
    "iterations": 2, "sampling": {"prompts": 4, "rollouts": 4},
    "optim": {"micro_batch": 16, "lr": 1e-5},
}  # fmt: skip


def run(path: Path, every: int, **settings: Any) -> Path:
    data = {
        "output": str(path), "iterations": 3, "analyze": {"every": every}, "eval": {"prompts": 0},
        "sampling": {"prompts": 8, "rollouts": 6}, "optim": {"micro_batch": 48}, "seed": 1,
    }  # fmt: skip
    return es.train(from_dict(data | settings))


def lines(path: Path, name: str = "analysis.jsonl") -> list[dict[str, Any]]:
    return json_lines(path / name)


def sequences_of(rollouts: Rollouts, policy: Any) -> Sequences:
    """The rollouts as the policy's padded input, built anew from their texts' tokens."""
    prompts = [policy.encode(p, False, "") for p in rollouts.prompts]
    P, B = max(map(len, prompts)), len(rollouts)
    T = int(rollouts.start.diff().max())
    tokens = torch.full((B, P + T), policy.pad)
    attention = torch.zeros(B, P + T, dtype=torch.long)
    for i, prompt in enumerate(prompts):
        own = rollouts.tokens[rollouts.rows(i)].long()
        tokens[i, P - len(prompt) : P] = torch.tensor(prompt)
        tokens[i, P : P + len(own)] = own
        attention[i, P - len(prompt) : P + len(own)] = 1
    mask = attention[:, P:].bool()
    return Sequences(
        tokens, attention, P, mask, torch.zeros(B, T), rollouts.finished, rollouts.group.long()
    )


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    optim = {"micro_batch": 24, "lr": 1e-4}
    return run(tmp_path_factory.mktemp("run") / "a", 1, iterations=2, optim=optim)


METHODS = ["clip_cov", ["repo_r", "entropy_bonus"]]


@pytest.mark.parametrize("method", keep(METHODS, METHODS[1]))
def test_weights_are_the_same_with_and_without(tmp_path: Path, method: Any) -> None:
    """Also where an iteration follows on the analysed one."""
    settings = SMALL | {"optim": {"micro_batch": 8 if method == "clip_cov" else 16, "lr": 1e-5}}
    on = run(tmp_path / "on", 5, method=method, **settings)  # the first is always analysed
    off = run(tmp_path / "off", 0, method=method, **settings)
    name = "final/model.safetensors"
    assert (on / name).read_bytes() == (off / name).read_bytes()
    for with_, without in zip(lines(on, "metrics.jsonl"), lines(off, "metrics.jsonl"), strict=True):
        shared = {k: v for k, v in without.items() if not k.startswith("time/")}
        assert {k: with_[k] for k in shared} == shared
    assert not (off / "analysis.jsonl").exists()
    assert load_rollouts(off).change is None


@pytest.mark.long
def test_every(tmp_path: Path) -> None:
    done = run(tmp_path / "a", 3, **SMALL | {"iterations": 4}, save={"rollouts_every": 1})
    assert [line["iteration"] for line in lines(done)] == [1, 3]
    found = [load_rollouts(done, i).influence is not None for i in range(1, 5)]
    assert found == [True, False, True, False]
    timed = ["time/analysis" in line for line in lines(done, "metrics.jsonl")]
    assert timed == [True, False, True, False]


@pytest.mark.long
def test_a_resumed_run_repeats_its_analyses(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 1, method="clip_cov", **SMALL)
    run(tmp_path / "part", 1, method="clip_cov", **SMALL | {"iterations": 1})
    config = es.config.load(tmp_path / "part" / "config.toml")
    es.train(from_dict(config | {"iterations": 2}), resume=True)

    def timeless(path: Path) -> list[dict[str, Any]]:
        return [{k: v for k, v in x.items() if "time/" not in k} for x in lines(path)]

    assert timeless(tmp_path / "part") == timeless(whole)


def test_change_is_the_entropy_after_minus_before(analysed: Path) -> None:
    rollouts = load_rollouts(analysed, 2)
    config = from_dict({"model": str(analysed / "final")})
    policy = load_policy(config)
    sequences = sequences_of(rollouts, policy)
    with torch.no_grad():
        logits = policy.model(
            sequences.tokens, attention_mask=sequences.attention,
            position_ids=(sequences.attention.cumsum(-1) - 1).clamp(min=0),
        ).logits.double()  # fmt: skip
    P = sequences.prompt_width
    p = logits[:, P - 1 : -1].log_softmax(-1)
    after = -(p.exp() * p).sum(-1)[sequences.mask]
    assert rollouts.change is not None
    assert torch.allclose(after.float(), rollouts.entropy + rollouts.change, atol=1e-5)
    mean = float((after - rollouts.entropy).mean())
    assert lines(analysed)[-1]["change/mean"] == pytest.approx(mean, abs=1e-6)


def test_influences_add_up_to_the_predicted_change(analysed: Path) -> None:
    for line in lines(analysed):
        assert line["influence/sum"] == pytest.approx(line["influence/predicted"], rel=1e-3)
        flow = line["flow"]["influence"]
        assert flow["net"] == pytest.approx(line["influence/sum"], rel=1e-6)
    for i, line in enumerate(lines(analysed), 1):
        rollouts = load_rollouts(analysed, i)
        assert rollouts.influence is not None
        assert float(rollouts.influence.double().sum()) == pytest.approx(line["influence/sum"])


@pytest.mark.parametrize(
    "method", ["grpo", "gspo", "steer", ["ppo", "entropy_bonus"], ["kl_cov"]], ids=str
)
def test_influence_is_what_one_step_does(tmp_path: Path, method: Any) -> None:
    """One update per iteration, without momentum: influences add up to its first-order change."""
    done = run(
        # AdamW's preconditioner has a past in the second iteration
        tmp_path / "a", 1, method=method, iterations=2 if method == "grpo" else 1,
        sampling={"prompts": 6, "rollouts": 4},
        optim={"epochs": 1, "minibatches": 1, "lr": 1e-5, "betas": [0.0, 0.95], "micro_batch": 24},
    )  # fmt: skip
    for line in lines(done):
        assert line["influence/sum"] == pytest.approx(line["change/first_order"], rel=5e-3)
        # the tokens' changes cancel in their mean, so its error is held against all that flows
        flow = line["flow"]["change"]
        N = sum(row["tokens"] for row in line["position"])
        error = abs(line["change/simpson"] - line["change/mean"])
        assert error < 0.005 * (flow["increase"] + flow["decrease"]) / N
        assert line["estimators"]["simpson"]["where"]["pcc"] > 0.999


def test_tables_add_up(analysed: Path) -> None:
    for line in lines(analysed):
        for name in ("quadrants", "correct"):
            table = line[name].values()
            assert sum(row["share"] for row in table) == pytest.approx(1)
            assert sum(row["change"] for row in table) == pytest.approx(line["change/mean"])
            assert sum(row["influence"] for row in table) == pytest.approx(line["influence/sum"])
        rows = line["position"]
        assert sum(row["change"] for row in rows) == pytest.approx(line["change/mean"])
        assert sum(row["influence"] for row in rows) == pytest.approx(line["influence/sum"])
        tokens = line["tokens"]  # the tiny policy has fewer than 30, so that these are all
        assert sum(row["influence"] for row in tokens) == pytest.approx(line["influence/sum"])
        assert sum(row["count"] for row in tokens) == sum(row["tokens"] for row in rows)
        assert line["covariance"]["1"] == pytest.approx(line["cov/mean"])


def test_covariance_of_thm_1_is_that_of_the_trained_tokens(analysed: Path) -> None:
    """Cov(log p, p A) over the tokens that are trained on (COV Thm 1, PAR Eq. 16)."""
    line = next(line for line in lines(analysed) if line["iteration"] == 2)
    rollouts = load_rollouts(analysed, 2)
    used = rollouts.trained.repeat_interleave(rollouts.start.diff())
    lp, A = (x[used].double() for x in (rollouts.logp, rollouts.advantage))
    expected = (lp * lp.exp() * A).mean() - lp.mean() * (lp.exp() * A).mean()
    assert abs(float(expected)) > 1e-3
    assert line["cov/pg_mean"] == pytest.approx(float(expected), rel=1e-3)


def test_points_are_tokens_of_the_rollouts(analysed: Path) -> None:
    """(entropy, change) and (covariance, change) of tokens that are trained on."""
    rollouts, line = load_rollouts(analysed, 2), lines(analysed)[1]
    assert rollouts.change is not None
    used = rollouts.trained.repeat_interleave(rollouts.start.diff())
    lp, A = (x[used].double() for x in (rollouts.logp, rollouts.advantage))
    cov = (lp - lp.mean()) * (A - A.mean())
    change, n = rollouts.change[used].double(), int(used.sum())
    some = torch.arange(0, n, math.ceil(n / analysis.CLOUD))
    for name, expected in (("entropy", rollouts.entropy[used].double()), ("cov", cov)):
        found = torch.tensor(line["cloud"][name]).double()
        assert torch.allclose(found[:, 0], expected[some], rtol=1e-3, atol=1e-5)
        assert torch.allclose(found[:, 1], change[some], rtol=1e-3, atol=1e-6)
    assert line["weight/mean"] == 1


def test_entropy_by_reward_is_that_of_the_rollouts(analysed: Path) -> None:
    rollouts = load_rollouts(analysed, 2)
    right = (rollouts.rewards >= 1).repeat_interleave(rollouts.start.diff())
    H = rollouts.entropy.double()
    found = lines(analysed)[1]["entropy"]
    assert found["right"] == pytest.approx(float(H[right].mean()), rel=1e-5)
    assert found["wrong"] == pytest.approx(float(H[~right].mean()), rel=1e-5)
    plus = rollouts.advantage > 0
    assert found["positive"] == pytest.approx(float(H[plus].mean()), rel=1e-5)


def test_right_is_what_the_task_says_where_a_method_shapes_rewards(tmp_path: Path) -> None:
    done = run(tmp_path / "a", 1, method="unlikeliness", **SMALL | {"iterations": 1})
    rollouts, (line,) = load_rollouts(done), lines(done)
    assert 0 < rollouts.rewards.mean() < 1
    right = (rollouts.rewards >= 1).repeat_interleave(rollouts.start.diff())
    assert line["correct"]["right"]["share"] == pytest.approx(float(right.double().mean()))


@pytest.mark.long
def test_lora_and_a_large_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entrostat.models.capabilities.SMALLEST_VOCABULARY", 4)
    small = SMALL | {"optim": {"micro_batch": 16, "lr": 1e-4}}
    done = run(tmp_path / "a", 1, lora={"rank": 2}, **small)
    assert load_policy(from_dict({})).head is not None
    for line in lines(done):
        assert line["influence/sum"] == pytest.approx(line["influence/predicted"], rel=1e-2)
    assert lines(done)[1]["change/mean"] != 0


@pytest.mark.long
def test_bf16_training_is_analysed_in_float32(tmp_path: Path) -> None:
    small = SMALL | {"optim": {"micro_batch": 16, "lr": 1e-4}}
    done = run(tmp_path / "a", 1, precision="bf16", **small)
    (_, second) = lines(done)
    assert second["change/simpson"] == pytest.approx(second["change/mean"], rel=0.05)


def test_no_number_without_a_word_in_json() -> None:
    line = {"a": float("nan"), "b": [float("inf"), 1.0], "c": {"d": -float("inf")}, "e": "x"}
    assert analysis.finite(line) == {"a": None, "b": [None, 1.0], "c": {"d": None}, "e": "x"}


def test_calibration_and_diversity_are_those_of_the_texts(analysed: Path) -> None:
    """The policy writes a character a token, so that n-grams of tokens are those of characters."""
    rollouts = load_rollouts(analysed, 2)
    found = lines(analysed)[1]
    mean = torch.tensor([float(rollouts.logp[rollouts.rows(i)].mean()) for i in range(48)])
    right = rollouts.rewards >= 1
    assert found["calibration"]["right"] == pytest.approx(float(mean[right].mean()), rel=1e-5)
    assert found["calibration"]["wrong"] == pytest.approx(float(mean[~right].mean()), rel=1e-5)
    better = (mean[right][:, None] > mean[~right]).double().mean()
    assert found["calibration"]["auc"] == pytest.approx(float(better), abs=1e-6)
    shares = []
    for g in range(8):
        # an end is a token too
        own = [
            rollouts.completions[i] + "$" * bool(rollouts.finished[i])
            for i in range(48)
            if rollouts.group[i] == g
        ]
        for n in range(1, 5):
            grams = [text[i : i + n] for text in own for i in range(len(text) - n + 1)]
            shares.append(len(set(grams)) / len(grams))
    assert found["diversity"]["ngram"] == pytest.approx(sum(shares) / len(shares))
    assert 0 < found["diversity"]["self_bleu"] < 1


# --- update by update


class Table:
    """A policy of one softmax a place, in place of a network: `logits` is [B, T, V] float64."""

    def __init__(self, logits: torch.Tensor, ids: torch.Tensor) -> None:
        self.logits, self.ids = logits, ids

    def token_stats(self, rows: Any, temperature: float, moments: bool = False) -> TokenStats:
        p = self.logits[rows.own].log_softmax(-1)
        logp = p.gather(-1, self.ids[rows.own][..., None])[..., 0]
        p2 = p.exp() ** 2
        return TokenStats(logp, -(p.exp() * p).sum(-1), p2.sum(-1), (p2 * p).sum(-1))

    def measure(self, rows: Any, temperature: float, micro_batch: int) -> TokenStats:
        return self.token_stats(rows, temperature)


class Rows:
    """As much of `Sequences` as is asked for: row numbers."""

    def __init__(self, own: torch.Tensor) -> None:
        self.own = self.tokens = own

    def __getitem__(self, rows: torch.Tensor) -> Rows:
        return Rows(self.own[rows])


def stats_by_loop(logits: torch.Tensor, token: int) -> tuple[float, float]:
    """log p of a token and the entropy of its softmax."""
    weights = [math.exp(z) for z in logits.tolist()]
    p = [w / sum(weights) for w in weights]
    return math.log(p[token]), -sum(q * math.log(q) for q in p)


def test_an_update_is_measured_as_it_is_made() -> None:
    """Ratio, clip, Eq. 6 and STEER's eta/L by loops over tokens, in a table whose change is set."""
    g = torch.Generator().manual_seed(2)
    B, T, V = 6, 32, 5
    old, one, two = (torch.randn(B, T, V, generator=g).double() * s for s in (1.0, 0.6, 0.3))
    ids = torch.randint(V, (B, T), generator=g)
    mask = torch.rand(B, T, generator=g) < 0.8
    A = torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, -2.0]).double()
    policy = Table(old.clone(), ids)
    start = policy.token_stats(Rows(torch.arange(B)), 1.0)
    trained = es.TokenBatch(
        start.logp, start.logp, mask, A[:, None].expand(B, T).clone(),
        entropy=start.entropy, old_entropy=start.entropy,
    )  # fmt: skip
    meter = PolicyEvaluator(policy, 1.0, 2)  # type: ignore
    objective = es.make_objective(["grpo", {"name": "ppo", "low": 0.2, "high": 0.28}])
    watch = UpdateProbe(meter, objective, trained, Rows(torch.arange(B)), g)  # type: ignore
    whole, some, lr = torch.arange(B), torch.tensor([5, 0, 3, 2]), 0.01
    batch = watch.before(whole)
    policy.logits = old + one
    watch.after(whole, batch, lr)
    batch = watch.before(some)
    policy.logits = old + one + two
    watch.after(some, batch, lr)

    first, second = watch.updates
    assert (first["update"], second["update"]) == (1, 2)
    assert first["ratio"] == {"min": pytest.approx(1), "max": pytest.approx(1)}
    assert first["clipped"]["high"] == {"share": 0, "opefo": 0, "in_update": 0}
    truth, ratio, omega, sides = [], [], [], {"high": [], "low": []}
    every, more = [], []
    tenths = {side: [0] * 10 for side in ("tokens", "high", "low")}
    for b, t in mask.nonzero().tolist():  # the first update holds no token
        tenths["tokens"][int(10 * math.exp(stats_by_loop(old[b, t], int(ids[b, t]))[0]))] += 1
    for b in some.tolist():
        for t in range(T):
            if not mask[b, t]:
                continue
            token, a = int(ids[b, t]), float(A[b])
            lp0, _ = stats_by_loop(old[b, t], token)
            lp, H = stats_by_loop((old + one)[b, t], token)
            _, after = stats_by_loop((old + one + two)[b, t], token)
            r, p = math.exp(lp - lp0), math.exp(lp)
            if a > 0 and 1.2 < r <= 1.28:
                more.append((lp, a))
            every.append((lp, a))
            side = "high" if a > 0 and r > 1.28 else "low" if a < 0 and r < 0.8 else None
            tenths["tokens"][int(10 * math.exp(lp0))] += 1
            if side:
                tenths[side][int(10 * math.exp(lp0))] += 1
                sides[side].append((-a * (1 - p) ** 2 * (lp + H), after - H))
            truth.append(after - H)
            ratio.append(r)
            omega.append(0 if side else -a / math.exp(lp0) * p * (1 - p) * (lp + H))
    N = len(truth)
    assert all(len(found) >= 2 for found in sides.values())
    assert (second["tokens"], second["change"]) == (N, pytest.approx(sum(truth) / N))
    assert second["ratio"] == {"min": pytest.approx(min(ratio)), "max": pytest.approx(max(ratio))}
    for side, found in sides.items():
        assert second["clipped"][side] == {
            "share": len(found) / N,
            "opefo": pytest.approx(sum(dH for dH, _ in found)),
            "in_update": pytest.approx(sum(change for _, change in found)),
        }
        sums = {key: first["clipped"][side][key] + second["clipped"][side][key]
                for key in ("opefo", "in_update")}  # fmt: skip
        assert watch.clipped()[side] == sums
    found = second["estimators"]["omega"]
    error = [lr / N * guess - change for guess, change in zip(omega, truth, strict=True)]
    assert found["mse_eta_l"] == pytest.approx(sum(e * e for e in error) / N)
    raw = [guess - change for guess, change in zip(omega, truth, strict=True)]
    assert found["mse"] == pytest.approx(sum(e * e for e in raw) / N)
    assert found["pcc"] == pytest.approx(float(np.corrcoef(omega, truth)[0, 1]))
    by_probability = zip(*tenths.values(), strict=True)
    assert watch.clipped_by_probability() == [
        {"from": i / 10, "to": (i + 1) / 10, "tokens": n, "high": high, "low": low}
        for i, (n, high, low) in enumerate(by_probability)
        if n
    ]
    lps, As = (sum(column) / N for column in zip(*every, strict=True))
    cov = [(lp - lps) * (a - As) for lp, a in more]
    assert len(cov) >= 2
    assert watch.clip_higher() == pytest.approx(sum(cov) / len(cov))
    mean = (first["estimators"]["omega"]["pcc"] + found["pcc"]) / 2
    assert watch.estimators()["omega"]["pcc"] == pytest.approx(mean)


def test_changes_of_the_updates_add_up(tmp_path: Path) -> None:
    """Two updates on all that is trained on: their changes are the iteration's."""
    done = run(
        tmp_path / "a", 1, iterations=1, optim={"epochs": 2, "minibatches": 1, "lr": 5e-4},
    )  # fmt: skip
    for line in lines(done):
        rollouts = load_rollouts(done, line["iteration"])
        assert rollouts.change is not None
        trained = rollouts.trained.repeat_interleave(rollouts.start.diff())
        first, second = line["updates"]
        assert first["tokens"] == second["tokens"] == int(trained.sum())
        total = float(rollouts.change.double()[trained].mean())
        assert first["change"] + second["change"] == pytest.approx(total, abs=1e-6)
        assert first["ratio"] == {
            "min": pytest.approx(1, abs=1e-4),
            "max": pytest.approx(1, abs=1e-4),
        }
        assert second["ratio"]["max"] > 1.2
        assert line["clipped"]["high"]["opefo"] != 0


def test_a_sequences_ratio_is_held_against_a_sequences_bounds(tmp_path: Path) -> None:
    """GSPO's bounds are for a response's ratio: all of its tokens are clipped, or none."""
    done = run(
        tmp_path / "a", 1, iterations=1, method="gspo", optim={"lr": 3e-5},
    )  # fmt: skip
    (line,) = lines(done)
    policy = load_policy(from_dict({"model": str(done / "final")}))
    rollouts = load_rollouts(done, 1)
    with torch.no_grad():
        after = policy.token_stats(sequences_of(rollouts, policy), 1.0).logp
    high = 0
    for i in range(len(rollouts)):
        own = rollouts.rows(i)
        n = own.stop - own.start
        s = float((after[i, :n] - rollouts.logp[own]).mean().exp())
        if bool(rollouts.trained[i]):
            high += n * (float(rollouts.advantage[own][0]) > 0 and s > 1 + 4e-4)
    assert line["clipped"]["high"]["share"] == pytest.approx(high / len(rollouts.tokens))
    assert high > 0


# --- whole responses


def test_prompt_covariance_is_that_of_the_rollouts(analysed: Path) -> None:
    """COV Eq. 7 per prompt by numpy, thirds by scipy's ranks."""
    for line in lines(analysed):
        rollouts = load_rollouts(analysed, line["iteration"])
        cov, reward = [], []
        for g in rollouts.group.unique():
            rows = (rollouts.group == g).nonzero()[:, 0].tolist()
            R = rollouts.rewards[rows].double().numpy()
            if np.ptp(R) == 0:
                continue
            x = np.array([float(rollouts.logp[rollouts.rows(i)].double().mean()) for i in rows])
            A = (R - R.mean()) / (R.std(ddof=1) + 1e-6)
            cov.append(np.cov(x, np.exp(x) * A, ddof=0)[0, 1])
            reward.append(R.mean())
        found = line["prompt_covariance"]
        assert found["mean"] == pytest.approx(np.mean(cov), rel=1e-4)
        third = np.floor(3 * (rankdata(reward) - 0.5) / len(reward))
        for i, name in enumerate(("hard", "middle", "easy")):
            if not (third == i).any():
                assert name not in found
                continue
            assert found[name]["prompts"] == (third == i).sum()
            assert found[name]["cov"] == pytest.approx(np.mean(np.array(cov)[third == i]), rel=1e-4)
            mean = np.mean(np.array(reward)[third == i])
            assert found[name]["reward"] == pytest.approx(mean, rel=1e-5)


def test_response_mean_by_hand(analysed: Path) -> None:
    for logged in lines(analysed, "metrics.jsonl"):
        rollouts = load_rollouts(analysed, logged["iteration"])
        H = [float(rollouts.entropy[rollouts.rows(i)].mean()) for i in range(len(rollouts))]
        assert logged["entropy/response_mean"] == pytest.approx(np.mean(H), rel=1e-5)
        assert logged["entropy/response_mean"] != pytest.approx(logged["entropy/exact"], rel=1e-3)


def test_entropy_of_prompts_is_that_of_each_alone(tmp_path: Path) -> None:
    config = from_dict({"sampling": {"temperature": 0.7}, "optim": {"micro_batch": 2}})
    policy = load_policy(config)
    prompts = [policy.encode(text, False, "") for text in ("7/2:", "23/4:", "7", "18/3:1+")]
    assert len({len(ids) for ids in prompts}) == 4
    for ids, got in zip(prompts, prompt_entropies(policy, prompts, config), strict=True):
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([ids])).logits[0].double() / 0.7
        p = logits.log_softmax(-1)[:-1]  # the last predicts the response
        H = -(p.exp() * p).sum(-1)
        if len(ids) == 1:
            assert math.isnan(float(got))
        else:
            assert float(got) == pytest.approx(float(H.mean()), rel=1e-5)
    alone = prompt_entropies(policy, [prompts[2]], config)
    assert alone.isnan().all()

    done = run(tmp_path / "a", 0, iterations=1, eval={"prompts": 3, "samples": 2})
    rows, answers = lines(done, "evaluation.jsonl"), lines(done, "answers.jsonl")
    for row in rows:
        own = [
            answer["prompt_entropy"]
            for answer in answers
            if (answer["iteration"], answer["split"]) == (row["iteration"], row["split"])
        ]
        assert row["prompt_entropy"] == pytest.approx(sum(own) / 3)
    before, after = (r["prompt_entropy"] for r in (rows[0], rows[-1]))
    assert before != after
