"""The environment of every test here, set before anything imports veRL or vLLM; a policy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import vllm_cpu
from cpu_recipe import environment
from vllm_cpu import small_policy

os.environ |= environment() | {"VERL_USE_EXTERNAL_MODULES": "verl_cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the policy, and the environment of vLLM."""
    folder = tmp_path_factory.mktemp("vllm")
    small_policy(folder / "policy")
    return folder


@pytest.fixture(scope="module")
def variables(folder: Path) -> dict[str, str]:
    """Of a process that samples by vLLM."""
    return os.environ | vllm_cpu.environment(folder / "packages")
