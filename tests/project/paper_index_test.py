"""docs/paper_index.md: a row for all that the papers number, and all that a row names is there.

What the papers number is in paper_index.toml, read off their texts; the papers are not in the
repository. That a row's test shows what the row says, no test can check: whoever adds a row does.
"""

from __future__ import annotations

import ast
import re
import tomllib
import typing
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import chain
from typing import Any

import pytest

import entrostat as es
from dynamics_runs import curves, make_run
from entrostat import cli, control
from entrostat.core import advantages as advantage
from entrostat.core.loss import Aggregation
from entrostat.report.panels import run_panels
from entrostat.tasks import BUILT_IN
from entrostat.tasks.sets import SETS
from paths import ROOT, TESTS

SOURCE = ROOT / "src" / "entrostat"
INDEX = (ROOT / "docs" / "paper_index.md").read_text(encoding="utf-8")
PAPERS: dict[str, dict[str, list[Any]]] = tomllib.loads(
    (TESTS / "project/paper_index.toml").read_text(encoding="utf-8")
)
FILES = {path.name: path for path in TESTS.rglob("*_test.py")}
HEAD = "| where | what | status | name | source | test |"
STATUSES = ("here", "recipe only", "not yet", "lost in extraction")
KINDS = ("Eq", "Tab", "Fig", "Alg", "Thm", "Cor", "Prop", "Lemma", "Ass")
SECTION = re.compile(r"\d(\.\d)?|App\. [A-F](\.\d)?")
NUMBERED = re.compile(rf"({'|'.join(KINDS)})\.? (\d+)(?: (to|and) (\d+))?")


@dataclass(frozen=True)
class Row:
    """One line of a paper's table; code spans of its last three columns without their ticks."""

    paper: str
    where: str
    what: str
    status: str
    name: str
    names: tuple[str, ...]
    source: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]


