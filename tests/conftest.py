"""Settings of every test: one thread, so that results do not depend on the machine's load."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

pytest.register_assert_rewrite(*(file.stem for file in Path(__file__).parent.glob("shared/*.py")))
if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from entrostat.models.policy import Policy

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded
# torch, transformers and seven thousand cases are a million objects that stay: to look through them
# for garbage, time and again as they come, takes a third of the time of collection
gc.disable()


def pytest_collectstart() -> None:
    """Where tests are collected: in the process that runs them, not in xdist's controller."""
    import torch

    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a Triton kernel is defined


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What is there now is looked through no more; what tests make is."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # extension modules look for leaks when the interpreter ends
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def hasty_disk() -> Iterator[None]:
    """No test survives a power cut, which is imitated instead: `benchmarks/power_cut.py`."""

    def at_once(place: int) -> None:
        pass

    with mock.patch.object(os, "fsync", at_once):
        yield


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """What a test sets in the environment, itself or by what it calls, ends with it."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def unrendered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are built but not rendered, which takes most of the time that a page takes.

    For modules in which few tests look at a figure; those carry `@pytest.mark.rendered`.
    """
    if request.node.get_closest_marker("rendered") is None:
        empty = "data:image/svg+xml;base64,PHN2Zy8+"  # <svg/>
        for module in ("figures", "answers"):
            monkeypatch.setattr(f"entrostat.report.{module}.address", lambda figure: empty)


@pytest.fixture(scope="module")
def policy() -> Policy:
    """The shipped one."""
    from entrostat.config import TrainConfig
    from entrostat.models.loading import load_policy

    return load_policy(TrainConfig())


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium, headless, for the modules that skip themselves where there is none."""
    from browser import BROWSER, playwright

    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-gpu"]
        chromium = driver.chromium.launch(executable_path=BROWSER, args=arguments)
        yield chromium
        chromium.close()
