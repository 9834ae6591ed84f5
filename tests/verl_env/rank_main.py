"""One rank of training_verl.test_two_ranks_do_what_one_does: its half of a batch of 16 rollouts.

rank_main.py RANK WORLD FOLDER
"""

from __future__ import annotations

import os
import sys
from typing import Any

import conftest  # noqa: F401 (the environment)

RANK, WORLD, FOLDER = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.environ |= {"RANK": str(RANK), "LOCAL_RANK": str(RANK), "WORLD_SIZE": str(WORLD)}

import torch  # noqa: E402
from harness import (  # noqa: E402
    gradients,
    join,
    make_worker,
    perturb,
    plain_model,
    rollouts_td,
    statistics,
    worker_td,
)

from entrostat.core.batch import TokenBatch  # noqa: E402
from entrostat.trainers import hold  # noqa: E402
from entrostat.trainers.verl.settings import PolicyLoss  # noqa: E402

METHODS = ("clip_cov", "kl_cov", "steer", "forking_tokens", "rand_pos_clip")


def main() -> None:
    torch.set_num_threads(1)
    join(os.path.join(FOLDER, "rendezvous"))
    g = torch.Generator().manual_seed(8)
    prompts = [torch.randint(2, 15, (2 + i % 4,), generator=g) for i in range(16)]
    answers = [torch.randint(2, 15, (1 + (5 * i) % 9,), generator=g) for i in range(16)]
    with torch.no_grad():
        logp, entropy = statistics(plain_model(), prompts, answers)
    mask = torch.arange(logp.shape[1]) < torch.tensor([len(a) for a in answers])[:, None]
    whole = TokenBatch(
        logp, logp, mask, rewards=torch.rand(16, generator=g), group=torch.arange(16) // 4,
        entropy=entropy, old_entropy=entropy, rollout=torch.arange(16),
    )  # fmt: skip
    worker = make_worker(PolicyLoss(method="grpo"), micro=2)
    perturb(worker.engine.module)
    size = 16 // WORLD
    mine = slice(RANK * size, RANK * size + size)
    results = {}
    for name in METHODS:
        settings = PolicyLoss(method=name)
        worker.use_objective(settings)
        objective = settings.objective()
        batch = objective.prepare(whole)[mine]
        tokens = rollouts_td(prompts[mine], answers[mine])
        seen = []

        def no_step(seen: list = seen) -> float:
            seen.append(gradients(worker))
            return 0.0

        worker.engine.optimizer_step = no_step
        out = worker.train_mini_batch(worker_td(tokens, batch, objective, epochs=2))
        metrics = out["metrics"]
        results[name] = {
            "gradients": seen[-1],
            "metrics": {
                key: float(values[-1]) for key, values in metrics.items() if "entrostat" in key
            },
        }
    del worker.engine.optimizer_step
    results["thermostat"] = held(worker, whole, prompts, answers, mine)
    if RANK == 0:
        torch.save(results, os.path.join(FOLDER, "rank0.pt"))


def held(worker: Any, whole: TokenBatch, prompts: list, answers: list, mine: slice) -> dict:
    """Three updates under the multiplier, whose gradient is of all rollouts."""
    hold.SAMPLE = 1
    settings = PolicyLoss(method="thermostat")
    worker.use_objective(settings)
    objective = settings.objective()
    objective.observe(entropy=float(whole.whole.mean(whole.old_entropy)[0]), stderr=0.05)
    batch = objective.prepare(whole)[mine]
    out = worker.train_mini_batch(
        worker_td(rollouts_td(prompts[mine], answers[mine]), batch, objective, epochs=3)
    )
    found = {k: float(v[-1]) for k, v in out["metrics"].items() if "entrostat/held" in k}
    assert found["entrostat/held/value"] != 0
    return {"gradients": [], "metrics": found}


if __name__ == "__main__":
    main()
