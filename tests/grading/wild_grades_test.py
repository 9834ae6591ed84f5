"""Graders against what models write: rows that people reported, and neighbours of ours.

`data/grades.tsv` came from bug reports and benchmark files; `data/grades_near.tsv` has the same
kinds, three wrong answers and more for a right one in most. Values are by hand.
"""

from __future__ import annotations

import json

import pytest

import entrostat as es
from entrostat.grading import grade_here
from paths import TESTS

DATA = TESTS / "data"


def rows(name: str) -> list[tuple[str, str, str, float, str]]:
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()[1:]
    split = (line.split("\t") for line in lines)
    return [
        (grader, json.loads(f'"{response}"'), json.loads(f'"{answer}"'), float(right), why)
        for grader, response, answer, right, why in split
    ]


# rows whose own words allow another verdict: an answer of 4,000 characters, which is none, and rows
# of IFEval that tell what its authors' checkers say, which is what grader "ifeval" says
ANSWERED = {
    "deep brackets (1 by value; refusing is fine if bounded)": 0,
    "inside other words (upstream accepts)": 1,
    "NaN is no JSON (Python takes it; upstream too)": 1,
    "a negative number is no bullet (upstream counts it)": 0,
    "numbers of a list are no sentences (soft)": 0,
    "a blank chunk before must not shift what is indexed (upstream does)": 0,
    "four line ends between (upstream refuses)": 0,
    "a rule is no bullet (upstream counts it)": 0,
}


@pytest.mark.parametrize(
    "row", rows("grades.tsv"), ids=lambda row: f"{row[0]}: {row[4]}: {row[2]!r:.40}"
)
def test_grade(row):
    grader, response, answer, right, why = row
    assert es.grade(grader, response, answer, timeout=60) == ANSWERED.get(why, right)


def test_neighbours() -> None:
    wrong, refused = [], []
    for grader, response, answer, right, why in rows("grades_near.tsv"):
        if (given := grade_here(grader, response, answer)) != right:
            (wrong if given else refused).append((why, answer, response))
    assert not wrong
    assert not refused
