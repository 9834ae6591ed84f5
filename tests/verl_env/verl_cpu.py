"""A CPU as one of veRL's platforms, so that its FSDP2 engine runs on gloo.

veRL imports it before its plugins, by VERL_USE_EXTERNAL_MODULES; conftest.py sets that.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


# what veRL asks of torch.cuda
_MODULE = SimpleNamespace(
    max_memory_allocated=lambda *a: 0,
    max_memory_reserved=lambda *a: 0,
    memory_allocated=lambda *a: 0,
    memory_reserved=lambda *a: 0,
    mem_get_info=lambda *a: (0, 0),
    get_device_name=lambda *a: "cpu",
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
    empty_cache=_nothing,
    synchronize=_nothing,
    is_available=lambda: True,
    current_device=lambda: torch.device("cpu"),
    set_device=_nothing,
)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _MODULE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # only where VERL_PLATFORM=cpu asks for it

    def current_device(self) -> Any:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = _nothing

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str):
        yield

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
