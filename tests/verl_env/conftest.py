"""The environment of every test here, set before anything imports veRL."""

from __future__ import annotations

import os

from cpu_recipe import environment

os.environ |= environment() | {
    "VERL_USE_EXTERNAL_MODULES": "verl_cpu",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}
