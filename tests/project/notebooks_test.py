"""The notebooks of examples/ run, and show what is stored in them (`examples/store_outputs.py`)."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import pytest

import entrostat as es
from paths import ROOT
from scripts import load_script

EXAMPLES = ROOT / "examples"
STORE = load_script("examples/store_outputs.py")
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
# sizes for `make test`, in place of those in the cell that is tagged "parameters"
SMALL: dict[str, dict[str, Any]] = {
    "add_a_method": {"ITERATIONS": 2, "SIZE": {"prompts": 2, "rollouts": 4}},
    "diagnose_a_trl_run": {},
    "hold_entropy": {"ITERATIONS": 2, "PROMPTS": 2, "HELD_OUT": 2},
}


def run(path: Path, values: dict[str, Any]) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each cell of code as it is stored, and its outputs now."""
    book = json.loads(path.read_text(encoding="utf-8"))
    cells = STORE.run(book, values)
    return [
        (cell, STORE.outputs(printed, value, count))
        for count, (cell, printed, value) in enumerate(cells, 1)
    ]


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`run` in the notebook's folder, where no model was fetched; methods are forgotten after."""
    from entrostat.method import METHODS

    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setenv("ENTROSTAT_CACHE", str(tmp_path / "none"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    known = dict(METHODS)
    yield run
    METHODS.clear()
    METHODS.update(known)


def test_every_notebook_is_here() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(SMALL)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stored_and_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    book = json.loads(text)
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    assert len(text) < 250_000
    assert "/tmp" not in text
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    for cell in book["cells"]:
        if cell["cell_type"] == "markdown":
            for target in re.findall(r"\]\(([^)#]+)", "".join(cell["source"])):
                assert (path.parent / target).exists(), target


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_a_notebook_runs_and_shows_what_is_stored(name: str, notebook: Any) -> None:
    """The same kinds of output in each cell; the same text where nothing is trained."""
    trained = False
    for cell, found in notebook(EXAMPLES / f"{name}.ipynb", SMALL[name]):
        trained |= "es.train(" in "".join(cell["source"])
        assert kinds(found) == kinds(cell["outputs"])
        if not trained:
            assert texts(found) == texts(cell["outputs"])


def kinds(outputs: list[dict[str, Any]]) -> list[list[str]]:
    return [sorted(one.get("data", [one["output_type"]])) for one in outputs]


def texts(outputs: list[dict[str, Any]]) -> list[str]:
    return ["".join(one.get("text", one.get("data", {}).get("text/plain", []))) for one in outputs]


def test_the_recorded_runs_are_what_the_notebook_says() -> None:
    plain, held = (json.loads((EXAMPLES / "data" / name / "trainer_state.json").read_text())
                   for name in ("trl_grpo", "trl_thermostat"))  # fmt: skip
    entropy = [line["entropy"] for line in plain["log_history"] if "entropy" in line]
    late = [
        line["entropy/exact"]
        for line in held["log_history"]
        if "entropy/exact" in line and line["step"] > 60
    ]
    target = held["log_history"][0]["control/target"]
    assert len(entropy) == 100
    assert entropy[-1] < entropy[0] / 2
    assert target == pytest.approx(0.8 * held["log_history"][0]["entropy/exact"])
    assert late == pytest.approx([target] * len(late), abs=0.1)
    frame = es.load_run(EXAMPLES / "data" / "trl_grpo").frame()
    assert list(frame["entropy/exact"]) == entropy


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_thermostat_of_the_notebook_holds_the_tiny_policys_entropy(notebook: Any) -> None:
    notebook(EXAMPLES / "hold_entropy.ipynb", {})
    names = vars(sys.modules["__main__"])
    table = es.compare(names["runs"])
    target = table.loc["held", "target"]
    assert abs(table.loc["held", "entropy_after"] - target) < 0.1 * target
    assert table.loc["grpo", "entropy_after"] < 0.9 * target
