"""The thermostat's multiplier: AdamW in closed form, first order, the filter, made-up plants."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import refused
from entrostat.control import Multiplier, MultiplierState, Observation
from entrostat.control import adamw as closed_form
from entrostat.control import multiplier as module
from entrostat.control.adamw import Coming, solve
from entrostat.control.multiplier import Momentum, Response
from entrostat.core.rollouts import standard_error
from entrostat.trainers.hold import Hold, Moved, momentum, response, sample

BETAS, CLIP = (0.9, 0.95), 1.0


# ---------------------------------------------------------------------------- AdamW's step


def weights(seed: int = 0) -> list[torch.nn.Parameter]:
    g = torch.Generator().manual_seed(seed)
    shapes = ((4, 3), (5,))
    return [torch.nn.Parameter(torch.randn(s, generator=g, dtype=torch.float64)) for s in shapes]


def drawn(seed: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(p.shape, generator=g, dtype=torch.float64) for p in weights()]


def adamw(parameters: list[torch.nn.Parameter], steps: int, decay: float, lr: float = 1e-2):
    optimizer = torch.optim.AdamW(parameters, lr=lr, betas=BETAS, weight_decay=decay)
    for i in range(steps):
        for p, g in zip(parameters, drawn(10 + i), strict=True):
            p.grad = g.clone()
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("steps", [0, 1, 7])
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("size", [0.01, 3.0])  # below and above the clip
@pytest.mark.parametrize("piece", [1 << 17, 8, 5])  # both together; 8 + 4, 5; 5 + 5 + 2, 5
def test_the_closed_form_is_the_optimizers_step(steps, decay, size, piece, monkeypatch):
    monkeypatch.setattr(closed_form, "PIECE", piece)
    parameters = weights()
    optimizer = adamw(parameters, steps, decay)
    loss, entropy, c = [size * g for g in drawn(1)], drawn(2), 0.4
    coming = Coming(optimizer, loss, entropy, CLIP)
    foretold, steps = coming.change(c), torch.cat(list(coming.steps(c)))
    before = [p.detach().clone() for p in parameters]
    for p, g, h in zip(parameters, loss, entropy, strict=True):
        p.grad = g - c * h
    torch.nn.utils.clip_grad_norm_(parameters, CLIP)
    optimizer.step()
    moved = [p.detach() - b for p, b in zip(parameters, before, strict=True)]
    assert_close(steps, torch.cat([m.flatten() for m in moved]), rtol=1e-7, atol=1e-12)
    wanted = sum(float((h * s).sum()) for h, s in zip(entropy, moved, strict=True))
    assert foretold == pytest.approx(wanted, rel=1e-7)


def test_what_has_16_bits_is_computed_with_32():
    """Against the step of the same numbers in float32."""
    found = []
    parameters = weights()
    state = adamw(parameters, 3, 0.3).state
    for bits in (torch.bfloat16, torch.float32):
        rounded = lambda x, b=bits: x.detach().to(torch.bfloat16).to(b)  # noqa: E731
        own = [torch.nn.Parameter(rounded(p)) for p in parameters]
        optimizer = torch.optim.AdamW(own, lr=1e-2, betas=BETAS, weight_decay=0.3)
        for p, old in zip(own, parameters, strict=True):
            moments = {k: rounded(state[old][k]) for k in ("exp_avg", "exp_avg_sq")}
            optimizer.state[p] = {"step": state[old]["step"], **moments}
        loss, entropy = ([rounded(x) for x in drawn(seed)] for seed in (1, 2))
        coming = Coming(optimizer, loss, entropy, CLIP)
        found.append([*coming.products, coming.change(0.3, inside=0.2)])
    assert found[0] == found[1]


def test_nothing_is_written_into_the_optimizer():
    parameters = weights()
    optimizer = adamw(parameters, 3, 0.1)
    before = json.dumps([[x.tolist() for x in s.values()] for s in optimizer.state.values()])
    loss = drawn(1)
    Coming(optimizer, loss, drawn(2), CLIP).change(0.3, inside=0.2)
    after = json.dumps([[x.tolist() for x in s.values()] for s in optimizer.state.values()])
    assert after == before
    for g, again in zip(loss, drawn(1), strict=True):
        assert torch.equal(g, again)


class Policy(torch.nn.Module):
    """A softmax over 6 actions in 5 states, by a hidden layer; float64."""

    def __init__(self) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(3)
        make = lambda *s: torch.nn.Parameter(torch.randn(*s, generator=g, dtype=torch.float64))  # noqa: E731
        self.x, self.first, self.second = make(5, 4).detach(), make(4, 8), make(8, 6)

    def entropy(self) -> torch.Tensor:
        logp = torch.log_softmax(torch.tanh(self.x @ self.first) @ self.second, -1)
        return -(logp.exp() * logp).sum(-1).mean()


def test_first_order_errors_fall_with_the_square_of_the_learning_rate():
    errors = []
    for lr in (2e-3, 1e-3, 5e-4):
        policy = Policy()
        parameters = list(policy.parameters())
        optimizer = torch.optim.AdamW(parameters, lr=lr, betas=BETAS, weight_decay=0.0)
        H = policy.entropy()
        entropy = torch.autograd.grad(H, parameters)
        g = torch.Generator().manual_seed(4)
        loss = [torch.randn(p.shape, generator=g, dtype=torch.float64) for p in parameters]
        coming = Coming(optimizer, loss, entropy, CLIP)
        foretold = coming.change(0.3)
        for p, a, b in zip(parameters, loss, entropy, strict=True):
            p.grad = a - 0.3 * b
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        errors.append(abs(float((policy.entropy() - H).detach()) - foretold))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.1)


def test_roots_by_hand():
    cubic = lambda c: c**3 + c  # noqa: E731
    assert solve(cubic, 10.0, -5, 5, 0.0, 1e-9) == pytest.approx(2, abs=1e-8)
    assert solve(cubic, -10.0, -5, 5, 4.0, 1e-9) == pytest.approx(-2, abs=1e-8)
    assert solve(cubic, 1e3, -5, 5, 0.0, 1e-9) == 5  # there is none: the nearer end
    assert solve(cubic, -1e3, -5, 5, 0.0, 1e-9) == -5
    assert solve(cubic, 0.0, 0, 5, -3.0, 1e-9) == 0


@pytest.mark.parametrize("steps", [1, 6])
def test_a_response_by_autograd(steps):
    parameters = weights()
    optimizer = adamw(parameters, steps, 0.0)
    entropy = drawn(5)
    found = response(optimizer, parameters, entropy)
    # A: of a step whose gradient is what momentum holds, so that m stays what it is, and its square
    # v's mean; B: its derivative by the momentum, along h
    drift = gain = 0.0
    for p, h in zip(parameters, entropy, strict=True):
        s = optimizer.state[p]
        shift = torch.zeros((), dtype=torch.float64, requires_grad=True)
        m_hat = s["exp_avg"] / (1 - BETAS[0] ** steps) - shift * h
        square = s["exp_avg_sq"].mean() / (1 - BETAS[1] ** steps)
        v = BETAS[1] * s["exp_avg_sq"] + (1 - BETAS[1]) * square
        v_hat = v / (1 - BETAS[1] ** (steps + 1))
        change = (h * (-1e-2 * m_hat / (v_hat.sqrt() + 1e-8))).sum()
        drift += float(change.detach())
        gain += float(torch.autograd.grad(change, shift)[0])
    assert found.drift == pytest.approx(drift, rel=1e-5)  # the sums are of float32
    assert found.gain == pytest.approx(gain, rel=1e-5)
    assert found.norm == pytest.approx(sum(float((h * h).sum()) for h in entropy) ** 0.5, rel=1e-6)
    held = momentum(optimizer)
    assert held.young == pytest.approx(0.1 / (1 - 0.9 ** (steps + 1)))
    assert held.corrected == pytest.approx(1 - 0.9**steps)
    assert held.lasting == pytest.approx(0.1)


def test_another_optimizer_is_refused():
    parameters = weights()
    optimizer = torch.optim.RMSprop(parameters, lr=1e-3)
    for p, g in zip(parameters, drawn(1), strict=True):
        p.grad = g
    optimizer.step()
    hold = Hold.of(es.make_objective("thermostat"))
    assert hold is not None
    refused(lambda: hold.due(optimizer, 0, 1), "got RMSprop")
    # Adam's kind, with moments of another form, as bitsandbytes' of 8 bits
    paged = torch.optim.Adamax(parameters, lr=1e-3)
    refused(lambda: hold.due(paged, 0, 1), "got Adamax")


# ---------------------------------------------------------------------------- the filter


def posterior(entropies, errors, wandering, foretold, scale) -> np.ndarray:
    """Mean of (H, b) from the joint Gaussian of everything that is drawn, one update an iteration.

    z = (H_0, the parts of b_0, then of each iteration the wandering of H, that of the parts); H and
    b are linear in z.
    """
    n = len(entropies)
    H, b, fixed = np.zeros((n, 3 * n)), np.zeros((n, 2, 3 * n)), np.zeros(n)
    H[0, 0] = b[0, 0, 1] = b[0, 1, 2] = 1
    variance = [errors[0] ** 2, (0.03 * scale) ** 2, (0.004 * scale) ** 2]
    for t in range(1, n):
        H[t], b[t] = H[t - 1] + b[t - 1].sum(0), b[t - 1] * [[0.6], [1.0]]
        H[t, 3 * t] = b[t, 0, 3 * t + 1] = b[t, 1, 3 * t + 2] = 1
        fixed[t] = fixed[t - 1] + foretold[t - 1]
        wander = wandering[t - 1] ** 2 + (module.UNSURE * foretold[t - 1]) ** 2
        variance += [wander, (0.004 * scale) ** 2, (0.0004 * scale) ** 2]
    P = np.diag(variance)
    seen, off = H[1:], np.array(entropies[1:]) - entropies[0] - fixed[1:]
    S = seen @ P @ seen.T + np.diag(np.square(errors[1:]))
    z = P @ seen.T @ np.linalg.solve(S, off)
    return np.array([entropies[0] + fixed[-1] + H[-1] @ z, b[-1].sum(0) @ z])


def test_the_filter_is_the_exact_posterior():
    law = Multiplier("1x")
    entropies, foretold = [1.0, 0.93, 0.97, 0.9, 0.95], [-0.02, 0.03, -0.05, 0.01]
    # the filter begins anew with the second iteration, after updates that nobody could foresee
    state = law.foretell(law.observe(law.init(), Observation(1.0, stderr=0.02)), 0.5, 1)
    errors, wandering = [], []
    for i, H in enumerate(entropies):
        # an error of 2% of the entropy that is expected
        expected = state.mean[0] if i else H
        errors.append(0.02 * expected)
        state = law.observe(state, Observation(H, stderr=0.02 * H))
        if i < len(foretold):
            wandering.append(0.35 * 0.02 * state.mean[0])  # of the error of the entropy known
            state = law.foretell(state, foretold[i], 1)
    mean = posterior(entropies, errors, wandering, foretold, 1.0)
    assert (state.mean[0], state.bias) == pytest.approx(tuple(mean), rel=1e-9)


def test_what_became_of_the_same_tokens_corrects_entropy_and_bias():
    law = Multiplier("1x")
    state = law.foretell(law.observe(law.init(), Observation(1.0, stderr=0.05)), 0.0, 2)
    seen = state.measured(1, -0.2, 1e-12)  # nearly exact
    assert seen.mean[1] == pytest.approx(-0.2, rel=1e-3)
    assert seen.mean[0] == pytest.approx(0.8, rel=1e-2)  # D and H wander together
    assert seen.bias < 0
    assert state.measured(1, -0.2, 1e12).mean == pytest.approx(state.mean, abs=1e-9)


def test_the_multiplier_by_hand():
    law, state = Multiplier(0.9), Multiplier(0.9).init()
    state = law.observe(state, Observation(1.0, stderr=0.02))
    state = replace(state, inside=0.05, clipping=0.5, norm=2.0)
    held = Momentum(young=0.2, lasting=0.1, corrected=0.5)
    # momentum holds .05 / .5 of the multiplier
    state = law.responds(state, Response(drift=-0.01, gain=0.02, norm=1.0), held)
    assert (state.drift, state.gain, state.slope) == pytest.approx((-0.012, 0.02, 1.0))
    # N = 2 iterations of 4 updates: W = 8 * .1 / 4 = .2; d = (.9 - 1) / 8
    assert Momentum(0.15, 0.1, 0.5).lasting_part(4) == pytest.approx(0.2)
    taken = 0.05 / 0.5 + (-0.1 / 8 + 0.01) / (0.2 * 0.02)
    after = law.decide(state, held, 4)
    assert after.value == pytest.approx(taken / 0.5)
    # the next update takes w = .2 of the gradient
    assert after.coming == pytest.approx(-0.01 + 0.2 * (taken - 0.1) * 0.02)
    assert after.share == pytest.approx(abs(after.value) / 2)
    assert not after.bound
    # at most as long as the whole gradient was
    far = law.decide(replace(state, drift=-1.0), held, 4)
    assert (far.value, far.bound) == (2.0, True)
    # downwards by .05 of the first entropy an iteration: .0125 of an update, where .1 is wanted
    still = replace(state, norm=9.0, drift=-0.002)  # A = 0
    down = law.decide(replace(still, mean=(2.1, 0.0, 0.0, 0.0)), held, 4)
    assert down.value == pytest.approx((0.1 - 0.0125 / 0.004) / 0.5)
    # upwards by half of the distance to the first entropy, or by .04 of it where that is more;
    # a bias comes on top
    for H, bias, wanted in ((0.1, 0.0, 0.8 / 8), (1.1, -0.02, 0.06 / 4)):
        far_up = replace(still, target=H + 0.8, mean=(H, 0.0, bias, 0.0), norm=99.0)
        up = law.decide(far_up, held, 4)
        assert up.value == pytest.approx((0.1 + wanted / 0.004) / 0.5)
    # and none at all where entropy falls faster by itself, if that is less than what is wanted
    fast = law.decide(replace(state, mean=(2.0, 0.0, 0.0, 0.0), drift=-0.052), held, 4)
    assert fast.value == 0
    assert Multiplier(0.9, "below").decide(replace(state, drift=1.0), held, 4).value == 0


def test_an_update_without_a_gradient_has_no_multiplier():
    # every token of the minibatch is masked
    law = Multiplier(0.9)
    state = law.observe(law.init(), Observation(1.0, stderr=0.02))
    state = replace(state, inside=0.05, norm=2.0)
    held = Momentum(young=0.2, lasting=0.1, corrected=0.5)
    after = law.decide(law.responds(state, Response(0.0, 0.0, 0.0), held), held, 4)
    assert (after.value, after.share, after.bound) == (0.0, 0.0, False)
    # momentum keeps nine tenths of the multiplier that it had
    assert law.stepped(after, 2.0, math.inf, 0.1, 4).inside == pytest.approx(0.045)


def test_between_two_gradients_the_drift_follows_momentum():
    # a gradient taken after the update that brought the multiplier in says the same
    law = Multiplier(0.9)
    state = law.observe(law.init(), Observation(1.0, stderr=0.02))
    state = replace(state, norm=9.0, inside=0.05)
    held = Momentum(young=0.1, lasting=0.1, corrected=0.5)
    before = law.responds(state, Response(drift=-0.01, gain=0.02, norm=1.0), held)
    later = replace(before, inside=0.15)
    # C went from .1 to .3, and with it A by .2 B
    again = law.responds(later, Response(drift=-0.006, gain=0.02, norm=1.0), held)
    assert law.decide(later, held, 4).value == pytest.approx(law.decide(again, held, 4).value)


def test_a_small_learning_rate_asks_for_a_small_change():
    # A, B and what is wanted are in proportion to it, so that the multiplier is the same
    law = Multiplier(0.9)
    state = law.observe(law.init(), Observation(1.0, stderr=0.02))
    state = replace(state, inside=0.05, norm=9.0)
    held = Momentum(young=0.2, lasting=0.1, corrected=0.5)
    full = law.responds(state, Response(-0.01, 0.02, 1.0), held)
    tenth = law.responds(state, Response(-0.001, 0.002, 1.0), held)
    slow = law.decide(tenth, replace(held, pace=0.1), 4)
    assert slow.value == pytest.approx(law.decide(full, held, 4).value)
    parameters = weights()
    optimizer = adamw(parameters, 2, 0.0)
    optimizer.param_groups[0] |= {"initial_lr": 0.04}  # its rate is .01
    assert momentum(optimizer).pace == 0.25


def test_a_high_entropy_counts_as_much_as_a_low_one():
    # the error is taken of the entropy that is expected, so that 1 + x and 1 - x weigh alike
    law = Multiplier("1x")
    state = law.observe(law.init(), Observation(1.0, stderr=0.1))
    up, down = (law.observe(state, Observation(1 + x, stderr=0.1 * (1 + x))) for x in (0.3, -0.3))
    assert up.mean[0] - 1 == pytest.approx(1 - down.mean[0], rel=1e-9)


def test_the_filter_follows_the_updates_that_were_made():
    law = Multiplier("1x")
    before = law.decided(law.observe(law.init(), Observation(1.0, stderr=0.02)), 0.3, -0.1, 1.0)
    made = law.stepped(before, 2.0, 1.0, 0.1, 4)
    assert made.mean[:2] == pytest.approx((0.9, -0.1))
    assert (made.inside, made.clipping) == pytest.approx((0.1 * 0.5 * 0.3, 0.5), rel=1e-5)
    # under fp16 a step that overflows is skipped
    assert law.stepped(before, math.inf, 1.0, 0.1, 4) == before


def play(law: Multiplier, drift: float, K: int, *, lag: float = 0.9, n: int = 60, noise=0.02):
    """Entropies of a plant with AdamW's momentum, and the last state."""
    rng, state, H, m, t, seen = np.random.default_rng(1), law.init(), 1.0, 0.0, 0, []
    gain = 0.05 / K
    for _ in range(n):
        state = law.observe(state, Observation(H + noise * rng.standard_normal(), stderr=noise))
        seen.append(H)
        for update in range(K):
            if t:
                corrected = 1 - lag**t
                held = Momentum((1 - lag) / (1 - lag ** (t + 1)), 1 - lag, corrected)
                if t < 1 / (1 - lag) or update == K // 2:  # as `Hold.due`
                    state = law.responds(state, Response(m / corrected, gain, 1.0), held)
                state = law.decide(state, held, K)
            else:
                state = law.decided(state, 0.0, 0.0, 0.0)
            state = law.stepped(state, 1.0, math.inf, 1 - lag, K)
            fresh = drift / K + 0.3 * abs(drift) / K * rng.standard_normal()
            m = lag * m + (1 - lag) * (fresh + state.value * gain)
            t += 1
            H += m / (1 - lag**t)
    return np.array(seen), state


