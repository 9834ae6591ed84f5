"""What all hosts share: how rollouts look, which are idle, what penalties do there, figures."""

import math

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from entrostat.core.rollouts import (
    MetricAccumulator,
    describe,
    idle_groups,
    of_kinds,
    outcome_figures,
)
from entrostat.dynamics import online

NAN = math.nan
# three groups: with a signal; without; of which one rollout has no reward
REWARDS = [1.0, 0.0, 0.5, 1.0, 1.0, 1.0, 0.0, NAN]
GROUP = [7, 7, 7, 3, 3, 9, 9, 9]
LENGTHS = [1, 4, 2, 3, 4, 2, 1, 4]
PENALTIES = [{"name": "entropy_bonus", "coef": 0.3}, {"name": "kl_ref", "coef": 0.2}]


def make_batch(seed: int = 0, **changes) -> es.TokenBatch:
    g = torch.Generator().manual_seed(seed)

    def rand() -> torch.Tensor:
        return torch.rand(8, 4, generator=g, dtype=torch.float64)

    old = -3 * rand()
    data = {
        "logp": old + 0.6 * (rand() - 0.5), "old_logp": old,
        "mask": torch.arange(4) < torch.tensor(LENGTHS)[:, None],
        "rewards": torch.tensor(REWARDS, dtype=torch.float64), "group": torch.tensor(GROUP),
        "entropy": rand(), "old_entropy": rand(), "ref_logp": old + 0.3 * (rand() - 0.5),
    }  # fmt: skip
    return es.TokenBatch(**data | changes)


def test_how_rollouts_look() -> None:
    batch = make_batch()
    found = describe(batch)
    H, lp = batch.old_entropy[batch.mask], batch.old_logp[batch.mask]
    each = [row[:n].mean() for row, n in zip(batch.old_entropy, LENGTHS, strict=True)]
    # between the prompts: P / (P - 1) sum of (S_p - mean N_p)^2, over the tokens
    sums = {p: sum(float(row[:n].sum()) for row, n, g in zip(batch.old_entropy, LENGTHS, GROUP,
            strict=True) if g == p) for p in set(GROUP)}  # fmt: skip
    sizes = {p: sum(n for n, g in zip(LENGTHS, GROUP, strict=True) if g == p) for p in sums}
    off = sum((sums[p] - float(H.mean()) * sizes[p]) ** 2 for p in sums)
    surprise = [-row[:n].mean() for row, n in zip(batch.old_logp, LENGTHS, strict=True)]
    assert found == pytest.approx(
        {
            "entropy/exact": float(H.mean()),
            "entropy/stderr": math.sqrt(len(sums) / (len(sums) - 1) * off) / 21,
            "entropy/response_mean": float(sum(each)) / 8,
            "entropy/nll": -float(lp.mean()),
            "entropy/perplexity": sum(math.exp(x) for x in surprise) / 8,
            "reward/mean": 4.5 / 7,
            # of (1, 0, .5): sqrt(1/6); of (1, 1): 0; of (1, 0): 1/2
            "reward/std_in_group": (math.sqrt(1 / 6) + 0 + 0.5) / 3,
            "reward/best_in_group": 1.0,
            "groups/all_right": 1 / 3,
            "groups/all_wrong": 0.0,
            "groups/mixed": 2 / 3,
            "rollout/length_mean": 21 / 8,
            "rollout/length_max": 4.0,
            "rollout/tokens": 21.0,
        },
        rel=1e-12,
    )
    assert describe(batch, torch.full((8,), 9))["rollout/length_mean"] == 9


def test_a_batch_of_masked_rollouts_moves_no_controller() -> None:
    """As where TRL masks truncated completions and the first ones all are."""
    batch = make_batch(mask=torch.zeros(8, 4, dtype=torch.bool))
    found = describe(batch, torch.tensor(LENGTHS))
    assert math.isnan(found["entropy/exact"])
    assert math.isnan(found["entropy/stderr"])
    for method in ("thermostat", {"name": "repo_r"}):
        objective = es.make_objective(method)
        objective.observe_figures(found, 0.0)
        objective.observe_figures(describe(make_batch()), 0.1)
        target = objective.metrics()["control/target"]
        assert target == pytest.approx(describe(make_batch())["entropy/exact"])


