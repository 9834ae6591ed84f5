"""The table of data sets: whole, and as docs/tasks.md shows it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from entrostat.grading import GRADERS
from entrostat.tasks import BUILT_IN
from entrostat.tasks.sets import KINDS, SETS, TEMPLATES, DataSet, data_set
from paths import ROOT

PAGE = ROOT / "docs" / "tasks.md"


@pytest.mark.parametrize("one", [*SETS.values(), *KINDS.values()], ids=lambda one: one.name)
def test_an_entry_is_whole(one: DataSet) -> None:
    assert one.summary
    assert "{problem}" in TEMPLATES[one.template]
    assert one.grader in GRADERS
    assert "prompt" in one.fields
    assert one.optional <= set(one.fields)
    assert set(one.without) <= set(SETS)
    assert next(iter(one.splits)) == ("train" if one.trains else "test")
    if one in SETS.values():
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", one.hub)
        assert one.licence
        assert one.held_out == 0


def test_names_are_nobody_elses() -> None:
    assert not set(SETS) & set(BUILT_IN)
    assert data_set("gsm8k") is SETS["gsm8k"]
    assert data_set("math") is SETS["math"]  # the set of Hendrycks et al.
    assert data_set("math:x.jsonl") is KINDS["math"]  # a file
    assert data_set("mine:Task") is None
    assert data_set("x.jsonl") is None


def table() -> str:
    """What docs/tasks.md says of the sets."""
    lines = [
        "| task | what | from the hub | splits | columns | grader | licence |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in SETS.values():
        hub = f"`{one.hub}`" + (f", `{one.config}`" if one.config else "")
        splits = ", ".join(
            ours if ours == hubs else f"{ours} (there {hubs})" for ours, hubs in one.splits.items()
        )
        columns = ", ".join(f"`{column}`" for column in one.fields.values())
        cells = (f"`{one.name}`", one.summary, hub, splits, columns, one.grader, one.licence)
        lines.append(f"| {' | '.join(cells)} |")
    notes = [f"- `{one.name}`: {one.note}" for one in SETS.values() if one.note]
    return "\n".join([*lines, "", *notes])


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    between = text.partition("<!-- sets -->\n")[2].partition("\n<!-- /sets -->")[0]
    assert between == table(), f"docs/tasks.md should have:\n{table()}"


def test_naming_a_set_imports_nothing_heavy() -> None:
    """`make_task` looks names up in the table; data and mathematics are read when asked for."""
    heavy = ("datasets", "pyarrow", "sympy", "math_verify", "sklearn", "langdetect", "torch")
    code = (
        "import sys, entrostat.tasks.sets, entrostat.tasks.sources, entrostat.grading\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
