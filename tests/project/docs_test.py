"""Every public name is documented, imports point down, and no page names this machine."""

from __future__ import annotations

import ast
import doctest
import gzip
import importlib
import importlib.util
import inspect
import lzma
import pkgutil
import re
import subprocess
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import entrostat as es
from builders import refused
from paths import ROOT

SOURCE = ROOT / "src" / "entrostat"
EVERYTHING = sorted(
    m.name for m in pkgutil.walk_packages([str(SOURCE)], "entrostat.") if "assets" not in m.name
)
# these import veRL, which lives in an environment of its own: read, not imported
VERL = [name for name in EVERYTHING if name.startswith("entrostat.trainers.verl.")]
MODULES = [name for name in EVERYTHING if name not in VERL]
# from the top of the house to its cellar; a room imports from those after it
ROOMS = (
    "cli", "study", "report", "trainers", "diagnosis", "analysis", "evaluation", "runs", "data",
    "models", "law", "agents", "tasks", "grading", "formulas", "sandbox", "workers", "config",
    "model_files", "logs", "testing", "core.mismatch", "core.probe", "core.rollouts", "dynamics",
    "core.objective", "core.preparation", "core.chain", "method", "core.loss", "control", "core",
    "_plugins", "errors", "_processors", "_launch", "_names", "_text", "_moved", "_version",
)  # fmt: skip


