"""The notebooks of examples/ run, and hold nothing but what was written into them.

Their cells run in this process, where torch is loaded and no socket opens: a kernel would talk over
sockets, and load everything again for each notebook.
"""

from __future__ import annotations

import ast
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

EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
# sizes for `make test`, in place of those in the cell that is tagged "parameters"
SMALL: dict[str, dict[str, Any]] = {
    "add_a_method": {"ITERATIONS": 2, "SIZE": {"prompts": 2, "rollouts": 4}},
    "diagnose_a_trl_run": {},
    "hold_entropy": {"ITERATIONS": 2, "PROMPTS": 2, "HELD_OUT": 2},
}


def run(path: Path, values: dict[str, Any]) -> list[Any]:
    """What the cells of a notebook end with; one namespace, the module `__main__`.

    `values` are set after the cell that is tagged "parameters", as papermill does.
    """
    module = sys.modules["__main__"]
    ends = []
    for i, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] != "code":
            continue
        where = f"{path.name}[{i}]"
        tree = ast.parse("".join(cell["source"]), where)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, where, "exec"), vars(module))
        if isinstance(last, ast.Expr):
            ends.append(eval(compile(ast.Expression(last.value), where, "eval"), vars(module)))
        if "parameters" in cell["metadata"].get("tags", ()):
            assert values.keys() <= vars(module).keys()
            vars(module).update(values)
    return ends


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
def test_outputs_are_stripped_and_links_lead_somewhere(path: Path) -> None:
    book = json.loads(path.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    assert path.stat().st_size < 20_000
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
        else:
            for target in re.findall(r"\]\(([^)#]+)", "".join(cell["source"])):
                assert (path.parent / target).exists(), target


@pytest.mark.parametrize(
    ("name", "figures"), [("add_a_method", 1), ("diagnose_a_trl_run", 6), ("hold_entropy", 4)]
)
def test_a_notebook_runs(name: str, figures: int, notebook: Any) -> None:
    ends = notebook(EXAMPLES / f"{name}.ipynb", SMALL[name])
    shown = [value._repr_png_() for value in ends if hasattr(value, "_repr_png_")]
    assert [data[:4] for data in shown] == [b"\x89PNG"] * figures
    assert any("<table" in value._repr_html_() for value in ends if hasattr(value, "loc"))


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
    table = next(
        value for value in notebook(EXAMPLES / "hold_entropy.ipynb", {}) if hasattr(value, "loc")
    )
    target = table.loc["held", "target"]
    assert abs(table.loc["held", "entropy_after"] - target) < 0.1 * target
    assert table.loc["grpo", "entropy_after"] < 0.9 * target
