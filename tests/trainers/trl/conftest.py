"""Trainers of TRL send no telemetry and show no progress bars."""

import pytest


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import logging

    monkeypatch.setenv("CI", "1")
    logging.disable_progress_bar()
