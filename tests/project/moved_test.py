"""Old import paths give the modules of the new ones, and say so."""

from __future__ import annotations

import importlib

import pytest

from builders import refused
from entrostat._moved import MOVED, new_name

VERL = [name for name in MOVED if name.startswith("hosts.verl")]  # needs veRL


@pytest.mark.parametrize("name", [name for name in MOVED if name not in VERL])
def test_old_name_is_the_new_module(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(importlib.sys.modules, f"entrostat.{name}", raising=False)
    with pytest.warns(DeprecationWarning, match=f"entrostat.{name} has moved"):
        module = importlib.import_module(f"entrostat.{name}")
    assert module is importlib.import_module(f"entrostat.{MOVED[name]}")
    assert module.__spec__ is not None
    assert module.__spec__.name == f"entrostat.{MOVED[name]}"


@pytest.mark.filterwarnings("ignore:.* has moved to :DeprecationWarning")
def test_paths_that_users_have() -> None:
    from entrostat.hosts.trl import EntropyAlarm, EntropyGRPOTrainer, from_grpo_config
    from entrostat.trainers import trl

    assert EntropyGRPOTrainer is trl.EntropyGRPOTrainer
    assert EntropyAlarm is trl.EntropyAlarm
    assert from_grpo_config is trl.from_grpo_config


def test_the_doctors_function_moved() -> None:
    from entrostat.diagnosis import doctor
    from entrostat.trainers.lab import examine

    with pytest.warns(DeprecationWarning, match="examine has moved"):
        assert doctor.examine is examine
    refused(lambda: doctor.nothing, "nothing", error=AttributeError)


def test_strings_in_saved_verl_commands() -> None:
    name = "entrostat.hosts.verl.settings.PolicyLoss"
    assert new_name(name) == "entrostat.trainers.verl.settings.PolicyLoss"
    assert new_name("entrostat.hosts.verl.plugin") == "entrostat.trainers.verl.plugin"


def test_other_names_stay() -> None:
    for name in ("entrostat.method", "entrostat.lossy", "hosts.trl", "torch"):
        assert new_name(name) is None
