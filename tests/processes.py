"""Several ranks, a process each, that meet by a file: what tests of torch.distributed share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def run_ranks(
    world: int,
    folder: Path,
    words: Callable[[int], Sequence[str]],
    env: Callable[[int], dict[str, str]] = lambda rank: {},
    timeout: float = 120,
) -> list[dict[str, Any]]:
    """Run `python WORDS` once a rank; returns the JSON that each left in `folder`/RANK.json.

    Raises:
        AssertionError: a process failed; the message holds what all of them wrote to stderr.
    """
    # to files: a full pipe would stop a rank that the others wait for
    errors = [folder / f"{rank}.err" for rank in range(world)]
    processes = []
    try:
        for rank, file in enumerate(errors):
            with open(file, "w") as stream:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, *words(rank)], stderr=stream, stdout=subprocess.DEVNULL,
                        env={**os.environ, "OMP_NUM_THREADS": "1", **env(rank)},
                    )
                )  # fmt: skip
        for process in processes:
            process.wait(timeout)
        told = "\n".join(file.read_text()[-4000:] for file in errors)
        assert not any(process.returncode for process in processes), told
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]
