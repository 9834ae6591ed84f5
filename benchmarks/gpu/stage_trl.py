"""Stage `trl`: one job in the lab, in TRL, and in TRL with our objective (`lab_vs_trl.py`)."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from kit import Kit
from model import make_model

SIDES = {"lab": "lab", "trl": "TRL", "objective": "TRL with our objective"}


def run(kit: Kit) -> None:
    """Seconds an iteration of each side, and their parts, as they come."""
    if importlib.util.find_spec("trl") is None:
        raise RuntimeError("this stage needs trl; benchmarks/gpu/pack carries it")
    directory, file = make_model(kit), kit.output / "lab_vs_trl.json"
    file.unlink(missing_ok=True)
    process = subprocess.Popen([
        sys.executable, str(Path(__file__).parents[1] / "lab_vs_trl.py"),
        "--model", "shape", "--job", "few_letters" if kit.tiny else "letters",
        "--directory", str(directory), "--device", kit.device, "--objective",
        "--precision", "bf16", "--rounds", "1", "--json", str(file),
    ])  # fmt: skip
    middle: dict[str, float] = {}
    while process.poll() is None or len(middle) < len(SIDES):
        time.sleep(0.2)
        for side, found in sides(file).items():
            if side in middle:
                continue
            middle[side] = median(found["seconds"])
            parts = {f"{part}_s": seconds for part, seconds in found["parts"].items()}
            kit.row(SIDES[side], seconds=middle[side], peak_gb=found["peak"], **parts)
        if process.poll():
            raise RuntimeError(f"lab_vs_trl.py: exit {process.returncode}")
    kit.row("lab / TRL", ratio=middle["lab"] / middle["trl"])
    kit.row("TRL with our objective / TRL", ratio=middle["objective"] / middle["trl"])


def sides(file: Path) -> dict[str, dict]:
    """The sides that have ended; a file that is being written counts as none."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))["rounds"][0]
    except (OSError, ValueError):
        return {}
