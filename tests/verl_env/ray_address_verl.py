"""`--ray-address`: a Ray that is there already, and one of whose nodes lacks the plugin."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster import Cluster, cluster
from cpu_recipe import CPU, TRANSFORMERS
from main_ppo_verl import LIMIT, PROMPTS, ROLLOUTS, train, write_recipe
from read_run import correlation, metrics

from entrostat.logs.rollouts import load_rollouts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * LIMIT)]
# who joins a cluster does not say what it has
JOINED = {key: value for key, value in CPU.items() if not key.startswith("+ray_kwargs")}
RAY = str(Path(sys.executable).with_name("ray"))
# every Python of a node begins with it
WITHOUT_ENTROSTAT = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "entrostat":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
"""
NODE = ["--object-store-memory", "100000000", "--block", "--disable-usage-stats"]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def head(folder: Path, processors: int) -> Iterator[tuple[str, Cluster]]:
    """A cluster of one node, with one "GPU"; its address."""
    port = free_port()
    words = [
        RAY, "start", "--head", "--node-ip-address", "127.0.0.1", "--port", str(port),
        "--num-cpus", str(processors), "--num-gpus", "1", "--include-dashboard", "false", *NODE,
    ]  # fmt: skip
    with cluster(words, folder / "head.txt") as started:
        started.wait_until(lambda: "Ray runtime started" in started.tail(), 120)
        yield f"127.0.0.1:{port}", started


def recipe_of(folder: Path, iterations: int = 2) -> Path:
    verl = JOINED | TRANSFORMERS | {"trainer.n_gpus_per_node": 1}
    return write_recipe(folder / "recipe.toml", verl, iterations)


def test_a_cluster_that_is_there(tmp_path: Path) -> None:
    recipe, run = recipe_of(tmp_path), tmp_path / "run"
    with head(tmp_path, 5) as (address, ray):
        words = train("--config", recipe, "--output", run, "--ray-address", address)
        with cluster(words, tmp_path / "train.txt") as started:
            assert started.wait(2 * LIMIT) == 0, started.tail()
        assert ray.process.poll() is None  # it is not ours to end
        # what the run held is free again: the next one is not kept waiting
        words = train("--resume", run, "--iterations", "3", "--ray-address", address)
        with cluster(words, tmp_path / "more.txt") as started:
            assert started.wait(2 * LIMIT) == 0, started.tail()
    assert [row["iteration"] for row in metrics(run)] == [1, 2, 3]
    for row in metrics(run):
        r = load_rollouts(run, row["iteration"])
        assert (len(r), correlation(r) > 0.999) == (PROMPTS * ROLLOUTS, True)
    assert (run / "final" / "model.safetensors").is_file()


def test_what_a_cluster_lacks_is_said_within_a_minute(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    with head(tmp_path, 4) as (address, _):
        said = refused(tmp_path, recipe, address)
        assert "veRL needs 5 logical processors" in said
        assert f"the cluster at {address} has 4" in said
        # another node has the processors, but no entrostat
        (tmp_path / "sitecustomize.py").write_text(WITHOUT_ENTROSTAT)
        words = [RAY, "start", "--address", address, "--num-cpus", "4", *NODE]
        path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
        with cluster(words, tmp_path / "node.txt", {"PYTHONPATH": path}) as node:
            node.wait_until(lambda: "Ray runtime started" in node.tail(), 120)
            said = refused(tmp_path, recipe, address)
        assert "node " in said
        assert "No module named 'entrostat'" in said


def refused(folder: Path, recipe: Path, address: str) -> str:
    """What `train` says, in one line and in time."""
    began = time.monotonic()
    words = train("--config", recipe, "--output", folder / "run", "--ray-address", address)
    log = folder / f"refused{len(list(folder.glob('refused*')))}.txt"
    with cluster(words, log) as started:
        assert started.wait(LIMIT) == 2, started.tail()
        said = started.tail().strip().splitlines()
    assert time.monotonic() - began < 60
    errors = [line for line in said if "error:" in line]
    assert len(errors) == 1, said
    return errors[0]
