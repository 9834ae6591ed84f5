"""Check a run in veRL's own environment before it is started: `python -m ...preflight`.

It reads JSON from standard input: `overrides`, the `tasks` as for `make_task`, the number of
logical `processors` needed, the number that a local Ray is `said` to have or null, the
`ray_address` of a cluster or null. Its last line of output is {"error": one line, or null}.
`main_ppo` would start a cluster first, and wait forever for a missing resource.
"""

from __future__ import annotations

import importlib
import json
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from importlib import util
from pathlib import Path
from typing import Any

from ..._names import nearest
from ...errors import in_one_line
from ...runs.trackers.services import SERVICES

PATIENCE = 40  # seconds for a cluster, or one of its nodes, to answer


def main() -> None:
    asked = json.load(sys.stdin)
    with redirect_stdout(sys.stderr):  # veRL and Ray print
        error = look(asked)
    sys.stdout.write(json.dumps({"error": error}) + "\n")


def look(asked: Mapping[str, Any]) -> str | None:
    try:
        from .selfcheck import check

        check()
        check_configuration(asked["overrides"])
        for task in asked["tasks"]:
            check_task(task)
        if asked["ray_address"] is not None:
            check_cluster(asked["ray_address"], asked["processors"])
        else:
            check_machine(asked["said"], asked["processors"])
    except (ValueError, RuntimeError) as error:
        return " ".join(str(error).split())
    except Exception as error:  # exceptions of veRL or Ray
        return in_one_line(error)
    return None


def check_configuration(overrides: Sequence[str]) -> None:
    """Compose veRL's configuration and let our trainer check it."""
    import verl
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    from .settings import check_run

    folder = str(Path(verl.__file__).parent / "trainer" / "config")
    with initialize_config_dir(folder, version_base=None):
        known = compose("ppo_trainer")
        names = list(_names(OmegaConf.to_container(known, resolve=False)))
        for line in overrides:
            key = line.partition("=")[0]
            # for a choice of a config group (with "/"), Hydra lists the options
            if not key.startswith(("+", "~", "hydra.")) and "/" not in key and key not in names:
                guess = nearest(key, names)
                hint = f" Did you mean {guess!r}?" if guess else ""
                raise ValueError(
                    f"[verl]: veRL {verl.__version__} has no key {key!r}.{hint} (A `+` before it "
                    "adds one)"
                )
        try:
            config = compose("ppo_trainer", overrides=list(overrides))
        except HydraException as error:
            raise ValueError(f"[verl]: {in_one_line(error)}") from None
    for name in SERVICES.keys() & set(config.trainer.logger):
        if util.find_spec(name) is None:
            raise ValueError(
                f"trainer.logger {name!r}: veRL's environment has no {name}; pip install it "
                "there, or drop it (log.to)"
            )
    check_run(config)


def _names(table: Any, prefix: str = "") -> Iterable[str]:
    for key, value in table.items():
        yield prefix + str(key)
        if isinstance(value, Mapping):
            yield from _names(value, f"{prefix}{key}.")


def check_task(task: Mapping[str, Any]) -> None:
    """Make the task, as the reward workers will."""
    from ...tasks import make_task

    try:
        made = make_task(**task)
        example = made.example(0, made.splits[0])
        with suppress(ValueError, TypeError, AttributeError):  # only imports are tested here
            made.score(str(example.answer), example)
    except ImportError as error:
        raise ValueError(
            f"task {task['name']!r}: veRL's environment has no {error.name}; pip install it there"
        ) from None
    except ValueError as error:
        raise ValueError(f"in veRL's environment: {error}") from None


def check_machine(said: int | None, processors: int) -> None:
    """Raise if a local Ray, `said` to have so many processors, has too few.

    None lets Ray count: in a container, the processors that it may use.
    """
    if said is None:
        said = int(importlib.import_module("ray._private.utils").get_num_cpus())
    if said < processors:
        raise ValueError(too_few(processors, said, "Ray on this machine"))


def check_cluster(address: str, processors: int) -> None:
    """Raise unless Ray answers, has the processors, and has the plugin on every node."""
    ray: Any = importlib.import_module("ray")
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    try:
        if colon and port.isdecimal():  # Ray itself would retry for minutes
            socket.create_connection((host, int(port)), timeout=5).close()
        ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    except Exception as error:
        raise ValueError(
            f"--ray-address {address!r}: Ray cannot be reached ({in_one_line(error)[:200]}); start "
            "it with `ray start --head`, and give the address that it prints"
        ) from None
    try:
        have, free = (
            int(resources.get("CPU", 0))
            for resources in (ray.cluster_resources(), ray.available_resources())
        )
        if have < processors:
            raise ValueError(too_few(processors, have, f"the cluster at {address}"))
        if free < processors:
            raise ValueError(
                f"veRL needs {processors} logical processors, and of the {have} of the cluster at "
                f"{address} others hold all but {free}: it would wait for them. `ray status` says "
                "which; end them, or try again when they are done"
            )
        asked = {
            node.get("NodeManagerHostname") or node.get("NodeManagerAddress"):
            _ask(ray, node["NodeID"]) for node in ray.nodes() if node["Alive"]
        }  # fmt: skip
        for place, answer in asked.items():
            try:
                problem = ray.get(answer, timeout=PATIENCE)
            except ray.exceptions.GetTimeoutError:
                problem = f"did not answer within {PATIENCE} seconds"
            except Exception as error:
                problem = in_one_line(error)[:300]
            if problem:
                raise ValueError(f"node {place}: {problem}")
    finally:
        ray.shutdown()


def _ask(ray: Any, node: str) -> Any:
    """Run the plugin check on one node, without reserving resources."""
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(on_a_node).options(num_cpus=0, scheduling_strategy=here).remote()


def on_a_node() -> str | None:
    """Describe a problem with the plugin on this node; None if there is none."""
    try:
        importlib.import_module("entrostat.trainers.verl.selfcheck").check()
    except Exception as error:
        return in_one_line(error)
    return None


def too_few(needed: int, have: int, where: str) -> str:
    return (
        f"veRL needs {needed} logical processors (3 a rank, 1 for TransferQueue and 1 a storage "
        f"unit of it), and {where} has {have}: it would wait for ever. Lower "
        "verl.trainer.n_gpus_per_node or "
        "verl.transfer_queue.backend.SimpleStorage.num_data_storage_units; or, since Ray only "
        f"counts them, tell it of {needed}: by verl.ray_kwargs.ray_init.num_cpus, in a cluster by "
        "`ray start --num-cpus`"
    )


if __name__ == "__main__":
    main()
