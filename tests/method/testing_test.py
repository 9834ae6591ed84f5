"""`entrostat.testing`: a sound method passes, and each rule catches a method that breaks it.

Rules that no hook can break (an objective sees to them) are tried on an objective that was tampered
with.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import entrostat as es
from builders import refused
from entrostat.core.batch import at_least_float32
from entrostat.method import METHODS
from entrostat.testing import RULES, Added, Allowed, Subject, check_method, contract_data, keep


@dataclass(frozen=True)
class Damped(es.Method):
    """Damped: tokens that the policy was sure of count less."""

    strength: float = 0.5

    def prepare(self, batch, state):
        p0 = at_least_float32(batch.old_logp).exp()
        return batch.replace(advantages=batch.advantages * (1 - self.strength * p0))


def made(name: str = "Slip", **body: Any) -> type[es.Method]:
    """A method of these hooks and attributes."""
    return dataclass(frozen=True)(type(name, (es.Method,), {"__doc__": "As tested."} | body))


def planning(edit: Callable[..., dict[str, Any]], **body: Any) -> type[es.Method]:
    """A method whose `plan` changes the terms by `edit(terms, batch, generator)`."""

    def plan(self, batch, terms, state, generator):
        return terms.replace(**edit(terms, batch, generator))

    return made(plan=plan, **{"reads_current": False} | body)


def preparing(edit: Callable[..., torch.Tensor], **body: Any) -> type[es.Method]:
    """A method whose `prepare` makes the advantages `edit(advantages, batch)`."""

    def prepare(self, batch, state):
        return batch.replace(advantages=edit(batch.advantages, batch))

    return made(prepare=prepare, **body)


def test_a_sound_method_passes_and_leaves_no_name_behind() -> None:
    before = dict(METHODS)
    check_method(Damped)
    check_method(Damped, {"strength": 1.0}, rules=["masked", "layout"])
    assert before == METHODS


@pytest.mark.parametrize(
    "method",
    ["repo_r", {"name": "steer", "mapping": "binary"}, ["dapo", "repo_r"], METHODS["steer"]],
)
def test_whatever_make_objective_takes_is_taken(method: Any) -> None:
    check_method(method, rules=["masked", "order"])


@pytest.mark.parametrize("method", ["repo_r", "adapo"])
def test_every_signal_of_a_host_is_shown(method: str) -> None:
    check_method(method, {"signal": "response_mean"}, rules=["masked", "state"])


def test_what_is_declared_is_let_pass() -> None:
    quadrant = Allowed(random=True, all_of={"share": 1.0})
    check_method("quadrant", {"share": 0.25}, allowed=quadrant, rules=["order", "chance"])
    bonus = Allowed(added=Added(entropy=2e-3))
    check_method("entropy_bonus", {"coef": 2e-3}, allowed=bonus, rules=["zero_advantages"])
    check_method("entropy_bonus", {"coef": 2e-3}, rules=["zero_advantages"])  # from its terms
    check_method("kl_ref", {"form": "k1"}, rules=["zero_advantages", "one_token"])


@dataclass(frozen=True)
class Count:
    """A state that forgets `entropy` when it is saved."""

    seen: int = 0
    entropy: float = 0.0

    def to_dict(self):
        return {"seen": self.seen}

    @classmethod
    def from_dict(cls, data):
        return cls(**data)


def drawn(share: float) -> Callable[..., dict[str, Any]]:
    def edit(terms, batch, generator):
        n = max(1, int(share * batch.whole.tokens))
        return {"frozen": batch.whole.pick(batch.mask, n, generator)}

    return edit


def by_rows(A: torch.Tensor, batch: es.TokenBatch) -> torch.Tensor:
    return A * torch.arange(1, len(A) + 1, dtype=A.dtype)[:, None]


def noisy(terms, batch, generator):
    return {"weight": terms.weight * (1 + torch.rand(()))}


def mean_by_hand(terms, batch):
    return {"figures": {"slip/x": terms.weight.new_zeros(()) / batch.whole.tokens}}


def sure(terms, batch, generator):
    return {"weight": terms.weight * batch.logp.exp()}


CALLS = []


def remembering(A: torch.Tensor, batch: es.TokenBatch) -> torch.Tensor:
    CALLS.append(1)
    return A * len(CALLS)


# (rule, what breaks it, words of the finding, words of the advice)
BROKEN = [
    ("masked", planning(lambda t, b, g: {"weight": 0 * t.weight}), "no token gets a gradient",
     "pass parameters under which"),
    ("padding", preparing(lambda A, b: A * (1 + b.old_logp.mean())), "with padding .token_mean.",
     "batch.whole.tokens"),
    ("no_tokens", planning(lambda t, b, g: mean_by_hand(t, b)),
     "the figure slip/x is nan", "max.1, batch.whole.tokens"),
    ("empty_rollouts", preparing(lambda A, b: A * (1 + b.rewards.mean())), "three rollouts without",
     "batch.lengths == 0"),
    ("zero_advantages", preparing(lambda A, b: A + 1), "with every reward 0.1 .token_mean. the "
     "gradient of logp at row 0, token 0 is -0", "Multiply advantages"),
    ("zero_advantages", planning(lambda t, b, g: vars(t.add_entropy(0.1)), needs=("entropy",)),
     "adds terms to the loss and the class does not say", "penalises = True"),
    ("one_token", preparing(lambda A, b: A - b.whole.mean(A)[0]), "of one token of advantage 1.5",
     "no_gradient_alone"),
    ("one_token", preparing(lambda A, b: A / (A - A.mean()).abs().sum()),
     "it raises ValueError: Slip.prepare: advantages is inf at 1 of 1 places", "at least two"),
    ("on_policy", planning(lambda t, b, g: {"weight": 1 / (b.logp - b.old_logp)}),
     "Slip.plan: weight is inf", "which is 0 there"),
    ("order", preparing(by_rows), "with the rollouts in another order", "never by their place"),
    ("chance", planning(drawn(0.5)), "depends on the generator's seed, which is not declared",
     "random=True"),
    ("chance", planning(noisy), "two plans with the same seed differ", "never with torch.rand"),
    ("repeatable", planning(lambda t, b, g: {"frozen": torch.rand(()) > 2 + 0 * t.weight}),
     "torch's global generator was drawn from", "that `plan` gets"),
    ("repeatable", preparing(remembering), "at a second call the loss is", "return copies"),
    ("no_gradient", planning(lambda t, b, g: {"figures": {"slip/w": t.weight[0]}}),
     r"the figure slip/w has the shape \[5\]", r"of shape \[\]"),
    ("state", made(
        init=lambda self: Count(),
        observe=lambda self, state, seen: Count(state.seen + 1, seen.entropy),
        prepare=lambda self, batch, state: batch.replace(
            advantages=batch.advantages * (1 + state.entropy)
        ),
     ), "0 iterations after it was restored the loss is", "to_dict gives every number"),
    ("reads_current", planning(sure), "the plan changes, and reads_current is False", "Set it to"),
    ("reads_current", planning(lambda t, b, g: {}, reads_current=True),
     "the plan stays, and reads_current is True", "spare a pass"),
    ("prepare_reads_the_old", preparing(lambda A, b: A * b.logp.exp()),
     "a prepared advantage at row 0, token 0 is", "Read old_logp"),
    ("needs", preparing(lambda A, b: A * b.old_entropy), "without .*old_entropy.* it raises "
     "TypeError", "Add the field to `needs`"),
    ("half_precision", planning(lambda t, b, g: {"weight": b.old_logp.exp()}),
     "from torch.bfloat16 .token_mean. weight of the terms is torch.bfloat16", "at_least_float32"),
    ("wider_precision", planning(lambda t, b, g: {"weight": t.weight.float()}),
     "from float64 .token_mean. weight of the terms is torch.float32", "never narrow"),
    ("layout", planning(
        lambda t, b, g: {"weight": t.weight * (1 + b.old_logp[b.mask].sum())}
     ), "on 4 ranks in another order and with other padding weight differ", "row_sums"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "method", "finding", "advice"), BROKEN)
def test_a_rule_names_what_breaks_it(rule: str, method: Any, finding: str, advice: str) -> None:
    CALLS.clear()
    words = rf"Slip breaks the rule '{rule}'\. {re.escape(RULES[rule].says)} But .*{finding}"
    with pytest.raises(AssertionError, match=f"{words}.*{advice}") as caught:
        check_method(method, rules=[rule])
    assert "\n" not in str(caught.value)


def test_a_method_that_is_broken_in_one_way_keeps_the_other_rules() -> None:
    refused(lambda: check_method(preparing(by_rows)), "'empty_rollouts'", error=AssertionError)
    check_method(preparing(by_rows), rules=set(RULES) - {"order", "layout", "empty_rollouts"})


# ---------------------------------------------------------------------------- tampered objectives


class Tampered(Subject):
    """The method `repo_r` in an objective, one of whose calls is not what it was."""

    def __init__(self, call: str, change: Callable[..., Any]) -> None:
        super().__init__("repo_r")
        self._call, self._change = call, change

    def fresh(self, *arguments: Any, **params: Any) -> es.Objective:
        objective = super().fresh(*arguments, **params)
        real = getattr(objective, self._call)
        setattr(objective, self._call, lambda *given, **more: self._change(real, *given, **more))
        return objective


def half_the_gradient(real, batch, terms=None, generator=None):
    out = real(batch, terms, generator)
    return replace(out, loss=(out.loss + out.loss.detach()) / 2)


def mean_of_rows(real, batch, terms=None, generator=None):
    out = real(batch, terms, generator)
    return replace(out, loss=out.loss / len(batch))


def without_the_mask(real, batch):
    A = real(batch).advantages
    return batch.replace(advantages=A + batch.mask.sum() * 0 + 1e-3 * batch.logp.isnan().sum())


def attached(real, batch):
    batch = real(batch)
    return batch.replace(advantages=batch.advantages * batch.logp)


@pytest.mark.parametrize(
    ("rule", "call", "change", "finding"),
    [
        ("finite_differences", "loss", half_the_gradient, "beside a difference .token_mean. the "
         "gradient of logp at row 0"),
        ("micro_batches", "loss", mean_of_rows, "cut into 6 micro-batches .token_mean. the sum of "
         "the losses is"),
        ("no_gradient", "prepare", attached, "the prepared advantages carry a gradient"),
    ],
)  # fmt: skip
def test_rules_that_no_hook_can_break(rule: str, call: str, change: Any, finding: str) -> None:
    with pytest.raises(AssertionError, match=rf"repo_r breaks the rule '{rule}'.*{finding}"):
        keep(Tampered(call, change), RULES[rule])


@pytest.mark.parametrize("rule", ["masked", "masked_advantages"])
def test_masked_places_that_are_read_are_found(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = preparing(lambda A, b: A * (1 + A.sum() + b.old_logp.sum()))
    check_method(method, rules=[rule])

    def admit(self, name):  # nothing is blanked
        pass

    monkeypatch.setattr(es.TokenBatch, "_admit", admit)
    if rule == "masked_advantages":
        for module in ("objective", "preparation"):
            monkeypatch.setattr(f"entrostat.core.{module}.per_token", lambda b: b.advantages)
    with pytest.raises(AssertionError, match=rf"Slip breaks the rule '{rule}'.* is nan, it should"):
        check_method(method, rules=[rule])


@pytest.mark.parametrize("rule", ["mask_dtypes", "one_advantage_each"])
def test_shapes_and_kinds_that_matter_are_found(rule: str) -> None:
    def change(real, batch):
        seen.append(1)
        found = real(batch)
        return found.replace(advantages=found.advantages * len(seen))

    seen: list[int] = []  # it answers otherwise at each call
    refused(
        lambda: keep(Tampered("prepare", change), RULES[rule]), f"'{rule}'", error=AssertionError
    )


# ---------------------------------------------------------------------------- what is allowed


@pytest.mark.parametrize(
    ("method", "allowed", "rule", "words"),
    [
        ("repo_r", Allowed(equal_rewards_teach=True), "zero_advantages",
         "with every reward 0.1 there is no gradient; leave equal_rewards_teach out"),
        ("repo_r", Allowed(random=True), "chance", "all the same, though random=True"),
        ("repo_r", Allowed(no_gradient_alone=(1,)), "one_token", "leave 1 out of no_gradient_al"),
        ("quadrant", Allowed(random=True, all_of={"share": 0.1}), "order", "must make it take all"),
        ("quadrant", Allowed(random=True, all_of={"share": 0.5}), "order", "in another order"),
        ("entropy_bonus", Allowed(added=Added(entropy=0.5)), "zero_advantages",
         "the gradient of entropy at row 0, token 0 is .*, it should be -0.0277"),
        ("repo_r", Allowed(added=Added(ref_kl=0.5)), "zero_advantages", "the gradient of logp"),
    ],
)  # fmt: skip
def test_what_is_allowed_has_to_be_so(method: str, allowed: Allowed, rule: str, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_method(method, allowed=allowed, rules=[rule])


def test_the_size_of_a_draw_is_one_number() -> None:
    def plan(self, batch, terms, state, generator):
        n = 1 + int(2 * torch.rand((), generator=generator))
        return terms.replace(frozen=batch.whole.pick(batch.mask, n, generator))

    refused(
        lambda: check_method(
            made(plan=plan, reads_current=False), allowed=Allowed(random=True), rules=["chance"]
        ),
        "tokens drawn",
        "[1, 2]",
        error=AssertionError,
    )


# ---------------------------------------------------------------------------- what cannot be tested


def test_a_class_that_could_not_be_registered_says_why() -> None:
    class Plain(es.Method):
        """Not a dataclass."""

    refused(lambda: check_method(Plain), "Plain", error=AssertionError)
    refused(lambda: check_method(int), "must derive from", error=AssertionError)


def test_names_that_there_are_not_are_errors() -> None:
    refused(lambda: check_method("repo_r", rules=["mask"]), "'mask'", "'masked'")
    refused(lambda: check_method("repo_x", rules=["masked"]), "'repo_x'", error=AssertionError)


def test_the_data_are_what_they_say() -> None:
    data = contract_data()
    inside = data["mask"].bool()
    assert int(inside.sum()) == 18
    ratio = (data["logp"] - data["old_logp"]).exp()[inside]
    assert 0.5 <= ratio.min() < 0.8 < 1.28 < ratio.max() <= 2
    A = es.advantages("grpo", data["rewards"], data["group"])[:, None].expand(6, 5)[inside]
    likely = data["logp"][inside] > data["logp"][inside].mean()
    for positive in (True, False):
        for high in (True, False):
            assert ((positive == (A > 0)) & (likely == high)).sum() >= 2
