"""Rollouts made of formulas, their page, and what it shows in a browser."""

import math
import shutil
from pathlib import Path

import pytest
import torch

from entrostat.logs.rollouts import Rollouts
from entrostat.report import write_run_report

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


if BROWSER is None:
    pytest.skip("no Chromium or Chrome on the PATH", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")


B = 45
EVIL = 5  # the rollout of hostile pieces
WORDS = ["<eos>", "uno ", "dos ", "tres ", "quattro ", "cinque\n", "sechs "]
HOSTILE = ["<script>window.hacked=1</script>", "</script>", "<!--", "<img src=x onerror=hacked=1>",
           "\u202elive", "\ud800", "\0", "\u2028"]  # fmt: skip


SHADES = {"entropy": 1.0, "change": 2e-3, "influence": 3e-5, "advantage": 2.0}  # largest of each


def length(i):
    return len(HOSTILE) + 1 if i == EVIL else 3 + i % 7


def reward(i):
    return math.nan if i == 44 else float(i % 3 == 0)  # 15 right, 29 wrong, one unknown


def value(name, i, j):
    """A token's figure: rollout i, place j."""
    if name == "entropy":
        return math.nan if (i, j) == (0, 1) else (7 * i + 3 * j) % 11 / 10
    if name == "change":
        return ((i + 2 * j) % 5 - 2) / 1000
    if name == "influence":
        return ((3 * i + j) % 7 - 3) * 1e-5
    if name == "advantage":
        return 2.0 if reward(i) == 1 else -1.0
    return -(1 + (i + j) % 8) / 4  # log-probs


def total(name, i):
    return sum(abs(v) for j in range(length(i)) if not math.isnan(v := value(name, i, j)))


def mean(name, i):
    """Of a non-negative figure."""
    known = sum(not math.isnan(value(name, i, j)) for j in range(length(i)))
    return total(name, i) / known


def full(iteration, analysed=True):
    pieces = dict(enumerate(WORDS + HOSTILE))
    ids, texts, start = [], [], [0]
    for i in range(B):
        body = [1 + (i + j) % 6 for j in range(length(i) - 1)]
        if i == EVIL:
            body = list(range(len(WORDS), len(WORDS) + len(HOSTILE)))
        ids += [*body, 0]
        texts.append("".join(pieces[k] for k in body))
        start.append(len(ids))
    places = [(i, j) for i in range(B) for j in range(length(i))]

    def column(name):
        return torch.tensor([value(name, i, j) for i, j in places])

    return Rollouts(
        iteration, [f"Prompt {i // 5}" for i in range(B)], texts,
        torch.tensor([reward(i) for i in range(B)]),
        torch.tensor([i // 5 for i in range(B)], dtype=torch.int32),
        torch.ones(B, dtype=torch.bool), torch.arange(B) != 7, torch.tensor(start),
        torch.tensor(ids, dtype=torch.int32), column("logp"), column("logp") - 0.5,
        column("entropy"), column("advantage"), pieces,
        column("change") if analysed else None, column("influence") if analysed else None,
    )  # fmt: skip


def texts_only(iteration):
    none = torch.zeros(0)
    return Rollouts(
        iteration, ["Say it", "Say it"], ["plain <b>text</b>", "other \u202etext"],
        torch.tensor([math.nan, math.nan]), torch.zeros(2, dtype=torch.int32),
        torch.zeros(2, dtype=torch.bool), torch.ones(2, dtype=torch.bool),
        torch.zeros(3, dtype=torch.int64), none.int(), none, none, none, none, {},
    )  # fmt: skip


def write_page(path: Path) -> Path:
    (path / "metrics.jsonl").write_text('{"iteration": 3}\n')  # nothing to draw
    return write_run_report(path)


def text(page, selector):
    """With a plain hyphen for the minus sign."""
    return page.inner_text(selector).replace("\u2212", "-")


def status(page):
    return text(page, "#tv-status")


def shown(page):
    """Places in the batch of the rollouts on the page, from 0."""
    rows = page.eval_on_selector_all(
        "#tv-list > li[data-number]", "rows => rows.map(r => r.dataset.number)"
    )
    return [int(row) - 1 for row in rows]