@pytest.mark.parametrize("K", [1, 2, 4, 16])
@pytest.mark.parametrize("drift", [-0.04, 0.02])
@pytest.mark.parametrize("target", ["1x", "0.7x"])
def test_a_plant_with_momentum_is_held(K, drift, target):
    H, state = play(Multiplier(target), drift, K)
    wanted = float(target[:-1]) * state.first
    assert abs(H[25:].mean() / wanted - 1) < 0.02
    assert H[25:].std() / wanted < 0.03
    assert state.value == pytest.approx(-drift / 0.05, abs=0.6)


def test_from_below_only_it_waits_and_then_holds():
    H, state = play(Multiplier("0.7x", "below"), -0.04, 4)
    assert (np.diff(H[:6]) < 0).all()
    assert abs(H[25:].mean() / (0.7 * state.first) - 1) < 0.03


def test_a_schedule_needs_progress():
    law = Multiplier("linear 1x 0.5x")
    state = law.observe(law.init(), Observation(1.0, progress=0.0, stderr=0.02))
    assert law.observe(state, Observation(1.0, progress=0.5, stderr=0.02)).target == 0.75
    refused(lambda: law.observe(law.init(), Observation(1.0)), "`progress`")


def test_a_state_goes_on_from_its_json():
    law = Multiplier("1x")
    state = law.observe(law.init(), Observation(1.0, stderr=0.02))
    state = law.foretell(state, 0.01, 4)
    again = MultiplierState.from_dict(json.loads(json.dumps(state.to_dict())))
    assert again == state
    assert law.observe(again, Observation(0.9)) == law.observe(state, Observation(0.9))


