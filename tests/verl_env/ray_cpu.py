"""A CPU as one of veRL's platforms under a real Ray; `verl_cpu` is enough where there is none.

veRL imports it in each of its processes, by VERL_USE_EXTERNAL_MODULES.
"""

from __future__ import annotations

from functools import partial

from verl.utils import distributed
from verl_cpu import PlatformCPU

# Ray has no accelerator "CPU"; of "GPU" it takes any number that ray.init is told
PlatformCPU.ray_resource_name = lambda self: "GPU"

# veRL's own "cpu:gloo,DEVICE:BACKEND" would name the CPU twice
distributed.initialize_global_process_group_ray = partial(
    distributed.initialize_global_process_group_ray, backend="gloo"
)
