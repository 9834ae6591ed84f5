"""The papers' theorems on policies small enough to know everything about, and our code on them.

Above each test: the statement as the paper prints it. Where a statement needs a condition or is a
slip, the comment says so and the test is of what is true, with a counterexample where one helps.
Truth is automatic differentiation of the exact entropy, or finite steps in 60 decimal digits.

Notation: pi = softmax(z), L = log pi + H, so that E[L] = 0 and dH/dz_a = -pi_a L_a; c = E[pi L] =
Cov(pi, log pi) >= 0; A- = A - E[A]; u(a) the gradient of log pi(a); d_s how often a state is met.
"""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import entrostat as es
from builders import f64
from examples import examples
from tabular import (
    Network,
    Sample,
    assert_halving_quarters,
    centred,
    change,
    covariance,
    entropy,
    entropy_gradient,
    mean,
    policy_gradient,
    probabilities,
    remainder,
)

EXACT = {"rtol": 1e-10, "atol": 1e-11}


def cases(n: int) -> settings:
    return settings(max_examples=examples(n), deadline=None, derandomize=True, database=None)


# ---------------------------------------------------------------------------- cases


def grid(draw: st.DrawFn, S: int, V: int, top: float) -> Tensor:
    """[S, V] of multiples of 1/64 in [-top, top]."""
    k = round(64 * top)
    row = st.lists(st.integers(-k, k), min_size=S * V, max_size=S * V)
    return f64(draw(row)).view(S, V) / 64


