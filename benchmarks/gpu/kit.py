"""What every stage gets: the device, the sizes, and where its results go."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = "results.jsonl"


@dataclass(frozen=True)
class Kit:
    """One stage's surroundings.

    Attributes:
        stage: its name.
        device: "cuda", or "cpu" where there is no GPU.
        tiny: sizes that a CPU computes in seconds; the figures then mean nothing.
        output: the directory of results and of the models that stages make.
    """

    stage: str
    device: str
    tiny: bool
    output: Path

    def size(self, full: int, tiny: int) -> int:
        """A size for this machine."""
        return tiny if self.tiny else full

    def row(self, case: str, ok: bool | None = None, asked: str = "", **figures: Any) -> None:
        """Append one result to the results file and print it.

        Args:
            case: what was tried.
            ok: whether it is as asked; None where nothing is asked.
            asked: the bound, as text; empty where nothing is asked.
            **figures: numbers and short texts, by name.
        """
        found = {"stage": self.stage, "case": case, "ok": ok, "asked": asked, "figures": figures}
        append(self.output, found)


def append(output: Path, line: dict[str, Any]) -> None:
    """Add a line to the results file, and print it."""
    text = json.dumps(line | {"at": round(time.time(), 1)})
    with (output / RESULTS).open("a", encoding="utf-8") as file:
        file.write(text + "\n")
    print(text, flush=True)


def results(output: Path) -> list[dict[str, Any]]:
    """The lines of the results file; none before the first."""
    path = output / RESULTS
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
