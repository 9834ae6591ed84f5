"""Run the notebooks of this folder and store what their cells show.

    python examples/store_outputs.py              # all of them
    python examples/store_outputs.py hold_entropy

Cells run in this process: a kernel would talk over sockets, and load everything again.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
DPI = 60


def run(book: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[tuple[dict, str, Any]]:
    """Each cell of code with what it printed and what it ends with; one namespace, `__main__`.

    `values` are set after the cell that is tagged "parameters", as papermill does.
    """
    module = sys.modules["__main__"]
    for i, cell in enumerate(book["cells"]):
        if cell["cell_type"] != "code":
            continue
        where = f"cell {i}"
        tree = ast.parse("".join(cell["source"]), where)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        value = None
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(tree, where, "exec"), vars(module))  # noqa: S102
            if isinstance(last, ast.Expr):
                expression = compile(ast.Expression(last.value), where, "eval")
                value = eval(expression, vars(module))  # noqa: S307
        yield cell, printed.getvalue(), value
        if "parameters" in cell["metadata"].get("tags", ()):
            assert values.keys() <= vars(module).keys()
            vars(module).update(values)


def outputs(printed: str, value: Any, count: int) -> list[dict[str, Any]]:
    """As a notebook stores them: text, tables as HTML too, figures as small PNG."""
    found: list[dict[str, Any]] = []
    if printed:
        found.append({"output_type": "stream", "name": "stdout", "text": lines(printed)})
    if value is None:
        return found
    data: dict[str, Any] = {"text/plain": lines(repr(value))}
    if hasattr(value, "_repr_png_"):
        data = {"image/png": base64.b64encode(few_colors(value.png(DPI))).decode()}
    elif hasattr(value, "_repr_html_"):
        data["text/html"] = lines(value._repr_html_())
    result = {"output_type": "execute_result", "metadata": {}, "execution_count": count}
    return [*found, result | {"data": data}]


def few_colors(png: bytes) -> bytes:
    """A figure in 32 colours: a third of its bytes."""
    from PIL import Image

    small = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(32).save(small, "PNG", optimize=True)
    return small.getvalue()


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def store(path: Path) -> None:
    """Run a notebook and write its outputs into it."""
    book = json.loads(path.read_text(encoding="utf-8"))
    for count, (cell, printed, value) in enumerate(run(book, {}), 1):
        cell["execution_count"] = count
        cell["outputs"] = outputs(printed, value, count)
    path.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    names = sys.argv[1:] or [path.stem for path in sorted(FOLDER.glob("*.ipynb"))]
    sys.path.insert(0, "")
    for name in names:
        sys.modules["__main__"] = types.ModuleType("__main__")
        with contextlib.chdir(FOLDER):
            store(FOLDER / f"{name}.ipynb")
