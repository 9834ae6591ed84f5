"""Updates that are tried and taken back."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from ...data.seeds import generator
from ...trainers.lab.experience import Selection
from ...trainers.lab.state import State, stepper
from ...trainers.lab.updates import update

_ROLLOUTS = 24  # that a gradient is compared on


@contextmanager
def tried(state: State) -> Iterator[State]:
    """A state whose updates are taken back, with a fresh optimizer and controllers of its own."""
    before = {name: p.detach().clone() for name, p in state.policy.trained().items()}
    optimizer, scaler = stepper(state.policy, state.config)
    try:
        yield replace(
            state, optimizer=optimizer, scaler=scaler, objective=copy.deepcopy(state.objective)
        )
    finally:
        with torch.no_grad():
            for name, p in state.policy.trained().items():
                p.copy_(before[name])
                p.grad = None


def pieces_apart(state: State, selection: Selection) -> tuple[int, int, float]:
    """A minibatch's gradient cut in two ways, and how far the two are apart.

    Under the policy as it stands, whose ratios to the old one are not 1, without a step.
    """
    large = min(len(selection), state.config.optim.micro_batch, _ROLLOUTS)
    small = -(-large // 3)
    few = torch.arange(large, device=state.policy.device)
    found: list[list[Tensor]] = []
    for size in (large, small):
        optim = replace(state.config.optim, micro_batch=size, lr=0.0, weight_decay=0.0)
        config = replace(state.config, optim=optim)
        optimizer, scaler = stepper(state.policy, config)
        chance = generator(config.seed, 1, "select", state.policy.device)
        update(
            replace(state, config=config, optimizer=optimizer, scaler=scaler), selection.batch[few],
            selection.sequences[few], chance, fresh=False, where="the doctor's update",
        )  # fmt: skip
        grads = [p.grad for p in state.policy.trained().values()]
        found.append([torch.zeros(()) if g is None else g.detach().clone() for g in grads])
    one, other = found
    length = sum(float(g.double().square().sum()) for g in one)
    gap = sum(float((a - b).double().square().sum()) for a, b in zip(one, other, strict=True))
    return large, small, (gap / length) ** 0.5 if length > 0 else 0.0
