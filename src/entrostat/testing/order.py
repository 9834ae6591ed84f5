"""Rules: a decision depends on the batch and the seed only."""

from __future__ import annotations

import json

import torch

from ..core.batch import TokenBatch
from .data import AGGREGATIONS, Data, contract_data, moved, observe
from .findings import Broken, alike, expect, rule, same_pass
from .subject import Pass, Subject, equal_terms

ORDER = torch.tensor([3, 0, 5, 1, 4, 2])
_SEEDS = range(8)


def reordered(data: Data) -> Data:
    return {key: value[ORDER] for key, value in data.items()}


@rule(
    "The order of the rollouts does not matter.",
    "Compare rollouts by batch.group, never by their place. A method that draws tokens says so: "
    "Allowed(random=True, all_of={...}), with the parameters under which it takes all.",
)
def order(subject: Subject) -> None:
    """Permute the six rollouts; random choices select every candidate."""
    allowed = subject.allowed
    if allowed.random and allowed.all_of is None:
        return
    for aggregation in AGGREGATIONS:
        when = f"with the rollouts in another order ({aggregation})"
        if allowed.all_of is None:
            clean = subject.clean(aggregation)
            other = subject.run(reordered(contract_data()), aggregation)
        else:
            clean, other = (
                Pass(moved(subject.fresh(aggregation, **allowed.all_of)), data)
                for data in (contract_data(), reordered(contract_data()))
            )
            few = subject.clean().touched
            expect(
                clean.touched > few,
                f"with {dict(allowed.all_of)} a draw falls on {clean.touched} tokens, without on "
                f"{few}; all_of must make it take all",
            )
        same_pass(other, clean, when, ORDER.argsort())


@rule(
    "Chance comes from the generator that `plan` is handed, and only where it is declared.",
    "Draw with batch.whole.pick(candidates, count, generator) or batch.whole.largest(..., "
    "generator), never with torch.rand. A method that draws says Allowed(random=True).",
)
def chance(subject: Subject) -> None:
    """Equal seeds give equal plans; other seeds another plan if the method draws, else the same."""
    results, again = (
        [subject.run(contract_data(), seed=seed) for seed in _SEEDS] for _ in range(2)
    )
    for one, two in zip(results, again, strict=True):
        expect(equal_terms(one.terms, two.terms), "two plans with the same seed differ")
    varies = not all(equal_terms(results[0].terms, other.terms) for other in results)
    if not subject.allowed.random:
        expect(not varies, "the plan depends on the generator's seed, which is not declared")
        return
    expect(varies, f"the plans of {len(_SEEDS)} seeds are all the same, though random=True")
    shuffled = [subject.run(reordered(contract_data()), seed=seed) for seed in _SEEDS]
    sizes = {found.touched for found in (*results, *shuffled)}
    expect(
        len(sizes) == 1 and sizes != {0},
        f"the number of tokens drawn is {sorted(sizes)} by seed; it must be one number",
    )


@rule(
    "The same inputs give the same bits, and planning touches nothing else.",
    "`prepare` and `plan` return copies (batch.replace, terms.replace) and keep nothing; only "
    "`observe` moves the state. Draw from the generator that `plan` gets.",
)
def repeatable(subject: Subject) -> None:
    """Run twice on one objective; state, inputs and the global generator stay unchanged."""
    data = contract_data()
    before = {key: value.clone() for key, value in data.items()}
    objective = subject.objective()
    state, noise = objective.state_dict(), torch.random.get_rng_state()
    first, second = Pass(objective, data), Pass(objective, data)
    same_pass(second, first, "at a second call", exact=True)
    expect(objective.state_dict() == state, "prepare, plan or loss changed the state")
    expect(
        torch.equal(torch.random.get_rng_state(), noise), "torch's global generator was drawn from"
    )
    for key, value in data.items():
        alike(f"the input {key}", value, before[key], "after two passes")


@rule(
    "What is decided carries no gradient, and every figure is one number.",
    "Detach what you compute from batch.logp and batch.entropy in `prepare`; a figure of the terms "
    "is a tensor of shape [].",
)
def no_gradient(subject: Subject) -> None:
    found = subject.clean()
    for name, value in vars(found.terms).items():
        if isinstance(value, torch.Tensor):
            expect(not value.requires_grad, f"{name} of the terms carries a gradient")
    expect(
        not found.batch.need("advantages").requires_grad, "the prepared advantages carry a gradient"
    )
    for key, value in found.figures.items():
        expect(not value.requires_grad, f"the figure {key} carries a gradient")
        expect(value.ndim == 0, f"the figure {key} has the shape {list(value.shape)}")


@rule(
    "The state survives JSON: what is restored goes on as if it had not stopped.",
    "to_dict gives every number that observe and the hooks read, and from_dict takes them back.",
)
def state(subject: Subject) -> None:
    one = subject.objective()
    two = subject.fresh(one.aggregation)
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for count, entropy in enumerate((0.7, 0.1, 0.5)):
        when = f"{count} iterations after it was restored"
        expect(two.metrics() == one.metrics(), f"{when} metrics() differ")
        same_pass(Pass(two, contract_data()), Pass(one, contract_data()), when, exact=True)
        for objective in (one, two):
            observe(objective, entropy, 0.8)
    expect(two.state_dict() == one.state_dict(), "three iterations later the states differ")


@rule(
    "`reads_current` is true where `plan` reads the current policy, and only there.",
    "Set it to False in a class whose `plan` reads nothing of batch.logp and batch.entropy (hosts "
    "then spare a pass), and leave it at True in one that does.",
)
def reads_current(subject: Subject) -> None:
    """Plan under the data's policy and three others, with the same old-policy fields."""
    objective = subject.objective()
    batch = objective.prepare(TokenBatch(**contract_data()))
    g = torch.Generator().manual_seed(0)
    plans = []
    for _ in range(4):
        plans.append(objective.plan(batch, torch.Generator().manual_seed(5)))
        logp, entropy = (torch.rand(6, 5, generator=g, dtype=torch.float64) for _ in range(2))
        batch = batch.replace(logp=-3 * logp.square(), entropy=2 * entropy)
    same = all(equal_terms(plans[0], other) for other in plans)
    expect(
        same != objective.reads_current,
        f"under four policies the plan {'stays' if same else 'changes'}, and reads_current is "
        f"{objective.reads_current}",
    )


@rule(
    "Advantages are prepared from the old policy alone.",
    "Read old_logp and old_entropy in `shape`, `choose` and `prepare`: a rollout batch is prepared "
    "once, before its first update.",
)
def prepare_reads_the_old(subject: Subject) -> None:
    objective, data = subject.objective(), contract_data()
    other = data | {"logp": data["ref_logp"] - 1, "entropy": 2 * data["entropy"]}
    first, second = (objective.prepare(TokenBatch(**d)).need("advantages") for d in (data, other))
    alike("a prepared advantage", second, first, "under another current policy")


@rule(
    "`needs` names every field that is read beyond log-probs, rewards and groups.",
    "Add the field to `needs`, so that a host without it refuses the method before the run.",
)
def needs(subject: Subject) -> None:
    objective, data = subject.objective(), contract_data()
    always = {"logp", "old_logp", "mask", "rewards", "group"}
    kept = {key: value for key, value in data.items() if key in always | objective.needs}
    left = sorted(set(data) - set(kept))
    try:
        bare = Pass(objective, kept)
    except Exception as error:
        raise Broken(
            f"without {', '.join(left)} it raises {type(error).__name__}: {error}"
        ) from error
    same_pass(bare, subject.clean(), f"without {', '.join(left)}", exact=True)