def test_group_outcomes_and_advantages_by_hand() -> None:
    rewards = torch.tensor([1.0, 1.0, 0.0, -1.0, 0.5, 0.5, 1.0, 0.0])
    batch = make_batch().replace(rewards=rewards, group=torch.arange(8) // 2)
    found = describe(batch)
    shares = {key: found[f"groups/{key}"] for key in ("all_right", "all_wrong", "mixed")}
    assert shares == {"all_right": 0.25, "all_wrong": 0.25, "mixed": 0.5}
    # quantiles of -3 .. 4: between neighbours in proportion
    graded = batch.replace(advantages=torch.arange(8.0) - 3, idle=torch.zeros(8).bool())
    assert outcome_figures(graded) == {
        "rollout/zero_advantage_groups": 0.0, "advantage/min": -3.0,
        "advantage/p10": pytest.approx(-2.3), "advantage/p50": 0.5,
        "advantage/p90": pytest.approx(3.3), "advantage/max": 4.0,
    }  # fmt: skip
    kinds = ["a", "b", "a", None, "b", "b", "a", "c"]
    assert of_kinds(rewards, kinds) == {
        "rewards/a/mean": pytest.approx(2 / 3), "rewards/b/mean": pytest.approx(2 / 3),
        "rewards/c/mean": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize("known", [True, False])
def test_who_is_idle(known) -> None:
    batch = make_batch()
    if not known:
        batch = batch.replace(rewards=torch.full((8,), NAN))
    found = es.make_objective("loop").compute_advantages(batch)
    # leave-one-out: of (1, 0, .5), and of (1, 0) alone
    wanted = [0.75, -0.75, 0.0, 0.0, 0.0, 1.0, -1.0, 0.0] if known else [0.0] * 8
    assert found.advantages.tolist() == wanted
    idle = [False] * 3 + [True, True] + [False] * 2 + [True] if known else [True] * 8
    assert found.idle.tolist() == idle
    assert idle_groups(found) == (1 if known else 3)
    rows, part = es.make_objective("loop").drop_zero_advantage(found)
    assert rows.tolist() == [i for i, no in enumerate(idle) if not no]
    assert part.idle is None
    assert len(es.make_objective("entropy_bonus").drop_zero_advantage(found)[0]) == 8


def penalties_by_hand(batch: es.TokenBatch, aggregation: str) -> torch.Tensor:
    """-.3 mean H over all sampled tokens, .2 k3 over all, aggregated as the policy term is."""
    d = batch.ref_logp - batch.logp
    each = [x[:n] for x, n in zip(d.exp() - d - 1, LENGTHS, strict=True)]
    kl = {
        "token_mean": torch.cat(each).mean(),
        "seq_mean_token_mean": torch.stack([x.mean() for x in each]).mean(),
        "seq_mean_token_sum_norm": torch.stack([x.sum() for x in each]).mean() / 4,
    }
    return -0.3 * batch.entropy[batch.mask].mean() + 0.2 * kl[aggregation]


@pytest.mark.parametrize(
    "aggregation", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"]
)
@pytest.mark.parametrize("method", ["ppo", "gspo", "clip_cov", "kl_cov", "steer"])
def test_penalties_act_on_all_and_methods_on_those_with_a_signal(method, aggregation) -> None:
    given = {"name": method} | ({"ratio": 0.2, "low": 0.0} if method == "clip_cov" else {})
    surrogate = [] if method in ("ppo", "gspo") else ["ppo"]
    build = lambda more: es.make_objective(  # noqa: E731
        ["rloo", *surrogate, given, *more], aggregation=aggregation, max_length=4
    )
    leaves = [make_batch().logp.clone(), make_batch().entropy.clone()]
    for x in leaves:
        x.requires_grad_()
    batch = make_batch(logp=leaves[0], entropy=leaves[1])
    plain, whole = build([]), build(PENALTIES)
    prepared = whole.prepare(whole.compute_advantages(batch))
    assert (prepared.advantages != 0).any(-1).tolist() == [1, 1, 0, 0, 0, 1, 1, 0]
    out = whole.loss(prepared, None, torch.Generator().manual_seed(1))
    got = torch.autograd.grad(out.loss, leaves, retain_graph=True)
    # the policy term: of a batch in which the idle rollouts never were
    _, live = plain.drop_zero_advantage(plain.compute_advantages(batch))
    alone = plain.loss(plain.prepare(live), None, torch.Generator().manual_seed(1))
    by_hand = alone.loss + penalties_by_hand(batch, aggregation)
    assert_close(out.loss, by_hand, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(
        got, torch.autograd.grad(by_hand, leaves, retain_graph=True), strict=True
    ):
        assert_close(mine, theirs, rtol=1e-10, atol=1e-14)
    # what is logged is the policy term's
    for key in alone.metrics.keys() - {"loss/total"}:
        assert_close(out.metrics[key], alone.metrics[key], rtol=1e-12, atol=1e-12)
    # and micro-batches add up
    halves = [slice(0, 3), slice(3, 8)]
    terms = whole.plan(prepared, torch.Generator().manual_seed(1))
    parts = [whole.loss(prepared[rows], terms[rows]) for rows in halves]
    assert_close(sum(x.loss for x in parts), out.loss, rtol=1e-12, atol=1e-14)
    sums = [online.of_update(prepared[rows], x) for rows, x in zip(halves, parts, strict=True)]
    added = {key: float(sum(x[key] for x in sums)) for key in sums[0]}
    one = {key: float(x) for key, x in online.of_update(prepared, out).items()}
    assert online.figures(added) == pytest.approx(online.figures(one), rel=1e-9, abs=1e-12)


def test_penalties_where_no_group_has_a_signal() -> None:
    objective = es.make_objective(["rloo", "ppo", *PENALTIES])
    batch = make_batch(rewards=torch.ones(8, dtype=torch.float64))
    prepared = objective.prepare(objective.compute_advantages(batch))
    out = objective.loss(prepared)
    assert_close(out.loss, penalties_by_hand(batch, "token_mean"), rtol=1e-12, atol=1e-14)
    found = online.figures({k: float(x) for k, x in online.of_update(prepared, out).items()})
    assert found["loss/total"] == pytest.approx(float(out.loss), rel=1e-12)
    assert "clip/high" not in found  # a share of no token


def test_an_iterations_figures_are_of_all_tokens_of_its_updates() -> None:
    """Updates of 5 and of 16 tokens; on the first every ratio is 1 and nothing is clipped."""
    objective = es.make_objective("grpo", low=0.05, high=0.05)
    A = torch.tensor([1.0, -1.0] * 4, dtype=torch.float64)
    batch = make_batch(advantages=A)
    tally, clipped, ratios, n = MetricAccumulator(), 0, 0.0, 0
    for fresh, rows in ((True, slice(0, 2)), (False, slice(2, 8))):
        part = batch[rows]
        plan = objective.step(part, fresh=fresh)
        out = plan.loss(plan.at(part.logp, part.entropy))
        tally.add({k: float(x) for k, x in online.of_update(out.batch, out).items()})
        tally.add({"grad/norm": 1.0 if fresh else 4.0})
        r = torch.ones_like(part.logp) if fresh else (part.logp - part.old_logp).exp()
        ratios += float(r[part.mask].sum())
        clipped += int(((r > 1.05) & (A[rows, None] > 0) & part.mask).sum())
        n += int(part.mask.sum())
    found = tally.figures()
    assert (n, clipped > 2) == (21, True)
    assert found["clip/high"] == pytest.approx(clipped / 21, rel=1e-12)
    assert found["ratio/mean"] == pytest.approx(ratios / 21, rel=1e-12)
    assert found["grad/norm"] == 2.5  # of an update, not of a token


def test_rollouts_without_a_reward_beside_those_of_another_temperature() -> None:
    ones = torch.ones(6, 2)
    batch = es.TokenBatch(
        -ones, -ones, ones, rewards=torch.tensor([1.0, NAN, 0.0, 1.0, 0.0, 1.0]),
        # of prompt 0 one reward at the usual temperature, two at another; of prompt 1 the reverse
        group=torch.tensor([0, 0, 0, 0, 1, 1]),
        tempered=torch.tensor([False, False, True, True, False, True]),
    )  # fmt: skip
    found = es.make_objective("loop").compute_advantages(batch)
    # leave-one-out of (0, 1); each of the others has nobody to be compared with
    assert found.advantages.tolist() == [0, 0, -1, 1, 0, 0]
    assert found.idle.tolist() == [True, True, False, False, True, True]


# ------------------------------------------------------------------ two calls a trainer makes


def figures_of(batch: es.TokenBatch) -> dict[str, float]:
    """Half of its first entropy, so that a controller with a target acts."""
    return describe(batch) | {"entropy/exact": 0.5 * describe(batch)["entropy/exact"]}


@pytest.mark.parametrize("method", ["loop", ["rloo", "ppo", "repo_r"], ["rloo", "ppo", *PENALTIES]])
def test_rollouts_are_its_parts_in_their_order(method) -> None:
    batch = make_batch(rewards=torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0]))
    one, other = es.make_objective(method), es.make_objective(method)
    found = one.rollouts(batch, figures_of(batch), progress=0.0)
    figures = figures_of(batch)
    other.observe(
        entropy=figures["entropy/exact"], nll=figures["entropy/nll"], progress=0.0,
        stderr=figures["entropy/stderr"],
    )  # fmt: skip
    graded = other.compute_advantages(batch)
    wanted = other.prepare(graded)
    assert torch.equal(found.advantages, wanted.advantages)
    assert torch.equal(found.idle, wanted.idle)
    assert torch.equal(found.outcome, graded.advantages)
    assert one.metrics() == other.metrics()


def test_what_other_models_say_is_asked_of_the_rows_that_are_trained_on() -> None:
    """The second group, rows 3 and 4, has no signal: its reference is not asked for."""
    batch = make_batch(rewards=torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]))
    asked: list[list[int]] = []

    def fill(rows: torch.Tensor, part: es.TokenBatch) -> es.TokenBatch:
        asked.append(rows.tolist())
        return part.replace(ref_logp=part.old_logp - rows[:, None].double())

    plain = es.make_objective("loop").rollouts(batch.replace(ref_logp=None), fill=fill)
    assert asked == [[0, 1, 2, 5, 6, 7]]
    rows = torch.arange(8.0, dtype=torch.float64)[:, None]
    wanted = torch.where(plain.idle[:, None], 0, torch.where(batch.mask, batch.old_logp - rows, 0))
    assert torch.equal(plain.ref_logp, wanted)
    asked.clear()
    es.make_objective(["rloo", "ppo", "kl_ref"]).rollouts(batch, fill=fill)  # acts on all tokens
    assert asked == [list(range(8))]


