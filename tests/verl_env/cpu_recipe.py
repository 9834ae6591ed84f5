"""[verl] of a recipe on the CPU under a real Ray, and the environment in which veRL then runs.

Only the standard library: `benchmarks/hosts_curves.py --cpu` reads it outside veRL's environment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

ROLLOUT = "actor_rollout_ref.rollout"
CPU: dict[str, Any] = {
    "trainer.nnodes": 1,
    "actor_rollout_ref.model.use_remove_padding": False,
    "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
    "actor_rollout_ref.actor.use_torch_compile": False,
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile": False,
    f"{ROLLOUT}.tensor_model_parallel_size": 1,
    f"{ROLLOUT}.free_cache_engine": False,
    f"{ROLLOUT}.load_format": "auto",
    f"{ROLLOUT}.agent.num_workers": 1,
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    "+ray_kwargs.ray_init.include_dashboard": False,
    "+ray_kwargs.ray_init.object_store_memory": 100_000_000,
}
TRANSFORMERS = {f"{ROLLOUT}.name": "hf"}  # rollout_engine.py


def ranks(n: int) -> dict[str, Any]:
    """[verl] of n ranks: Ray only counts the processors and GPUs that it is told of."""
    return {
        "trainer.n_gpus_per_node": n,
        "ray_kwargs.ray_init.num_cpus": 3 * n + 2,
        "+ray_kwargs.ray_init.num_gpus": n,
    }


def environment() -> dict[str, str]:
    """What veRL's processes need to take a CPU for one of its platforms, without the network."""
    path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",  # the engine registered for GPUs
        "PYTHONPATH": os.pathsep.join(path),
    }
