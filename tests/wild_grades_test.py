"""Graders against responses that models wrote and people reported: `data/grades.tsv`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import entrostat as es

FILE = Path(__file__).parent / "data" / "grades.tsv"


def rows() -> list[tuple[str, str, str, float, str]]:
    lines = FILE.read_text(encoding="utf-8").splitlines()[1:]
    split = (line.split("\t") for line in lines)
    return [
        (grader, json.loads(f'"{response}"'), json.loads(f'"{answer}"'), float(right), why)
        for grader, response, answer, right, why in split
    ]


# refused, which the table allows: the answer has 4,000 characters, and more than 1,000 is none
ANSWERED = {"deep brackets (1 by value; refusing is fine if bounded)"}


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]}: {row[4]}: {row[2]!r:.40}")
def test_grade(row):
    grader, response, answer, right, why = row
    assert es.grade(grader, response, answer, timeout=60) == (0 if why in ANSWERED else right)
