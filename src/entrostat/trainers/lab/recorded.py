"""Recorded rollouts as an iteration's own: token ids again in their places, padded.

Shapes: B rollouts, P prompt tokens at most, T completion tokens at most.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...data.generation import Answers
from ...data.prompts import encode
from ...logs.rollouts import Rollouts
from ...models.policy import vocabulary
from ...models.rollout import Sequences
from ...tasks import Example
from .experience import Sampled
from .state import State


def sampled_of(rollouts: Rollouts, state: State) -> tuple[Sampled, Tensor]:
    """The rollouts as the lab's own and their rewards [B]; prompts are encoded by the policy.

    Raises:
        ValueError: a token that the model does not know.
    """
    policy, device = state.policy, state.policy.device
    known = vocabulary(policy.model)
    if int(rollouts.tokens.min()) < 0 or int(rollouts.tokens.max()) >= known:
        raise ValueError(
            f"--rollouts: token {int(rollouts.tokens.max())} is none of the model's {known}; they "
            "are another model's"
        )
    places = {group: i for i, group in enumerate(sorted(set(rollouts.group.tolist())))}
    number = [places[group] for group in rollouts.group.tolist()]
    texts = dict(zip(number, rollouts.prompts, strict=True))
    examples = [Example(texts[i]) for i in range(len(texts))]
    own = [rollouts.rows(i) for i in range(len(rollouts))]
    T = max(rows.stop - rows.start for rows in own)
    prompts = encode(policy, state.config, examples, T, ValueError)
    P, B = max(map(len, prompts)), len(rollouts)
    tokens = torch.full((B, P + T), policy.pad)
    attention = torch.zeros((B, P + T), dtype=torch.int64)
    mask = torch.zeros((B, T), dtype=torch.bool)
    logp = torch.zeros((B, T))
    for i, rows in enumerate(own):
        prompt, n = prompts[number[i]], rows.stop - rows.start
        tokens[i, P - len(prompt) : P] = torch.tensor(prompt)
        tokens[i, P : P + n] = rollouts.tokens[rows]
        attention[i, P - len(prompt) : P + n] = 1
        mask[i, :n] = True if rollouts.sampled is None else rollouts.sampled[rows]
        logp[i, :n] = rollouts.sampler_logp[rows].float()
    sequences = Sequences(
        tokens.to(device), attention.to(device), P, mask.to(device),
        logp.to(device).masked_fill(~mask.to(device), 0), rollouts.finished.to(device),
        torch.tensor(number, device=device),
    )  # fmt: skip
    answers = Answers(sequences, list(rollouts.completions))
    return Sampled(1, examples, answers), rollouts.rewards.float()