@cache
def source_of(name: str) -> tuple[Path, str, ast.Module]:
    path = SOURCE.joinpath(*name.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = path.read_text(encoding="utf-8")
    return path, text, ast.parse(text)


def test_every_module_says_what_it_is_for() -> None:
    for name in EVERYTHING:
        assert ast.get_docstring(source_of(name)[2]), name


def test_every_module_can_be_imported() -> None:
    for name in MODULES:
        importlib.import_module(name)


def _documented() -> Iterator[tuple[str, Any]]:
    """What users are told of: `entrostat.NAME`, and the API pages of the site."""
    yield from ((f"entrostat.{name}", getattr(es, name)) for name in es.__all__)
    stage = importlib.util.spec_from_file_location("stage", ROOT / "docs/.site/stage.py")
    assert stage is not None
    assert stage.loader is not None
    module = importlib.util.module_from_spec(stage)
    stage.loader.exec_module(module)
    for _, names in module.API.values():
        for name in names:
            if "trl" not in name:  # an extra
                yield name, pkgutil.resolve_name(name)


def test_the_documented_api_has_docstrings() -> None:
    for name, value in _documented():
        kinds = (types.ModuleType, type, types.FunctionType)
        if not isinstance(value, kinds):
            continue
        assert inspect.getdoc(value), name
        for part, member in vars(value).items() if not inspect.isroutine(value) else ():
            ours = isinstance(value, type) or getattr(member, "__module__", None) == name
            shown = inspect.isroutine(member) or isinstance(member, property | type)
            if not part.startswith("_") and ours and shown:
                assert inspect.getdoc(getattr(value, part)), f"{name}.{part}"


@pytest.mark.parametrize("name", [name for name in MODULES if ">>>" in source_of(name)[1]])
def test_examples_in_docstrings_run(name: str) -> None:
    import torch

    from entrostat.method import METHODS

    module, known = importlib.import_module(name), dict(METHODS)
    result = doctest.testmod(module, extraglobs={"torch": torch})
    METHODS.clear()  # an example may register a method
    METHODS.update(known)
    assert result.failed == 0


def test_every_public_name_resolves() -> None:
    for name in es.__all__:
        assert getattr(es, name) is not None
    refused(lambda: es.nothing, "'nothing'", error=AttributeError)


def _floor(module: list[str]) -> int:
    """The place in ROOMS of a module: a room, or a module of one that stands elsewhere."""
    own = ".".join(module[:2])
    return ROOMS.index(own if own in ROOMS else module[0])


def test_imports_point_down() -> None:
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[0] in ("__init__", "__main__"):
            continue
        here = _floor(list(parts))
        package = list(parts[:-1])
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            base = package[: len(package) - node.level + 1]
            target = [*base, *(node.module or "").split(".")]
            named = [part for part in target if part]
            for alias in node.names:
                found = [*named, alias.name] if len(named) < 2 else named
                assert _floor(found) >= here, f"{path} imports {'.'.join(found)}"


@cache
def _imported(name: str) -> frozenset[str]:
    """The modules of entrostat that one imports anywhere, also for types alone."""
    path, _, tree = source_of(name)
    inside, found = path.stem == "__init__", set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = name.split(".") if inside else name.split(".")[:-1]
            base = [*base[: len(base) - node.level + 1], *filter(None, [node.module])]
            for alias in node.names:
                full = ".".join([*base, alias.name])
                found.add(full if full in EVERYTHING else ".".join(base))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {a.value for a in node.args if isinstance(a, ast.Constant)} & {*EVERYTHING}
    return frozenset(found)


def test_trainers_are_imported_by_the_command_line_and_studies_alone() -> None:
    for name in EVERYTHING:
        for target in _imported(name):
            if target.startswith("entrostat.trainers"):
                assert name.split(".")[1] in ("trainers", "cli", "study"), f"{name}: {target}"


def test_trainers_do_not_import_one_another() -> None:
    for name in EVERYTHING:
        own = name.split(".")[2:3] if name.startswith("entrostat.trainers.") else []
        if own and own[0] in ("lab", "trl", "verl"):
            for target in _imported(name):
                other = target.split(".")[2:3] if target.startswith("entrostat.trainers.") else own
                assert other == own or other[0] not in ("lab", "trl", "verl"), f"{name}: {target}"


def test_no_imports_go_in_circles() -> None:
    """Not even for types: a package itself aside, which its modules may import from."""
    ahead = {
        name: {t for t in _imported(name) if not name.startswith(f"{t}.")} for name in EVERYTHING
    }
    while free := [name for name, targets in ahead.items() if not targets & ahead.keys()]:
        for name in free:
            del ahead[name]
    assert not ahead, sorted(ahead)


def test_nothing_names_a_machine() -> None:
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    forbidden = re.compile(r"/(?:home|root|opt|mnt|work)/|--(?:extra-)?index-url|--find-links")
    for name in files:
        path = ROOT / name
        if path.suffix in (".safetensors", ".png") or name == "tests/project/docs_test.py":
            continue
        whole = path.read_bytes()
        unpack = {".xz": lzma.decompress, ".gz": gzip.decompress}.get(path.suffix)  # records
        whole = whole if unpack is None else unpack(whole)
        found = forbidden.search(whole.decode("utf-8"))
        assert found is None, f"{name}: {found}"


def test_nothing_is_unpickled_or_evaluated() -> None:
    inside = set(SOURCE.glob("sandbox/inside/*.py"))  # where programs run: what it is for
    for path in set(SOURCE.rglob("*.py")) - inside:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            assert name not in {
                "eval", "exec", "pickle.load", "pickle.loads", "torch.load", "joblib.load"
            }, f"{path}: {name}"  # fmt: skip
            assert "allow_pickle" not in {keyword.arg for keyword in node.keywords}, path
            for keyword in node.keywords:
                if keyword.arg == "trust_remote_code":
                    assert ast.unparse(keyword.value) == "False", path


def test_the_pages_count_what_there_is() -> None:
    from entrostat.core.advantages import ESTIMATORS
    from entrostat.method import METHODS

    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    words = "zero one two three four five six seven eight nine ten eleven twelve".split()
    assert f"and {words[len(ESTIMATORS)]} advantage estimators" in readme
    (row,) = re.findall(
        r"^\| methods \|(.*)\|$", (ROOT / "docs/hosts.md").read_text(), re.MULTILINE
    )
    lab, trl, verl = row.split("|")
    assert lab.strip() == "all"
    for host, cell in (("trl", trl), ("verl", trl if verl.strip() == "as TRL" else verl)):
        lacking = {name for name, cls in METHODS.items() if host not in cls.hosts}
        assert set(re.findall(r"`(\w+)`", cell)) == lacking, host


def sentences(text: str) -> list[str]:
    """Of running text and list items, without code blocks, tables, pictures and headings."""
    text = re.sub(r"^```.*?^```|^(?:[#|]|!\[)[^\n]*", "", text, flags=re.MULTILINE | re.DOTALL)
    parts = re.split(r"\n\s*\n|^- ", text, flags=re.MULTILINE)
    ends = re.compile(r"(?<=[.!?])\s+(?=[`\[A-Z]|entrostat\b)")
    return [one for part in parts for one in ends.split(part.strip()) if one]


def test_sentences_are_told_apart() -> None:
    assert sentences("# A\n\nOne is .5. Two\nis `x`.\n\n- Three?\n- Four\n```\nx. Y\n```\n") == [
        "One is .5.", "Two\nis `x`.", "Three?", "Four",
    ]  # fmt: skip


def shelf(title: str) -> list[str]:
    """The pages of one shelf of docs/contents.md."""
    text = (ROOT / "docs/contents.md").read_text(encoding="utf-8")
    (part,) = re.findall(rf"^## {title}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\(([\w/]+\.md)\)", part)


def test_readme_tutorials_and_main_how_tos_have_short_sentences() -> None:
    how_tos = ["install", "thermostat", "diagnose", "lab", "hosts", "doctor", "own_task"]
    pages = [*shelf("Tutorials"), *(f"{name}.md" for name in how_tos)]
    for path in [ROOT / "README.md", *(ROOT / "docs" / page for page in pages)]:
        found = sentences(path.read_text(encoding="utf-8"))
        lengths = {one: len(one.split()) for one in found}
        assert sum(lengths.values()) <= 25 * len(lengths), path
        assert {one: length for one, length in lengths.items() if length > 45} == {}, path


def test_pages_are_short_and_on_a_shelf() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900
    short = [*shelf("Tutorials"), *shelf("How-to")]
    for page in short:
        assert len((ROOT / "docs" / page).read_text(encoding="utf-8").split()) <= 1200, page
    shelved = {*short, *shelf("Reference"), *shelf("Explanation and record"), "contents.md"}
    here = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert {str(page) for page in here if page.parts[0] != "study"} == shelved