def test_slices_of_a_plan_add_up() -> None:
    batch = make_batch(advantages=torch.tensor([1.0, -1.0] * 4, dtype=torch.float64))
    objective = es.make_objective("clip_cov", ratio=0.2, low=-100.0, high=100.0)
    chance = torch.Generator().manual_seed(0)
    plan = objective.step(batch, chance)
    whole = plan.loss(batch)
    parts = [plan[rows].loss(plan[rows].at(batch.logp[rows], batch.entropy[rows]))
             for rows in (slice(0, 3), slice(3, 8))]  # fmt: skip
    assert_close(sum(p.loss for p in parts), whole.loss, rtol=1e-12, atol=0)
    assert torch.equal(torch.cat([p.clipped for p in parts]), whole.clipped)
    r, A = (batch.logp - batch.old_logp).exp(), plan.terms.advantage
    low, high = plan.terms.ratio_min, plan.terms.ratio_max
    by_hand = (((A > 0) & (r > high)) | ((A < 0) & (r < low))) & batch.mask
    assert torch.equal(whole.clipped, by_hand)


def test_the_current_policy_is_measured_only_where_a_method_reads_it() -> None:
    batch = make_batch(advantages=torch.ones(8, dtype=torch.float64))
    now = batch.old_logp - 0.5, batch.old_entropy

    def measure():
        calls.append(1)
        return now

    for name, fresh, wanted in (("grpo", False, 0), ("steer", True, 0), ("steer", False, 1)):
        calls: list[int] = []
        plan = es.make_objective(name).step(batch, fresh=fresh, measure=measure)
        assert (len(calls), plan.measured) == (wanted, bool(wanted))
    assert_close(plan.batch.logp, torch.where(batch.mask, now[0], 0))


