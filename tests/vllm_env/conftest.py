"""The environment of every test here, set before anything imports veRL or vLLM."""

from __future__ import annotations

import os

from cpu_recipe import environment

os.environ |= environment() | {"VERL_USE_EXTERNAL_MODULES": "verl_cpu"}