def spans(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


@cache
def rows(paper: str) -> tuple[Row, ...]:
    (section,) = re.findall(rf"^## {paper}\n(.*?)(?=^## )", INDEX, re.MULTILINE | re.DOTALL)
    table = [line for line in section.splitlines() if line.startswith("|")]
    assert table[0] == HEAD
    found = []
    for line in table[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == 6, line
        where, what, status, name, source, test = cells
        found.append(
            Row(paper, where, what, status, name, spans(name), source, spans(source), spans(test))
        )
    return tuple(found)


ALL = tuple(chain.from_iterable(rows(paper) for paper in PAPERS))


def written(row: Row) -> str:
    return f"{row.paper} {row.where}: {row.what} ({row.status})"


def places(where: str) -> set[tuple[str, str | int]]:
    """What a cell "where" covers: ("Eq", 7), ("sections", "3.3")."""
    found: set[tuple[str, str | int]] = set()
    for piece in where.split("; "):
        if SECTION.fullmatch(piece):
            found.add(("sections", piece))
            continue
        match = NUMBERED.fullmatch(piece)
        assert match, f"{where!r}: cannot read {piece!r}; write 3.1; App. B.2; Eq. 4 to 6; Fig. 2"
        first, last = int(match[2]), int(match[4] or match[2])
        numbers = (first, last) if match[3] == "and" else range(first, last + 1)
        assert first < last or match[4] is None, piece
        found |= {(match[1], n) for n in numbers}
    return found


# ---------------------------------------------------------------------------- nothing is missing


@pytest.mark.parametrize("paper", PAPERS)
def test_every_number_has_a_row_and_no_row_a_number_that_is_not(paper: str) -> None:
    said = set[tuple[str, str | int]]().union(*(places(row.where) for row in rows(paper)))
    wanted = {(kind, n) for kind in ("sections", *KINDS) for n in PAPERS[paper].get(kind, ())}
    assert wanted - said == set(), "no row"
    assert said - wanted == set(), "no such thing in the paper"


@pytest.mark.parametrize("paper", PAPERS)
def test_every_task_benchmark_ablation_and_model_has_a_row(paper: str) -> None:
    words = [row.what for row in rows(paper)]
    assert [name for name in PAPERS[paper]["names"] if not any(name in w for w in words)] == []


def test_every_method_and_every_recipe_of_ours_has_a_row() -> None:
    named = {span.split("(")[0] for row in ALL for span in row.names}
    ours = {
        name
        for name, info in es.methods().items()
        # other tests register methods of their own; of the rest, those that a paper is named for
        if info.paper.split(" ")[0] in PAPERS
    }
    assert ours | set(es.dynamics.ESTIMATORS) | set(PAPER_RECIPES) <= named


# ---------------------------------------------------------------------------- rows say something


def says_what_its_status_asks_for(row: Row) -> bool:
    if not row.what:
        return False
    if row.status == "here":
        return bool(row.tests) and bool(row.sources or row.source == "the test")
    if row.status == "recipe only":
        known = set(row.names) <= set(PAPER_RECIPES)
        return bool(row.tests) and bool(row.sources or row.names) and known
    # what is not there has nothing to point at
    return row.status in STATUSES and (row.name, row.source, row.tests) == ("", "", ())


def test_a_row_has_what_its_status_asks_for() -> None:
    assert [written(row) for row in ALL if not says_what_its_status_asks_for(row)] == []


README = (ROOT / "recipes" / "papers" / "README.md").read_text(encoding="utf-8")


@cache
def settings_of(paper: str) -> frozenset[tuple[str, int]]:
    """The tables and figures that recipes/papers/README.md has settings of: ("Tab", 3)."""
    (section,) = re.findall(rf"^### {paper}\n(.*?)(?=^##)", README, re.MULTILINE | re.DOTALL)
    found = set()
    for kind, first, last in re.findall(r"(Tab|Fig)\. (\d+)(?: and (\d+))?", section):
        found |= {(kind, int(first)), (kind, int(last or first))}
    return frozenset(found)


def test_a_recipe_has_its_line_in_their_readme() -> None:
    for row in ALL:
        numbered = {place for place in places(row.where) if place[0] in ("Tab", "Fig")}
        if row.status == "recipe only" and numbered:
            assert numbered & settings_of(row.paper), written(row)


def test_no_row_is_written_twice() -> None:
    count = Counter((row.paper, row.where, row.what) for row in ALL)
    assert [key for key, n in count.items() if n > 1] == []


# ---------------------------------------------------------------------------- what they name


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse(FILES[file].read_text(encoding="utf-8"))
    found = (node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    return frozenset(name for name in found if name.startswith("test_"))


def test_tests_exist() -> None:
    tests = {span for span in spans(INDEX) if "::" in span} | {t for row in ALL for t in row.tests}
    for file, name in (test.split("::") for test in tests):
        assert file in FILES
        assert name in functions(file), f"{file}::{name}"


def test_sources_exist() -> None:
    for source in {source for row in ALL for source in row.sources}:
        root = ROOT if source.startswith("recipes/") else SOURCE
        assert (root / source).is_file(), source


PAPER_RECIPES = sorted(
    path.name.removesuffix(".toml")
    for path in (ROOT / "recipes" / "papers").glob("*.toml")
    if not path.name.endswith((".trl.toml", ".verl.toml"))
)


@cache
def text_of(*rooms: str) -> str:
    """The Python text of some rooms of the package."""
    files = chain.from_iterable(
        (SOURCE / room).rglob("*.py") if (SOURCE / room).is_dir() else [SOURCE / room]
        for room in rooms
    )
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted(files))


def is_setting(name: str) -> bool:
    """A dotted key of the configuration."""
    value: Any = es.TrainConfig()
    for part in name.split("."):
        if not is_dataclass(value) or part not in {f.name for f in fields(value)}:
            return False
        value = getattr(value, part)
    return True


def is_method(name: str) -> bool:
    """A name that `make_objective` takes, with parameters that it has: `steer(lambda_min=)`.

    Where a parameter has a value, the objective is built with it.
    """
    match = re.fullmatch(r"(\w+)(?:\((.*)\))?", name)
    if match is None or match[1] not in es.methods():
        return False
    given = [pair.split("=", 1) for pair in (match[2] or "").split(", ") if pair]
    if not {key for key, _ in given} <= set(es.methods()[match[1]].parameters):
        return False
    es.make_objective(match[1], **{key: ast.literal_eval(v) for key, v in given if v})
    return True


def is_attribute(name: str) -> bool:
    """`law.fit`, `dynamics.flow`, `metrics.avg_at_k`, `control.Additive`, `Terms`."""
    room, _, attribute = name.partition(".")
    if not attribute:
        return name in es.__all__
    homes = {"law": es.law, "dynamics": es.dynamics, "metrics": es.metrics, "control": control}
    return room in homes and hasattr(homes[room], attribute)


def is_figure_of_a_run(name: str) -> bool:
    """A key of metrics.jsonl: written out where a host, an objective or a method logs it."""
    logs = text_of(
        "trainers",
        "analysis",
        "evaluation",
        "runs",
        "data",
        "models",
        "core",
        "method",
        "dynamics",
    )
    return re.fullmatch(r"[a-z]+/\w+", name) is not None and f'"{name}"' in logs


def is_advantage(name: str) -> bool:
    match = re.fullmatch(r'advantage = "(\w+)"', name)
    return match is not None and match[1] in advantage.ESTIMATORS


def is_verb(name: str) -> bool:
    match = re.fullmatch(r"entrostat (\S+)", name)
    return match is not None and f"  entrostat {match[1]} " in cli._HELP


def is_figure_of_an_evaluation(name: str) -> bool:
    """A key of `metrics` in results.json: written out where `entrostat eval` makes it."""
    return re.fullmatch(r"[a-z_]+", name) is not None and f'"{name}"' in text_of(
        "evaluation/results.py"
    )


REGISTRIES: tuple[Callable[[str], bool], ...] = (
    is_method,
    is_attribute,
    is_setting,
    is_figure_of_a_run,
    is_advantage,
    is_verb,
    is_figure_of_an_evaluation,
    lambda name: name in BUILT_IN or name in SETS,
    lambda name: name in es.dynamics.ESTIMATORS,
    lambda name: name in PAPER_RECIPES,
    lambda name: name in typing.get_args(Aggregation),
)


def test_names_are_known_to_entrostat() -> None:
    for name in {name for row in ALL for name in row.names}:
        assert any(known(name) for known in REGISTRIES), name


def test_figures_of_the_page_are_drawn() -> None:
    drawn = text_of("report")
    cells = (re.sub("`[^`]*`", "", row.name) for row in ALL)
    for title in {title for cell in cells for title in re.findall(r'"([^"]+)"', cell)}:
        whole = f'"{title}"' in drawn
        kind, _, rest = title.partition(": ")  # f"{kind.capitalize()}: {title}" of agreement.py
        assert whole or (f'"{kind.lower()}"' in drawn and f'"{rest}"' in drawn), title


def test_every_page_draws_entropy_reward_and_length() -> None:
    """COV Fig. 5, OPEFO Fig. 4; no other test draws the length."""
    logged = {"entropy/exact": 0.5, "reward/mean": 0.25, "rollout/length_mean": 8.0}
    lines = [{"iteration": i} | {k: v * i for k, v in logged.items()} for i in (1, 2, 3)]
    panels = {panel.title: panel for panel in run_panels(make_run(lines))}
    assert curves(panels["Entropy"])["exact"] == ([1, 2, 3], [0.5, 1.0, 1.5])
    assert curves(panels["Reward"])["mean"] == ([1, 2, 3], [0.25, 0.5, 0.75])
    assert curves(panels["Completion length"])["mean"] == ([1, 2, 3], [8.0, 16.0, 24.0])


def test_what_is_not_there_is_found() -> None:
    """The checks above, on names that are false."""
    for name in (
        "no_such_method", "steer(lambda_mix=)", "dynamics.no_such", "metrics.flow", "Term",
        "optim.shedule", "entropy/exakt", 'advantage = "rlo"', "entrostat lore", "omeg",
        "steer_table3_steer_math8b", "token_meen", "aime23", "prompt_entropy_rate",
    ):  # fmt: skip
        assert not any(known(name) for known in REGISTRIES), name
    assert places("3.1; App. B.2; Eq. 4 to 6; Thm 1; Fig. 2 and 5") == {
        ("sections", "3.1"), ("sections", "App. B.2"), ("Eq", 4), ("Eq", 5), ("Eq", 6),
        ("Thm", 1), ("Fig", 2), ("Fig", 5),
    }  # fmt: skip
    for bad in ("Eq 4-6", "Fig. 5 to 2", "somewhere", "3.1, 3.2"):
        with pytest.raises(AssertionError):
            places(bad)