def test_a_hook_is_validated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from entrostat.core import chain

    looked: list[str] = []
    real = chain.returned

    def counted(value, given, batch, hook):
        looked.append(hook)
        return real(value, given, batch, hook)

    monkeypatch.setattr(chain, "returned", counted)
    batch = make_batch(advantages=torch.ones(8, dtype=torch.float64))
    objective = es.make_objective("grpo")
    for _ in range(3):
        objective.loss(objective.prepare(batch))
    assert sorted(looked) == ["ppo.plan", "ppo.prepare"]


def test_edits_of_rewards_and_of_advantages_add_up() -> None:
    # unlikeliness shapes the rewards of right answers, REPO-R edits tokens of positive advantage
    batch = make_batch()
    both = es.make_objective(["grpo", "ppo", "unlikeliness", "repo_r"])
    alone = es.make_objective(["grpo", "ppo", "unlikeliness"])
    shaped, ready = (objective.rollouts(batch) for objective in (alone, both))
    assert shaped.edited is not None
    more = batch.mask & (ready.outcome > 0)[:, None]
    assert (shaped.edited & ~more).any()
    assert (more & ~shaped.edited).any()
    assert torch.equal(ready.edited, shaped.edited | more)


@pytest.mark.parametrize(("conventions", "idle"), [("entrostat", True), ("trl", False)])
def test_without_any_reward(conventions: str, idle: bool) -> None:
    batch = make_batch(rewards=torch.full((8,), NAN, dtype=torch.float64))
    ready = es.make_objective("grpo", conventions=conventions).compute_advantages(batch)
    assert ready.idle.tolist() == [idle] * 8
    assert not ready.advantages.any()