# ---------------------------------------------------------------------------- as a method


def test_what_updates_changed_goes_to_another_process():
    one, other = (Hold.of(es.make_objective("thermostat", target=0.8)) for _ in range(2))
    assert one is not None
    assert other is not None
    for hold in (one, other):
        hold._objective.observe(entropy=1.0, stderr=0.02)
    held = Momentum(0.2, 0.1, 0.5)
    state = one.law.responds(replace(one.state, norm=1.0), Response(-0.01, 0.1, 1.0), held)
    one.state = one.law.decide(state, held, 4)
    other.take(json.loads(json.dumps(one.numbers())))
    assert other.state == one.state
    assert Hold.of(es.make_objective("grpo")) is None
    assert Hold.of(es.make_objective("thermostat", knob="zeta")) is None


def test_the_bonus_is_in_the_loss_unless_it_is_solved_for_exactly():
    logp = -torch.rand(4, 3, generator=torch.Generator().manual_seed(0)) - 0.1
    batch = es.TokenBatch(
        logp, logp, torch.ones(4, 3), torch.zeros(4), entropy=2 * logp.abs(),
        old_entropy=2 * logp.abs(),
    )  # fmt: skip
    for how, wanted in (("sample", -0.3 * float(2 * logp.abs().mean())), ("exact", 0.0)):
        objective = es.make_objective("thermostat", target=1.0, solve=how)
        hold = Hold.of(objective)
        assert hold is not None
        hold.state = replace(hold.state, value=0.3)
        assert float(objective.loss(batch).loss) == pytest.approx(wanted, rel=1e-6)