@st.composite
def tables(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Logits and advantages, [S, V] each; the advantages are not centred."""
    S, V = draw(st.integers(1, 3)), draw(st.integers(2, 6))
    return grid(draw, S, V, 4), grid(draw, S, V, 3)


@st.composite
def samples(draw: st.DrawFn, states: int = 1) -> tuple[Sample, Tensor]:
    """Up to `states` states as a batch of exact expectations, and advantages [S, V]."""
    S, V = draw(st.integers(min(states, 2), states)), draw(st.integers(2, 5))
    counts = draw(st.lists(st.integers(1, 9), min_size=S * V, max_size=S * V))
    return Sample(torch.tensor(counts).view(S, V)), grid(draw, S, V, 3)


networks = st.builds(Network, st.integers(0, 10**6), st.integers(1, 3), st.integers(2, 5))


def dot(u: Tensor, v: Tensor) -> Tensor:
    return (u * v).sum(-1)


# ---------------------------------------------------------------------------- REPO


# REPO App. C.1, Lemmas 1, 4, 5, 6: E[u] = 0; grad J = E[(R - b) u] and grad H = -E[(log pi - b) u]
# for any baseline b; E[A] = 0 for A = R - E[R].
@cases(80)
@given(networks, st.floats(-5, 5))
def test_repo_lemmas(net, b):
    u = net.scores()
    z = net.logits(net.theta)
    lp = z.log_softmax(-1)
    pi = lp.exp().unsqueeze(-1)
    assert_close((pi * u).sum(1), torch.zeros_like(u[:, 0]), **EXACT)
    reward, surprise = torch.func.jacrev(
        lambda t: (mean(net.logits(t), net.A), entropy(net.logits(t)))
    )(net.theta)
    assert_close((pi * (net.A - b).unsqueeze(-1) * u).sum(1), reward, **EXACT)
    assert_close(-(pi * (lp - b).unsqueeze(-1) * u).sum(1), surprise, **EXACT)
    assert_close(mean(z, centred(z, net.A)), torch.zeros(len(z)).double(), **EXACT)


# REPO 3 and App. C.2, Theorem 1: after theta + alpha grad J(s),
# dH(s) ~ -alpha E_{a, a' ~ pi}[A(a) L(a') u(a)^T u(a')], for any parametrisation. No condition;
# A may have any baseline.
@cases(100)
@given(networks, st.floats(-5, 5))
def test_repo_theorem_1(net, b):
    u, z = net.scores()[0], net.logits(net.theta)[:1]
    pi, L = (x[0] for x in probabilities(z))
    A = net.A[0] + b
    gram = u @ u.T
    claim = -torch.einsum("a,b,a,b,ab->", pi, pi, A, L, gram)
    step = (pi * A) @ u
    assert_close(claim, net.change(step)[0], **EXACT)

    def left_over(eta: float) -> float:
        after = entropy(net.logits(net.theta + eta * unit))[0]
        return (after - entropy(z)[0] - eta * claim / size).item()

    size = 1 + step.norm()
    unit = step / size
    eta = 1e-4
    assert abs(left_over(eta) - 4 * left_over(eta / 2)) < 1e3 * eta**3 + 1e-14


# REPO 3 and App. C.3, Corollary 1, the assumption: u(a)^T u(a') = 0 for all a != a'.
# It never holds: E[u] = 0 makes sum_{a' != a} pi(a') u(a)^T u(a') = -pi(a) |u(a)|^2, so orthogonal
# scores are all zero and nothing learns. What the corollary says holds under another condition, in
# the next tests.
@cases(80)
@given(networks)
def test_scores_are_never_orthogonal(net):
    u, pi = net.scores()[0], net.logits(net.theta)[0].softmax(-1)
    gram = u @ u.T
    others = gram - gram.diag().diag()
    assert_close(others @ pi, -pi * gram.diag(), **EXACT)


# REPO App. C.4, Proposition 1: <E[f u], E[g u]> = E[pi (f - E f)(g - E g)] for softmax over z.
@cases(150)
@given(tables())
def test_repo_proposition_1(case):
    z, f = case
    g = z.roll(1, -1)
    pi, _ = probabilities(z)
    left = dot(policy_gradient(z, f), policy_gradient(z, g))
    assert_close(left, mean(z, pi * centred(z, f) * centred(z, g)), **EXACT)


# REPO App. C.4, Corollary 2 (and COV 3.2, Theorem 1, below): under a tabular softmax
# dH ~ -alpha E[pi L (R - E R)]. Corollary 1's -E[A L pi] is that where E[A] = 0 in the state, with
# factor 1; any other A is off by E[A] c, which is what the baseline does not cancel.
# Code: the mean of estimate("corollary1") and "cov_pg".
@cases(150)
@given(samples())
def test_corollaries_1_and_2_in_a_tabular_policy(case):
    sample, A = case
    z = sample.z
    pi, L = probabilities(z)
    truth = change(z, policy_gradient(z, A))
    assert_close(truth, -mean(z, pi * L * centred(z, A)), **EXACT)
    c = mean(z, pi * L)
    assert (c > -1e-12).all()
    for advantage in (A, centred(z, A)):
        batch = sample.batch(advantage)
        off = mean(z, advantage) * c
        for name in ("corollary1", "cov_pg"):
            estimate = sample.by_state(es.dynamics.estimate(name, batch))
            assert_close(estimate, truth - off, **EXACT)


# Corollary 1 with its constant, z = M theta with M M^T = k I: the change is k times the formula.
@cases(80)
@given(tables(), st.floats(0.1, 5), st.integers(0, 99))
def test_corollary_1_is_proportional_under_an_orthogonal_map(case, k, seed):
    z, A = case[0][:1], centred(case[0], case[1])[:1]
    V = z.shape[-1]
    g = torch.Generator().manual_seed(seed)
    tall = torch.randn(V + 2, V, generator=g, dtype=torch.float64)
    M = math.sqrt(k) * torch.linalg.qr(tall)[0].T
    step = (policy_gradient(z, A) @ M) @ M.T  # of theta, seen in the logits
    pi, L = probabilities(z)
    assert_close(change(z, step), -k * mean(z, A * L * pi), **EXACT)


# ... and without such a condition not even its sign: one parameter, the inverse temperature.
# pi = (.6, .3, .1), A = (3, -16, 30), E[A] = 0: rewarding the rare action lowers the inverse
# temperature and raises the entropy, -E[A L pi] is negative.
def test_corollary_1_can_have_the_wrong_sign_with_shared_parameters():
    sample = Sample(torch.tensor([[6, 3, 1]]))
    x, A = sample.z, f64([[3.0, -16.0, 30.0]])
    assert mean(x, A).item() == pytest.approx(0, abs=1e-12)
    theta = f64(1.0).requires_grad_()
    (gain,) = torch.autograd.grad((theta * x).softmax(-1).mul(A).sum(), theta)
    (slope,) = torch.autograd.grad(entropy(theta * x).sum(), theta)
    assert gain.item() < -0.1
    assert slope.item() < -0.1  # so their product, the change, is positive
    assert sample.mean(es.dynamics.estimate("corollary1", sample.batch(A))).item() < -0.1


# REPO App. C.5, Proposition 2: pi/phi <= 1 + eps everywhere gives H(pi) <= (1 + eps) H(phi).
# REPO 3, Theorem 2: "PPO bounds the entropy of the updated policy": (1 - low) H_old <= H_new <=
# (1 + high) H_old. True where 1 - low <= pi_new/pi_old <= 1 + high for EVERY action of the state.
@cases(200)
@given(tables(), st.floats(0.01, 0.99), st.floats(0.01, 3), st.floats(0, 1))
def test_repo_theorem_2_where_every_ratio_is_bounded(case, low, high, share):
    z, raw = case
    phi = z.softmax(-1)
    tilt = centred(z, raw)
    room = torch.where(tilt > 0, high, low) / tilt.abs().clamp(min=1e-9)
    ratio = 1 + share * room.amin(-1, keepdim=True) * tilt
    new = phi * ratio
    assert_close(new.sum(-1), torch.ones(len(z)).double(), **EXACT)
    H_new = -torch.special.xlogy(new, new).sum(-1)
    assert (H_new <= (1 + high) * entropy(z) + 1e-12).all()
    assert (H_new >= (1 - low) * entropy(z) - 1e-12).all()


# ... bounded for the sampled action alone is not enough: the ratio of action 0 is 1, and the rest
# of the mass moves from (.4999, .0001) to (.25, .25).
def test_theorem_2_needs_the_ratios_of_actions_that_were_not_sampled():
    old, new = f64([0.5, 0.4999, 0.0001]), f64([0.5, 0.25, 0.25])
    assert entropy(new.log()) > 1.28 * entropy(old.log())
    assert entropy(old.log()) < 0.8 * entropy(new.log())  # and the other way round


# ... and PPO does not bound the ratios: the clip stops the gradient of a token only once its ratio
# HAS left the range. One step from the old policy is not clipped at all, whatever its size, and the
# entropy leaves the theorem's range.
@cases(100)
@given(samples())
def test_one_clipped_step_may_leave_the_range_of_theorem_2(case):
    sample, A = case
    A = centred(sample.z, A)
    assume(A.abs().max() > 0.1)
    clipped = sample.step(es.make_objective("grpo", aggregation="token_mean"), A)
    assert_close(clipped, policy_gradient(sample.z, A), **EXACT)
    best = clipped.argmax(-1)
    assume((clipped.topk(2).values.diff() < -1e-3).all())
    after = sample.z + 1e6 * clipped
    ratio = (after.log_softmax(-1) - sample.z.log_softmax(-1)).exp()[0, best]
    assume(sample.z.softmax(-1)[0, best] < 1 / 1.3)
    assert ratio > 1.2
    assert (entropy(after) < 0.8 * entropy(sample.z)).all()


# REPO 3 and App. C.6, Proposition 3: with A - beta_s L the first-order change gains
# beta_s alpha |E[L u]|^2, E[L u] = -h = -grad H. "This holds for any parametrization." True.
@cases(100)
@given(networks, st.floats(-3, 3))
def test_repo_proposition_3(net, beta):
    u, z = net.scores()[0], net.logits(net.theta)
    pi, L = (x[0] for x in probabilities(z))
    h = -(pi * L) @ u
    assert_close(h, torch.func.jacrev(lambda t: entropy(net.logits(t))[0])(net.theta), **EXACT)
    plain, repo = (pi * net.A[0]) @ u, (pi * (net.A[0] - beta * L)) @ u
    gain = net.change(repo)[0] - net.change(plain)[0]
    assert_close(gain, beta * dot(h, h), **EXACT)


# ... where the update is that of the state alone. With several states and one beta, it is their
# mean entropy that gains beta |grad of it|^2; one state among them can lose under beta > 0.
def test_proposition_3_is_about_the_mean_where_states_share_parameters():
    lost = 0
    for seed in range(40):
        net = Network(seed, S=3, V=4)
        u = net.scores()
        pi, L = probabilities(net.logits(net.theta))
        extra = -((pi * L).unsqueeze(-1) * u).sum(1).mean(0)  # per unit of beta
        gains = net.change(extra)
        assert_close(gains.mean(), dot(extra, extra), **EXACT)
        lost += int((gains < 0).any())
    assert lost > 0


# REPO 3: L is centred, E[L] = 0. Under center="state" that holds in every state; under "batch" a
# state's mean is the batch's mean entropy less its own. Seen through repo_r with A = 1, which gives
# 1 - zeta L.
@cases(80)
@given(samples(states=3))
def test_centred_log_probs_have_mean_zero(case):
    sample, _ = case
    H = entropy(sample.z)
    ones = torch.ones_like(sample.z)
    for center, expected in (("state", 0 * H), ("batch", (sample.d * H).sum() - H)):
        objective = es.make_objective("repo_r", zeta=0.1, center=center, aggregation="token_mean")
        prepared = objective.prepare(sample.batch(ones)).advantages
        assert prepared is not None
        assert_close(sample.by_state((1 - prepared) / 0.1), expected, **EXACT)


# REPO 3, REPO-D: beta = -zeta dH, dH by Corollary 1, "thus neutralizing dH". In one tabular state
# with E[A] = 0: dH is exact, beta has the sign that opposes it, and the first-order change becomes
# (1 - zeta |h|^2) dH: damped, and turned round beyond zeta = 1/|h|^2.
@cases(120)
@given(samples(), st.floats(0.001, 20))
def test_repo_d_damps_the_change_of_entropy(case, zeta):
    sample, A = case
    A = centred(sample.z, A)
    objective = es.make_objective("repo_d", zeta=zeta, controller="none", aggregation="token_mean")
    h = entropy_gradient(sample.z)
    before = change(sample.z, policy_gradient(sample.z, A))
    after = change(sample.z, sample.step(objective, A))
    assert_close(after, (1 - zeta * dot(h, h)) * before, **EXACT)


# ... over several states beta is one number for the batch, and what it adds to the step is beta
# times the gradient of the mean entropy: each tabular state gains beta d_s |h_s|^2, beta > 0 raises
# every one of them. That is also the step of an entropy bonus of coefficient beta.
@cases(100)
@given(samples(states=3))
def test_repo_d_adds_the_gradient_of_the_mean_entropy(case):
    sample, A = case
    pi, L = probabilities(sample.z)
    beta = 2.0 * (sample.d * mean(sample.z, A * L * pi)).sum()  # -zeta dH with zeta = 2
    base = es.make_objective(["rloo", "reinforce"], aggregation="token_mean")
    repo = es.make_objective(
        ["reinforce", {"name": "repo_d", "zeta": 2.0, "controller": "none"}],
        aggregation="token_mean",
    )
    added = sample.step(repo, A) - sample.step(base, A)
    h = entropy_gradient(sample.z)
    assert_close(added, beta * sample.d.unsqueeze(-1) * h, **EXACT)
    assert_close(change(sample.z, added), beta * sample.d * dot(h, h), **EXACT)
    if beta > 0:
        bonus = es.make_objective(["reinforce", {"name": "entropy_bonus", "coef": beta.item()}])
        assert_close(sample.step(bonus, A), sample.step(repo, A), **EXACT)


# REPO 3, REPO-R: beta_a = zeta max(A, 0), "towards a higher entropy state". beta depends on the
# action, so Proposition 3 does not cover it. Its gain is zeta (E[pi L^2 A+] - c E[L A+]) =
# zeta sum_a pi A+ L (pi L - c): never negative where no rewarded action lies in the band
# 0 < pi L < c, nor where E[L A+] <= 0.
@cases(200)
@given(samples())
def test_repo_r_raises_entropy_outside_a_band(case):
    sample, A = case
    z, zeta = sample.z, 0.1
    pi, L = probabilities(z)
    base = es.make_objective(["rloo", "reinforce"], aggregation="token_mean")
    repo = es.make_objective(
        ["reinforce", {"name": "repo_r", "zeta": zeta}], aggregation="token_mean"
    )
    gain = change(z, sample.step(repo, A) - sample.step(base, A))
    up, c = A.clamp(min=0), mean(z, pi * L)
    expected = zeta * (mean(z, pi * L.square() * up) - c * mean(z, L * up))
    assert_close(gain, expected, **EXACT)
    band = (up > 0) & (pi * L > 1e-12) & (pi * L < c.unsqueeze(-1) - 1e-12)
    if not band.any() or (mean(z, L * up) <= 0).all():
        assert (gain >= -1e-11).all()


# ... a rewarded action inside that band: REPO-R lowers the entropy. pi = (.5, .4, .05, .05), the
# second action alone rewarded; 0 < pi L = .0386 < c = .0854.
def test_repo_r_lowers_entropy_inside_the_band():
    sample = Sample(torch.tensor([[10, 8, 1, 1]]))
    A = f64([[0.0, 1.0, 0.0, 0.0]])
    base = es.make_objective(["rloo", "reinforce"], aggregation="token_mean")
    repo = es.make_objective(
        ["reinforce", {"name": "repo_r", "zeta": 0.1}], aggregation="token_mean"
    )
    gain = change(sample.z, sample.step(repo, A) - sample.step(base, A))
    assert gain.item() == pytest.approx(0.1 * 0.4 * 0.0964 * (0.0386 - 0.0854), rel=0.01)


# ---------------------------------------------------------------------------- COV


# COV 3.1 and App. C.2, Lemma 1: H(k+1) - H(k) ~ -Cov_{a ~ pi}(log pi, z(k+1) - z(k)), to first
# order, for any change of the logits.
@cases(150)
@given(tables())
def test_cov_lemma_1(case):
    z, step = case
    claim = -covariance(z, z.log_softmax(-1), step)
    assert_close(claim, change(z, step), **EXACT)
    for s in range(len(z)):
        assert_halving_quarters(z[s], step[s], claim[s])


# ... "H(k+1) - H(k) ~ E_{s ~ d}[H(k+1 | s) - H(k | s)]" needs a d that does not move (a bandit, a
# fixed set of states). Where the action decides the next state, a first-order term is missing:
# E_d'[H] - E_d[H] = Cov_{a ~ pi}(H(next state), z(k+1) - z(k)) for each step that leads there.
@cases(100)
@given(tables(), st.integers(0, 10**6))
def test_cov_lemma_1_with_states_that_the_policy_reaches(case, seed):
    z, step = case[0][:1], case[1][:1]
    g = torch.Generator().manual_seed(seed)
    V = z.shape[-1]
    next_z, next_step = torch.randn(2, V, 3, generator=g, dtype=torch.float64)

    def policy_entropy(first: Tensor, then: Tensor) -> Tensor:
        return (entropy(first)[0] + mean(first, entropy(then).unsqueeze(0))[0]) / 2

    first, then = torch.func.grad(policy_entropy, argnums=(0, 1))(z, next_z)
    truth = (first * step).sum() + (then * next_step).sum()
    lemma = change(z, step)[0] + mean(z, change(next_z, next_step).unsqueeze(0))[0]
    missing = covariance(z, entropy(next_z).unsqueeze(0), step)[0]
    assert_close(truth, (lemma + missing) / 2, **EXACT)


# COV 3.2 and App. C.3, Proposition 1: z(k+1) - z(k) = eta pi A (section 3.2 prints the step with a
# minus; the proof has the right sign). It uses E[A] = 0 (Lemma 3); in general eta pi (A - E[A]).
# Theorem 1: H(k+1) - H(k) ~ -eta Cov(log pi, pi A), under the same condition; in general
# -eta Cov(log pi, pi (A - E[A])).
@cases(150)
@given(tables())
def test_cov_proposition_1_and_theorem_1(case):
    z, A = case
    pi, lp = z.softmax(-1), z.log_softmax(-1)
    step = policy_gradient(z, A)
    assert_close(step, pi * centred(z, A), **EXACT)
    claim = -covariance(z, lp, pi * centred(z, A))
    assert_close(claim, change(z, step), **EXACT)
    off = mean(z, A) * covariance(z, lp, pi)
    assert_close(-covariance(z, lp, pi * A), claim - off, **EXACT)
    for s in range(len(z)):
        assert_halving_quarters(z[s], step[s], claim[s])


def natural_gradient(sample: Sample, A: Tensor) -> Tensor:
    """[S, V]: Fisher matrix^+ grad J over all states, J = E_{s ~ d}[E_a[A]]."""
    S, V = A.shape
    z = sample.z.flatten()
    u = torch.func.jacrev(lambda t: t.view(S, V).log_softmax(-1).flatten())(z)
    weight = (sample.d.unsqueeze(-1) * sample.z.softmax(-1)).flatten()
    fisher = u.T @ (weight.unsqueeze(-1) * u)
    gradient = (sample.d.unsqueeze(-1) * policy_gradient(sample.z, A)).flatten()
    return (torch.linalg.pinv(fisher, rtol=1e-12, hermitian=True) @ gradient).view(S, V)


# COV 3.2 and App. C.4, Theorem 2: under natural policy gradient
# H(k+1) - H(k) ~ -eta Cov(log pi, A). True for any A: z moves by eta A up to a constant a state,
# which changes nothing. It is the Fisher matrix of the whole table that takes d_s away.
# Code: estimate("cov"). Its mean is exact for the mean entropy, over several states too, where
# E[A | s] = 0 in each; otherwise it adds -Cov_s of the states' means, here Cov_s(H, E[A | s]).
@cases(100)
@given(samples(states=3))
def test_cov_theorem_2(case):
    sample, A = case
    z, d = sample.z, sample.d
    step = natural_gradient(sample, A)
    truth = change(z, step)
    assert_close(truth, -covariance(z, z.log_softmax(-1), A), **EXACT)
    for s in range(len(z)):
        assert_halving_quarters(z[s], step[s], truth[s])
    H, means = entropy(z), mean(z, A)
    mixing = (d * H * means).sum() - (d * H).sum() * (d * means).sum()
    for advantage, between in ((A, mixing), (centred(z, A), 0 * mixing)):
        estimate = sample.mean(es.dynamics.estimate("cov", sample.batch(advantage)))
        assert_close(estimate, (d * truth).sum() + between, **EXACT)


# ... and token by token: in one state with E[A] = 0, "cov" is the exact first-order change under
# the natural gradient of that token alone, A F^+ (onehot - pi).
@cases(100)
@given(samples())
def test_cov_of_a_token_is_its_natural_gradient(case):
    sample, A = case
    A = centred(sample.z, A)
    got = es.dynamics.estimate("cov", sample.batch(A))
    pi = sample.z.softmax(-1)[0]
    inverse = torch.linalg.pinv(pi.diag() - torch.outer(pi, pi), rtol=1e-12, hermitian=True)
    steps = A[0].unsqueeze(-1) * (torch.eye(len(pi)).double() - pi) @ inverse  # a row an action
    expected = steps @ entropy_gradient(sample.z)[0]
    assert_close(got[sample.mask], sample.tokens(expected.unsqueeze(0))[sample.mask], **EXACT)


# "cov_pg" (Theorem 1 over a batch): the same law of total covariance, but E[pi A | s] is not 0 for
# centred advantages, so that several states mix even then: + Cov_s(H, E[pi A | s]).
@cases(100)
@given(samples(states=3))
def test_cov_pg_mixes_states(case):
    sample, A = case
    z, d = sample.z, sample.d
    A = centred(z, A)
    pi = z.softmax(-1)
    within = change(z, policy_gradient(z, A))
    H, means = entropy(z), mean(z, pi * A)
    mixing = (d * H * means).sum() - (d * H).sum() * (d * means).sum()
    got = sample.mean(es.dynamics.estimate("cov_pg", sample.batch(A)))
    assert_close(got, (d * within).sum() + mixing, **EXACT)


# ---------------------------------------------------------------------------- OPEFO


def opefo_flow(z: Tensor, A: Tensor) -> Tensor:
    """OPEFO's Eq. 6 for each action, [S, V], eta = 1."""
    pi, L = probabilities(z)
    return -A * (1 - pi) ** 2 * L


# OPEFO 5.3, Eqs. 8 and 9: lambda* = (N - P)/(N + P) makes the weighted flow zero, "a unique
# solution", lambda in (-1, 1). Exactly zero, not only approximately. lambda lies inside (-1, 1)
# where both signs occur; where all tokens have one sign it is +-1 and every weight is 0: that step
# trains on nothing.
@cases(200)
@given(samples(states=3))
def test_opefo_lambda_balances_the_flow(case):
    sample, A = case
    batch = sample.batch(A)
    flow = sample.tokens(opefo_flow(sample.z, A))
    dH = es.dynamics.estimate("opefo", batch)
    assert_close(dH[sample.mask], flow[sample.mask], **EXACT)
    flow = torch.where(sample.mask, flow, 0)
    weight = es.make_objective("opefo").plan(batch).weight
    size = flow.abs().sum()
    assert abs((weight * flow).sum().item()) <= 1e-13 * max(1.0, size.item())
    up, down = weight[flow > 1e-12], weight[flow < -1e-12]
    if len(up) and len(down):
        assert 0 < up[0] < 2
        assert_close(up, (2 - down[0]).expand_as(up), **EXACT)
        assert_close(down, down[0].expand_as(down), **EXACT)
    elif size > 1e-9:
        assert_close(torch.cat([up, down]), torch.zeros(len(up) + len(down)).double(), **EXACT)


# OPEFO 3.3 and App. A, Theorem 1 (Eq. 6): dH = -eta E_a[A (1 - pi)^2 L], under a tabular softmax.
# The proof replaces dz_a - E[dz] by (1 - pi_a) dz_a for every a at once, as if each action's logit
# moved alone, with dz_a = A (1 - pi_a). So Eq. 6 is exact, to O(eta^2), for the update
# dz_a = eta A (1 - pi_a)^2.
@cases(120)
@given(tables())
def test_opefo_theorem_1_for_the_update_that_it_describes(case):
    z, A = case
    pi = z.softmax(-1)
    claim = mean(z, opefo_flow(z, A))
    step = A * (1 - pi) ** 2
    assert_close(claim, change(z, step), **EXACT)
    for s in range(len(z)):
        assert_halving_quarters(z[s], step[s], claim[s])


# ... it is not that of policy gradient. Two actions, E[A] = 0, x = pi_1 pi_2: Eq. 6 is
# (1 - 3x)/(2x) times the truth, equal at x = 1/5 alone and beyond all bounds as x -> 0; and
# 1 - 3x times that of the natural gradient.
@cases(100)
@given(st.integers(1, 30), st.integers(1, 30), st.floats(-3, 3))
def test_opefo_theorem_1_for_policy_gradient(n, m, a):
    sample = Sample(torch.tensor([[n, m]]))
    A = centred(sample.z, f64([[a, 0.0]]))
    x = n * m / (n + m) ** 2
    got = sample.mean(es.dynamics.estimate("opefo", sample.batch(A)))
    truth = change(sample.z, policy_gradient(sample.z, A))[0]
    natural = change(sample.z, natural_gradient(sample, A))[0]
    assert_close(2 * x * got, (1 - 3 * x) * truth, **EXACT)
    assert_close(got, (1 - 3 * x) * natural, **EXACT)


# ... token by token: where only the sampled logit moves, by A (1 - pi), the exact change is
# -A pi (1 - pi) L. Eq. 6 is that times (1 - pi)/pi: the right sign always, rare tokens inflated.
@cases(100)
@given(samples())
def test_opefo_of_a_token_has_the_sign_of_the_logit_that_moves_alone(case):
    sample, A = case
    pi = sample.z.softmax(-1)
    alone = entropy_gradient(sample.z) * A * (1 - pi)
    got = es.dynamics.estimate("opefo", sample.batch(A))
    expected = sample.tokens(alone * (1 - pi) / pi)
    assert_close(got[sample.mask], expected[sample.mask], **EXACT)


# ... so a flow balanced by Eq. 9 is zero as Eq. 6 counts it, not as entropy moves: one OPEFO step
# in a tabular state changes the entropy by the mean of weight times "tabular".
@cases(80)
@given(samples())
def test_an_opefo_step_moves_entropy_by_the_weighted_exact_changes(case):
    sample, A = case
    objective = es.make_objective("opefo")
    batch = sample.batch(A)
    exact = es.dynamics.estimate("tabular", batch)
    moved = change(sample.z, sample.step(objective, A))[0]
    assert_close(sample.mean(objective.plan(batch).weight * exact), moved, **EXACT)


# pi = (3/4, 1/4), A = 1 for both, L = ln 3 (1/4, -3/4): without weights the step is zero. Eq. 6
# sees a decrease of 3/64 ln 3 (three tokens of action 0) and an increase of 27/64 ln 3, lambda is
# -4/5, the weights 9/5 and 1/5, and the balanced step lowers the entropy, at a rate of
# 2 (9/5 - 1/5) ln 3 (pi_1 pi_2)^2.
def test_a_balanced_flow_is_not_a_balanced_entropy():
    sample = Sample(torch.tensor([[3, 1]]))
    A = torch.ones(1, 2).double()
    plain = sample.step(es.make_objective("reinforce"), A)
    assert_close(plain, 0 * plain, **EXACT)
    objective = es.make_objective("opefo")
    weight = objective.plan(sample.batch(A)).weight[sample.mask]
    assert_close(weight, f64([1.8, 1.8, 1.8, 0.2]), **EXACT)
    moved = change(sample.z, sample.step(objective, A)).item()
    assert moved == pytest.approx(-2 * 1.6 * math.log(3) * (3 / 16) ** 2, rel=1e-12)


# ---------------------------------------------------------------------------- STEER


@st.composite
def off_policy(draw: st.DrawFn) -> tuple[Sample, Tensor, Tensor]:
    """One state, advantages, and an old policy near enough that some ratios are clipped."""
    sample, A = draw(samples())
    return sample, A, sample.z + grid(draw, 1, A.shape[-1], 1)


def steer_step(z: Tensor, A: Tensor, old: Tensor, clip: float | None) -> Tensor:
    """STEER's Eq. 14 at eta = L = 1: each logit by its own action's gradient, I r A (1 - pi)."""
    pi = z.softmax(-1)
    r = (z.log_softmax(-1) - old.log_softmax(-1)).exp()
    step = r * A * (1 - pi)
    if clip is None:
        return step
    cut = ((A > 0) & (r > 1 + clip)) | ((A < 0) & (r < 1 - clip))
    return torch.where(cut, 0, step)


# STEER 3.1 and App. F, Theorem 1: dH = Omega + Phi, Omega = -(eta/L) E_{a ~ pi}[I A/pi_old pi
# (1 - pi) (log pi + H)], |Phi| = O(eta^2). True of the update of its Eq. 14, in which every
# action's logit moves by its own gradient alone and each action counts once: E_{a ~ pi} with
# another factor pi is the plain sum over actions.
# Code: the mean of "omega" over tokens of the current policy.
@cases(150)
@given(off_policy(), st.sampled_from([None, 0.2]))
def test_steer_theorem_1(case, clip):
    sample, A, old = case
    z = sample.z
    pi, L = probabilities(z)
    pi_old = old.softmax(-1)
    kept = torch.ones_like(z) if clip is None else (steer_step(z, A, old, clip) != 0).double()
    claim = -mean(z, kept * A / pi_old * pi * (1 - pi) * L)
    step = steer_step(z, A, old, clip)
    assert_close(claim, change(z, step), **EXACT)
    assert_halving_quarters(z[0], step[0], claim[0])
    batch = sample.batch(A, old=old)
    got = es.dynamics.estimate("omega", batch, low=clip, high=clip)
    assert_close(sample.mean(got), claim[0], **EXACT)
    if clip is None:
        assert_close(es.dynamics.estimate("omega", batch), got, **EXACT)


# STEER App. F, step 5: |Phi| <= C eta^2 [A_max r_max / L]^2 by "only the sampled action has a
# nonzero logit update". So it is of ONE token's update, not of the sum over actions of step 4. The
# constant: d2H/dz_a^2 = -pi (1 - 2 pi) L - pi (1 - pi), and -1/e <= pi L <= ln V, so for every z
# and any eta C = (max(1/e, ln V) + 1/4)/2.
@cases(100)
@given(off_policy(), st.floats(0.001, 4))
def test_steer_remainder_of_one_token(case, eta):
    sample, A, old = case
    z = sample.z
    V = z.shape[-1]
    r = (z.log_softmax(-1) - old.log_softmax(-1)).exp()
    omega = entropy_gradient(z) * steer_step(z, A, old, None)
    C = (max(1 / math.e, math.log(V)) + 0.25) / 2
    for a in range(V):
        step = torch.zeros(V).double()
        step[a] = steer_step(z, A, old, None)[0, a]
        phi = remainder(z[0], step, omega[0, a].item(), eta)
        assert abs(phi) <= C * (eta * A.abs().max() * r.max()) ** 2 + 1e-14
        assert_halving_quarters(z[0], step, omega[0, a])


# STEER Eq. 2, the sum's term of the sampled token ("omega_realised"): only its own logit moves, by
# the gradient of PPO's loss in it. The gradient is taken from our PPO loss by autograd.
@cases(100)
@given(off_policy(), st.sampled_from([None, 0.2]))
def test_omega_realised_is_the_own_logit_of_the_ppo_gradient(case, clip):
    sample, A, old = case
    V = A.shape[-1]
    each = Sample(torch.ones(1, V).long())  # every action once, to read per action
    z = sample.z.expand(V, V).clone().requires_grad_()  # a row of logits an action
    lp = z.log_softmax(-1).diag().unsqueeze(-1)
    lp0 = old.log_softmax(-1).view(V, 1)
    mask = torch.ones(V, 1)
    objective = es.make_objective({"name": "ppo", "low": clip, "high": clip})
    loss = objective.loss(es.TokenBatch(lp, lp0, mask, A[0])).per_token.sum()
    own = -torch.autograd.grad(loss, z)[0].diag()
    expected = entropy_gradient(sample.z) * own
    got = es.dynamics.estimate(
        "omega_realised", each.batch(A, z=sample.z, old=old), low=clip, high=clip
    )
    assert_close(got[each.mask], each.tokens(expected)[each.mask], **EXACT)
    # over tokens of the OLD policy it sums to the policy gradient's own-logit part, no 1/pi_old
    pi, L = probabilities(sample.z)
    if clip is None:
        realised = (old.softmax(-1) * expected).sum(-1)
        assert_close(realised, -mean(sample.z, A * pi * (1 - pi) * L), **EXACT)


# STEER 3.1, Remark 3, quadrants by A and delta = -pi (1 - pi) L: I (A>0, delta<0) and III (A<0,
# delta>0) lower the entropy, II and IV raise it. (III's text says "increasing": a slip, its heading
# is right.) "High-probability" is L > 0: certain of the likeliest action, so of every p >= 1/2; a
# rare token is one of L < 0 only where log p < -H.
@cases(100)
@given(samples())
def test_steer_quadrants(case):
    sample, A = case
    pi, L = probabilities(sample.z)
    assert (L.gather(-1, pi.argmax(-1, keepdim=True)) >= -1e-12).all()
    omega = es.dynamics.estimate("omega", sample.batch(A))[sample.mask]
    alone = sample.tokens(entropy_gradient(sample.z) * A * (1 - pi))[sample.mask]
    clear = alone.abs() > 1e-12
    assert (omega.sign() == alone.sign())[clear].all()


def test_a_token_below_a_fifth_may_still_be_a_likely_one():
    # pi = .15 and 850 of .001: log .15 = -1.90, H = 6.16
    sample = Sample(torch.tensor([[150, *[1] * 850]]))
    pi, L = probabilities(sample.z)
    assert pi[0, 0].item() == pytest.approx(0.15)
    assert L[0, 0].item() == pytest.approx(0.85 * (math.log(0.15) - math.log(0.001)), rel=1e-9)


# ---------------------------------------------------------------------------- tabular


# "tabular" (ours): A [-p L + S2L + H S2] is the exact first-order change when the sampled token's
# gradient A (onehot - pi) is applied; the rest is O(eta^2). The gradient is taken from our
# REINFORCE loss by autograd.
@cases(150)
@given(samples(states=2))
def test_tabular_is_exact_for_a_token(case):
    sample, A = case
    got = es.dynamics.estimate("tabular", sample.batch(A))
    assert (got[~sample.mask] == 0).all()
    S, V = A.shape
    lp = torch.func.jacrev(lambda z: z.log_softmax(-1))(sample.z)  # [S, V, S, V]
    h = entropy_gradient(sample.z)
    steps = A.unsqueeze(-1) * torch.stack([lp[s, :, s] for s in range(S)])  # [S, V, V]
    expected = torch.einsum("sab,sb->sa", steps, h)
    assert_close(got[sample.mask], sample.tokens(expected)[sample.mask], **EXACT)
    value = torch.where(sample.mask, got, 0)
    for s in range(S):
        for a in range(V):
            here = sample.mask & (sample.index == s * V + a)
            assert_halving_quarters(sample.z[s], steps[s, a], value[here][0])


# ... so its mean is that of the whole expected step, for any A, centred or not: the baseline
# cancels here as it does in the gradient, which it does not in "corollary1".
@cases(120)
@given(samples(states=3))
def test_tabular_adds_up_to_the_whole_step(case):
    sample, A = case
    got = es.dynamics.estimate("tabular", sample.batch(A))
    step = sample.step(es.make_objective(["rloo", "reinforce"], aggregation="token_mean"), A)
    assert_close(step, sample.d.unsqueeze(-1) * policy_gradient(sample.z, A), **EXACT)
    claim = sample.by_state(got) * sample.d
    assert_close(claim, change(sample.z, step), **EXACT)
    for s in range(len(A)):
        assert_halving_quarters(sample.z[s], step[s], claim[s])


# What the others leave out of a token's exact change, on policy: "corollary1" the term A c;
# "omega_realised" (own logit only) A sum_{b != a} pi_b^2 L_b; "omega" divides that by pi_a, "opefo"
# by pi_a/(1 - pi_a).
@cases(150)
@given(samples())
def test_what_each_estimator_leaves_out(case):
    sample, A = case
    pi, L = probabilities(sample.z)
    batch = sample.batch(A)
    exact, corollary, realised, omega, opefo = (
        es.dynamics.estimate(name, batch)[sample.mask]
        for name in ("tabular", "corollary1", "omega_realised", "omega", "opefo")
    )

    def token(values: Tensor) -> Tensor:
        return sample.tokens(values)[sample.mask]

    c = mean(sample.z, pi * L).unsqueeze(-1)
    others = c - pi.square() * L  # sum of pi_b^2 L_b over the other actions
    assert_close(exact - corollary, token(A * c), **EXACT)
    assert_close(exact - realised, token(A * others), **EXACT)
    assert_close(omega * token(pi), realised, **EXACT)
    assert_close(opefo * token(pi / (1 - pi)), realised, **EXACT)


# Hence the sign: the single-action formulas say that a rewarded token with L > 0 lowers the
# entropy; the truth is that it does so where pi L > c. Between, 0 < pi L < c, they are wrong in
# sign, and nowhere else.
@cases(200)
@given(samples())
def test_where_the_single_action_formulas_have_the_wrong_sign(case):
    sample, A = case
    pi, L = probabilities(sample.z)
    c = mean(sample.z, pi * L).unsqueeze(-1)
    near = (A.abs() < 1e-9) | (L.abs() < 1e-9) | ((pi * L - c).abs() < 1e-9)
    band = sample.tokens(((L > 0) & (pi * L < c)).double())[sample.mask] == 1
    clear = sample.tokens((~near).double())[sample.mask] == 1
    batch = sample.batch(A)
    exact = es.dynamics.estimate("tabular", batch)[sample.mask]
    for name in ("corollary1", "omega", "omega_realised", "opefo"):
        single = es.dynamics.estimate(name, batch)[sample.mask]
        assert ((single * exact < 0) == band)[clear].all()


def test_gspos_trust_region_is_tighter_than_dapos_below_a_length():
    """REPO 3: in T tokens GSPO's ratio, a geometric mean, lets one token move by its bound^T."""
    for dapo, gspo, length in ((1.28, 1 + 4e-4, 617), (0.8, 1 - 3e-4, 743)):
        reach = [gspo**T for T in (length, length + 1)]  # of the one token that moves
        inside = [min(x, 1 / x) > min(dapo, 1 / dapo) for x in reach]
        assert inside == [True, False]
