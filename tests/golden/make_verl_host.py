"""Golden values of entrostat inside veRL: each method's loss and gradients through veRL's seam.

    .venv-verl/bin/python tests/golden/make_verl_host.py            # writes verl_host.json
    .venv-verl/bin/python tests/golden/make_verl_host.py --check    # compares with verl_host.json

16 rollouts in 4 groups, as the driver has them, with a synthetic padding row as veRL adds them:
`driver.prepare`, the batch in veRL's nested form, `loss.token_batch`, the plan, and `loss.loss` on
micro-batches of 4 that veRL's own functions cut and pad, log-probs and entropies being leaves in
the place of an engine's output. `tests/trainers/verl/verl_host_test.py` asks `Objective` for the
same in one go. Everything is float64.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from common import main, plain, tensor, versions
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import response_to_nested

import entrostat as es
from entrostat.core.batch import TokenBatch
from entrostat.core.process_ranks import shared_generator
from entrostat.trainers.verl.driver import prepare
from entrostat.trainers.verl.loss import (
    GROUP,
    IDLE,
    MASK,
    REWARD,
    ROLLOUT,
    ROW,
    Update,
    loss,
    token_batch,
)  # fmt: skip

B, T, K, STEP = 16, 9, 4, 7
# what differs from a method's defaults, so that it chooses a token or weighs one
GIVEN: dict[str, dict[str, float]] = {
    "pos_adv": {"delta": 0.01, "weight": 1.0},
    "quadrant": {"share": 0.125},  # 1 of 8
    "rand_pos_clip": {"at_least": 1},
}
SEEN = {"entropy": 0.1, "progress": 0.8}  # what the controllers see, twice before the batch


def make_inputs() -> dict[str, Any]:
    """[B, T] nested lists with four decimals; ratios on both sides of the clip bounds."""
    g = torch.Generator().manual_seed(31)

    def rand() -> torch.Tensor:
        return torch.rand(B, T, generator=g, dtype=torch.float64)

    old = -0.1 - 6 * rand() ** 2
    logp = (old + (2 * rand() - 1) * 0.5).clamp(max=-0.01)
    H0 = 0.05 + 2 * rand()
    figures = {
        "old_logp": old,
        "logp": logp,
        "ref_logp": (logp + (2 * rand() - 1) * 0.6).clamp(max=-0.01),
        "old_entropy": H0,
        "entropy": (H0 + (2 * rand() - 1) * 0.04).clamp(min=0.01),
    }
    lengths = [1 + (5 * i) % T for i in range(B)]
    mask = [[int(t < n) for t in range(T)] for n in lengths]
    mask[2][1] = 0  # a hole, as tool output leaves
    return {
        **{key: (x * 1e4).round().div(1e4).tolist() for key, x in figures.items()},
        "mask": mask,
        "lengths": lengths,
        "rewards": [round(float(x), 4) for x in torch.rand(B, generator=g)],
        "group": [i // K for i in range(B)],
    }


INPUTS = make_inputs()


def nested_outputs(x: torch.Tensor, prompts: list[int]) -> torch.Tensor:
    """What an engine gives: a value for each place of prompt and response, one step early."""
    rows = []
    for row, p, n in zip(x, prompts, INPUTS["lengths"], strict=True):
        rows.append(torch.cat([row.new_zeros(p - 1), row[:n], row.new_zeros(1)]))
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def case(name: str) -> dict[str, Any]:
    given = GIVEN.get(name, {})
    objective = es.make_objective(name, **given)
    fresh = objective.strictly_on_policy
    for _ in range(2):
        objective.observe(nll=SEEN["entropy"], **SEEN)
    data = {key: tensor(INPUTS[key]) for key in ("old_logp", "old_entropy", "ref_logp")}
    mask = torch.tensor(INPUTS["mask"], dtype=torch.bool)
    padded = {key: torch.cat([x, x[:1]]) for key, x in data.items()}
    rollouts = TokenBatch(
        logp=padded["old_logp"], old_logp=padded["old_logp"],
        mask=torch.cat([mask, torch.zeros(1, T, dtype=torch.bool)]),
        rewards=torch.cat([tensor(INPUTS["rewards"]), tensor([0.0])]),
        group=torch.tensor([*INPUTS["group"], 99]),
        entropy=padded["old_entropy"], old_entropy=padded["old_entropy"],
        ref_logp=padded["ref_logp"],
    )  # fmt: skip
    real = torch.arange(B + 1) < B
    ready = prepare(objective, rollouts, real, SEEN["progress"]).batch
    prompts = [2 + i % 5 for i in range(B)]
    lengths = INPUTS["lengths"]

    def ragged(sizes: list[int]) -> torch.Tensor:
        rows = [torch.ones(n, dtype=torch.int64) for n in sizes]
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    shape = ragged(lengths)
    fields = {
        "prompts": ragged(prompts),
        "responses": shape,
        "old_log_probs": response_to_nested(data["old_logp"], shape),
        "entropy": response_to_nested(data["old_entropy"], shape),
        "ref_log_prob": response_to_nested(data["ref_logp"], shape),
        "advantages": response_to_nested(ready.advantages[:B].double(), shape),
        MASK: response_to_nested(ready.mask[:B].long(), shape),
        REWARD: ready.rewards[:B].double(),
        GROUP: rollouts.group[:B],
        IDLE: ready.idle[:B].long(),
        ROLLOUT: torch.arange(B),
        ROW: torch.arange(B),
    }
    td = TensorDict(fields, batch_size=B)
    tu.assign_non_tensor(td, dp_size=1)
    batch = token_batch(td, objective, "cpu")
    logp = tensor(INPUTS["old_logp" if fresh else "logp"]).requires_grad_()
    entropy = tensor(INPUTS["old_entropy" if fresh else "entropy"]).requires_grad_()
    if not fresh:
        batch = batch.replace(logp=logp.detach(), entropy=entropy.detach())
    update = Update(objective.step(batch, shared_generator(0, "select", STEP, 1), fresh=fresh))
    outputs = TensorDict(
        {"log_probs": nested_outputs(logp, prompts), "entropy": nested_outputs(entropy, prompts)},
        batch_size=B,
    )
    total = torch.zeros((), dtype=torch.float64)
    parts = zip(tu.chunk_tensordict(td, 4), tu.chunk_tensordict(outputs, 4), strict=True)
    for micro, output in parts:
        value, _ = loss(update, {k: output[k] for k in ("log_probs", "entropy")}, micro)
        total = total + value
    total.backward()
    gradients = {"logp": plain(logp.grad)}
    if entropy.grad is not None and bool(entropy.grad.abs().sum() > 0):
        gradients["entropy"] = plain(entropy.grad)
    said = {"given": given} if given else {}
    return {"name": name, **said, "fresh": fresh, "loss": plain(total), "gradients": gradients}


def make() -> dict[str, Any]:
    names = sorted(name for name, info in es.methods().items() if "verl" in info.hosts)
    return {
        "versions": versions("verl", "torch"),
        "step": STEP,
        "seen": SEEN,
        "inputs": INPUTS,
        "cases": [case(name) for name in names],
    }


if __name__ == "__main__":
    main(make, Path(__file__).with_name("verl_host.json"), __doc__)