def test_the_gradient_is_taken_once_an_iteration():
    hold, parameters = Hold.of(es.make_objective("thermostat")), weights()
    assert hold is not None
    hold._objective.observe(entropy=1.0)
    new, young, old = (adamw(parameters, steps, 0.0) for steps in (0, 9, 11))
    assert not hold.due(new, 0, 4)  # nothing to learn before the first update
    assert hold.due(old, 0, 4)  # nothing is known yet
    hold.look(old, Response(-0.01, 0.1, 1.0))
    # momentum of .9 settles in ten updates
    assert [hold.due(young, i, 4) for i in range(4)] == [True] * 4
    assert [hold.due(old, i, 4) for i in range(4)] == [False, False, True, False]
    assert hold.due(old, 0, 1)


@pytest.mark.parametrize(("updates", "in_even"), [(1, 0), (2, 0), (3, 1), (4, 1)])
def test_of_iterations_with_few_updates_every_second_has_a_gradient(updates, in_even):
    hold = Hold.of(es.make_objective("thermostat"))
    assert hold is not None
    old = adamw(weights(), 11, 0.0)
    taken = []
    for iteration in range(6):
        hold._objective.observe(entropy=1.0)
        if not iteration:
            hold.look(old, Response(-0.01, 0.1, 1.0))
        taken.append([hold.due(old, i, updates) for i in range(updates)])
    assert [sum(each) for each in taken] == [1, in_even] * 3
    assert all(each[updates // 2] for each in taken[::2])


def test_a_sample_is_a_fourth_and_eight_at_least():
    g = torch.Generator()
    for count, n in ((64, 16), (20, 8), (5, 5), (33, 9)):
        rows, weights = sample(torch.rand(count, generator=g), g.manual_seed(0))
        assert len(rows) == len(weights) == n
        assert len(rows.unique()) == n
        assert rows.max() < count
    flat = torch.ones(64)
    assert len(sample(flat, g, world=4, multiple=5)[0]) == 20
    assert len(sample(flat[:8], g, world=4)[0]) == 2
    assert sample(torch.zeros(5), g)[1].tolist() == [1.0] * 5


def test_rollouts_are_drawn_by_their_entropy_and_weighed_by_their_chance():
    # two carry nearly all: they are always drawn, and the other six places fall to thirty alike
    entropy = torch.full((32,), 0.1).index_fill(0, torch.tensor([3, 20]), 6.0)
    g, drawn, total = torch.Generator().manual_seed(0), torch.zeros(32), 0.0
    other = torch.randn(32, generator=g, dtype=torch.float64)  # anything that is summed
    for _ in range(1000):
        rows, weights = sample(entropy, g)
        drawn[rows] += 1
        total += float(other[rows] @ weights)
        assert {3, 20} <= set(rows.tolist())
        assert weights[rows == 3].item() == 1
    assert drawn[0] / 1000 == pytest.approx(6 / 30, abs=0.05)
    # a draw's standard deviation is about sqrt(30 * (30 / 6 - 1)) = 11
    assert total / 1000 == pytest.approx(float(other.sum()), abs=4 * 11 / 1000**0.5)


def test_the_standard_error_between_prompts_by_hand():
    # two prompts: sums 1 * 2 + 3 * 2 = 8 of 4 tokens, 2 * 1 + 6 * 3 = 20 of 4; the mean is 3.5
    H, tokens = torch.tensor([1.0, 3.0, 2.0, 6.0]), torch.tensor([2, 2, 1, 3])
    group = torch.tensor([7, 7, 3, 3])
    off = (8 - 3.5 * 4) ** 2 + (20 - 3.5 * 4) ** 2
    assert standard_error(H, tokens, group) == pytest.approx(math.sqrt(2 * off) / 8)
    # one prompt: its rollouts are compared
    alone = standard_error(H[:2], tokens[:2], group[:2])
    assert alone == pytest.approx(math.sqrt(2 * ((1 - 2) ** 2 * 4 * 2)) / 4)
    assert math.isnan(standard_error(H[:1], tokens[:1], group[:1]))
    # a prompt whose rollouts are masked is no prompt
    more = torch.cat([tokens[:2], torch.zeros(2)])
    assert standard_error(H, more, group) == alone
    assert math.isnan(standard_error(H, 0 * tokens, group))
    # entropy rose by that much at each token; what is masked does not count
    mask = torch.arange(3) < tokens[:, None]
    rise = torch.where(mask, H[:, None], 100.0)
    zeros = torch.zeros(4, 3)
    batch = es.TokenBatch(zeros, zeros, mask, group=group, old_entropy=zeros + 0.5)
    moved = Moved.of(rise + 0.5, batch)
    assert moved.change == pytest.approx(3.5)
    assert moved.stderr == pytest.approx(math.sqrt(2 * off) / 8)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"solve": "often"}, "thermostat: solve must be 'sample' or 'exact', got 'often'"),
        ({"side": "above"}, "thermostat: side must be 'both' or 'below', got 'above'"),
        ({"target": "much"}, "thermostat: target must be .*got 'much'"),
        ({"knob": "eta"}, "thermostat: knob must be 'multiplier'"),
    ],
)
def test_errors_name_the_parameter(given, words):
    with pytest.raises(ValueError, match=words):
        es.make_objective("thermostat", **given)


def test_two_thermostats_are_refused():
    refused(
        lambda: es.make_objective(["thermostat", {"name": "repo_r", "controller": "thermostat"}]),
        "both thermostats",
    )
    refused(
        lambda: es.make_objective(
            ["thermostat", {"name": "entropy_bonus", "controller": "doubling"}]
        ),
        "both control the entropy coefficient",
    )
