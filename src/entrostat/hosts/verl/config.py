"""`entrostat verl-config`: a recipe as the full Hydra overrides of a veRL run. Imports no veRL.

A recipe has two tables: [objective], the arguments of `make_objective`, and [overrides], keys of
veRL's ppo_trainer configuration. What the objective asks of veRL (the plugin's trainer, the
current policy's entropy, a reference policy) is added here.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..._names import unknown
from ...objective import Objective, make_objective

MODULE = "verl.trainer.main_ppo"
_ACTOR = "actor_rollout_ref.actor"
_LOSS = f"{_ACTOR}.policy_loss"
_TARGET = "entrostat.hosts.verl.settings.PolicyLoss"
_OBJECTIVE = ("method", "advantage", "aggregation", "max_length", "seed")
_FIELDS = ("rewards", "group", "entropy", "old_entropy", "ref_logp")
_BARE = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")  # what Hydra reads as text without quotes
_KEYWORDS = ("null", "true", "false", "nan", "inf", "yes", "no", "on", "off")


def verl_config(path: str | Path, overrides: Sequence[str] = ()) -> list[str]:
    """The overrides of veRL's ppo_trainer configuration that a recipe means.

    Args:
        path: a recipe for veRL, `*.verl.toml`.
        overrides: further ones as Hydra takes them, "key=value"; they win.

    Returns:
        "key=value" each, for `python -m verl.trainer.main_ppo`.

    Raises:
        ValueError: the file cannot be read, has a table or key that it should not have, or veRL
            cannot host the objective.
    """
    data = _read(Path(path))
    settings = dict(data["objective"])
    given = dict(data["overrides"])
    objective = _objective(settings, given, path)
    values: dict[str, Any] = {
        "trainer.project_name": "entrostat",
        "trainer.experiment_name": _stem(Path(path)),
        f"{_ACTOR}.strategy": "fsdp2",
        "actor_rollout_ref.ref.strategy": "fsdp2",
        "actor_rollout_ref.model.use_remove_padding": True,
        # float32, and a slice of the logits at a time
        f"{_ACTOR}.entropy_from_logits_with_chunking": True,
    }
    values |= given
    if values.get(f"{_ACTOR}.fsdp_config.dtype") == "float16":
        # veRL's FSDP engine reads `mixed_precision`; `dtype` alone leaves it in bf16
        for key, dtype in (("param", "fp16"), ("reduce", "fp32"), ("buffer", "fp32")):
            values[f"+{_ACTOR}.fsdp_config.mixed_precision.{key}_dtype"] = dtype
    values |= {
        "trainer.use_v1": True,
        "trainer.v1.trainer_mode": "entrostat",
        f"{_LOSS}._target_": _TARGET,
        f"{_LOSS}.loss_mode": "entrostat",
        f"+{_LOSS}.method": settings["method"],
        f"+{_LOSS}.advantage": objective.advantage,
        f"+{_LOSS}.aggregation": objective.aggregation,
        f"+{_LOSS}.max_length": objective.max_length,
        f"+{_LOSS}.seed": settings.get("seed", 0),
        f"{_ACTOR}.calculate_entropy": "entropy" in objective.needs,
        f"{_ACTOR}.use_kl_loss": "ref_logp" in objective.needs,
    }
    lines = {key: f"{key}={_hydra(value)}" for key, value in values.items()}
    for line in overrides:
        key, equals, _ = line.partition("=")
        if not equals:
            raise ValueError(f"override {line!r} is no key=value")
        bare = key.lstrip("+")
        lines = {k: v for k, v in lines.items() if k.lstrip("+") != bare}
        lines[key] = line
    return list(lines.values())


def shell_command(overrides: Sequence[str], python: str = "python3") -> str:
    """A command for a POSIX shell, one override a line.

    Args:
        overrides: from `verl_config`.
        python: the interpreter of veRL's environment.
    """
    return " \\\n  ".join([f"{python} -m {MODULE}", *(shlex.quote(line) for line in overrides)])


def _read(path: Path) -> dict[str, Any]:
    # not by entrostat.config, which veRL's environment has no need to be able to import
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"recipe {str(path)!r}: cannot read it: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"recipe {str(path)!r}: {error}") from None
    for table in data:
        if table not in ("objective", "overrides"):
            raise ValueError(
                f"recipe {str(path)!r}: {unknown('table', table, ('objective', 'overrides'))} A "
                "recipe for veRL ends in .verl.toml"
            )
    for table in ("objective", "overrides"):
        if not isinstance(data.get(table), dict):
            raise ValueError(
                f"recipe {str(path)!r}: no table [{table}]; a recipe for veRL has [objective] and "
                "[overrides] (recipes/papers/*.verl.toml)"
            )
    return data


def _objective(settings: dict[str, Any], given: dict[str, Any], path: Any) -> Objective:
    """The recipe's objective, if veRL can host it; its constant length from the run's."""
    who = f"recipe {str(path)!r}"
    for key in settings:
        if key not in _OBJECTIVE:
            raise ValueError(f"{who}: {unknown('key of [objective]', key, _OBJECTIVE)}")
    if "method" not in settings:
        raise ValueError(f"{who}: [objective] has no method")
    for key in given:
        if key.lstrip("+").startswith(_LOSS):
            raise ValueError(f"{who}: {key} belongs to the objective; write it in [objective]")
    batch = given.get("data.train_batch_size", 1024)
    mini = given.get(f"{_ACTOR}.ppo_mini_batch_size", 256)
    updates = given.get(f"{_ACTOR}.ppo_epochs", 1) * max(1, batch // mini)
    length = settings.get("max_length", given.get("data.max_response_length", 512))
    objective = make_objective(
        settings["method"],
        advantage=settings.get("advantage"),
        aggregation=settings.get("aggregation"),
        max_length=length,
        updates=updates,
    )
    objective.check_host("verl", _FIELDS, updates)
    return objective


def _stem(path: Path) -> str:
    return path.name.removesuffix(".toml").removesuffix(".verl")


def _hydra(value: Any) -> str:
    """A value in the grammar of Hydra's overrides.

    Raises:
        ValueError: it is none that can be written there.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        if _BARE.fullmatch(value) and value.lower() not in _KEYWORDS:
            return value
        # a backslash before the closing quote would escape it; elsewhere Hydra leaves it alone
        text = re.sub(r"(\\*)'", r"\1\1\\'", value)
        text = re.sub(r"(\\+)$", r"\1\1", text)
        return f"'{text}'"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_hydra(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(_hydra(item) for item in value) + "]"
    raise ValueError(f"cannot write {value!r} as an override of Hydra")
