"""What the policy says: counted at an evaluation, kept with the run, shown in the pages."""

from __future__ import annotations

import base64
import html
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import entrostat as es
from builders import refused
from entrostat.config import from_dict
from entrostat.errors import RunStopped
from entrostat.evaluation.in_training import count_right, line_of
from entrostat.logs.lines import JsonLines
from entrostat.logs.run import Run, read_run
from entrostat.report import write_comparison, write_run_report
from entrostat.report.answers import Bar, answers_of, answers_of_all, bar_of, evaluations, evenly
from entrostat.report.seeds import entries_of
from entrostat.runs.run_directory import RunDirectory, check_output
from entrostat.tasks.target_sum import TargetSum
from entrostat.tasks.words import Words
from entrostat.trainers.lab import train
from pages import Page, check_self_contained, make_run

pytestmark = pytest.mark.usefixtures("unrendered")

EVIL = "<script>alert(1)</script>"


def test_right_answers_are_counted_in_their_canonical_form() -> None:
    said = [" house", "House", "hat", "hat ", "HOUSE", "horse", "hxq"]
    scores = [1, 1, 1, 1, 1, 0.5, 0]
    assert count_right(Words(), said, scores, 0) == {"house": 3, "hat": 2}
    # a task that has no such form: each text counts for itself
    assert count_right(TargetSum(), said, scores, 0) == {
        " house": 1, "House": 1, "hat": 1, "hat ": 1, "HOUSE": 1
    }  # fmt: skip
    assert count_right(Words(), [], [], 0) == {}


@pytest.mark.parametrize(
    ("canonical", "match"),
    [
        (lambda text: text[100], "broken.canonical raised IndexError.* on 'house'"),
        (lambda text: None, "broken.canonical must give a text, not None, on 'house'"),
    ],
)
def test_a_canonical_form_that_fails_stops_the_run(canonical: Any, match: str) -> None:
    task = Words()
    task.name, task.canonical = "broken", canonical  # type: ignore[method-assign]
    with pytest.raises(RunStopped, match=match) as error:
        count_right(task, ["hxq", "house"], [0, 1], 3)
    assert str(error.value).startswith("iteration 3")


def test_a_line_holds_the_largest_first() -> None:
    example = Words().example(6, "test")
    line = line_of(example, Counter({"hat": 7, "house": 27, "hair": 7}), 48)
    assert line == {
        "label": "H", "question": "A word that starts with H:", "k": 48,
        "right": {"house": 27, "hair": 7, "hat": 7}, "more": 0, "wrong": 7,
    }  # fmt: skip
    assert list(line["right"]) == ["house", "hair", "hat"]


def test_a_line_keeps_32_answers_and_counts_the_rest() -> None:
    counts = Counter({f"w{i:02}": 1 + (i == 39) for i in range(40)})
    line = line_of(Words().example(0, "test"), counts, 50)
    assert list(line["right"])[:2] == ["w39", "w00"]
    assert (len(line["right"]), line["more"], line["wrong"]) == (32, 8, 9)
    bar = bar_of(line)
    assert bar is not None
    assert (bar.distinct, bar.more, bar.others) == (40, 8, 8)


def test_long_texts_are_cut_and_none_is_lost() -> None:
    counts = Counter({"a" * 90: 2, "a" * 100: 1, "b": 1})
    line = line_of(es.Example("x" * 100), counts, 4)
    assert line["right"] == {"a" * 79 + "…": 2, "b": 1}
    assert (line["more"], line["wrong"]) == (1, 0)
    bar = bar_of(line)
    assert bar is not None
    assert (bar.distinct, bar.others) == (3, 1)
    assert (len(line["label"]), len(line["question"])) == (24, 80)


@pytest.mark.parametrize(
    ("example", "label"),
    [
        (es.Example("first\n  last one \n\n"), "last one"),
        (es.Example(""), ""),
        (es.Example("23/4:", data={"label": 7}), "23/4:"),
        (es.Example("23/4:", data={"label": ""}), ""),
        (es.Example("23/4:", data=None), "23/4:"),  # type: ignore[arg-type]
        (TargetSum().example(0, "test"), TargetSum().example(0, "test").prompt.rstrip(":")),
    ],
)
def test_labels(example: es.Example, label: str) -> None:
    assert line_of(example, Counter(), 1)["label"] == label


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = from_dict(
        {
            "iterations": 1,
            "output": str(tmp_path_factory.mktemp("runs") / "run"),
            "sampling": {"prompts": 4, "rollouts": 4},
            "eval": {"prompts": 3, "samples": 8},
        }
    )
    return train(config)


def test_a_run_keeps_its_answers(trained: Path) -> None:
    run = read_run(trained)
    places = [(line["iteration"], line["split"], line["prompt"]) for line in run.answers]
    assert places == [(i, split, p) for i in (0, 1) for split in ("test", "ood") for p in range(3)]
    task = TargetSum()
    for line in run.answers:
        example = task.example(line["prompt"], line["split"])
        assert f"{line['label']}:" == line["question"] == example.prompt
        assert all(task.score(answer, example) == 1 for answer in line["right"])
        assert sum(line["right"].values()) + line["wrong"] == line["k"] == 8
        assert line["more"] == 0
    for row in run.evaluation:
        of = [(b["iteration"], b["split"]) == (row["iteration"], row["split"]) for b in run.answers]
        lines = [line for line, mine in zip(run.answers, of, strict=True) if mine]
        assert sum(len(line["right"]) for line in lines) / 3 == pytest.approx(row["distinct"])
    assert {line["iteration"] for line in run.evaluation} == {0, 1}
    page = Page(trained / "report.html" if (trained / "report.html").exists() else
                write_run_report(trained))  # fmt: skip
    assert "What the policy says" in page.words()


def test_what_came_later_is_forgotten(trained: Path, tmp_path: Path) -> None:
    lines = (trained / "answers.jsonl").read_text().splitlines(keepends=True)
    path = tmp_path / "answers.jsonl"
    later = [json.dumps(json.loads(line) | {"iteration": 2}) + "\n" for line in lines[:1]]
    path.write_text("".join(lines))
    mark = JsonLines(path).mark()
    path.write_text("".join(lines + later) + '{"iteration": 2, "spl')
    RunDirectory(tmp_path).rewind(1, {path.name: mark})
    assert path.read_text() == "".join(lines)
    RunDirectory(tmp_path).rewind(0, {})
    assert not path.exists()  # those of before training too: they come again


def test_a_run_that_stopped_at_once_may_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_text("")
    check_output(tmp_path, 1, resume=False)
    (tmp_path / "metrics.jsonl").write_text("")
    refused(lambda: check_output(tmp_path, 1, resume=False), "is not empty")


def line(iteration: int, prompt: int, right: dict[str, int], wrong: int = 0, **more: Any) -> dict:
    label = more.pop("label", chr(ord("A") + prompt))
    found = {"iteration": iteration, "split": "test", "prompt": prompt, "label": label,
             "question": f"A word that starts with {label}:", "k": sum(right.values()) + wrong,
             "right": right, "more": 0, "wrong": wrong}  # fmt: skip
    return found | more


def write(path: Path, lines: list[dict], seed: int = 0, **settings: str) -> Path:
    run = make_run(path, **settings)
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("seed = 7", f"seed = {seed}"))
    (run / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return run


BEFORE = [line(0, i, {"one": 2, "two": 1}, 5) for i in range(22)]
AFTER = [line(3, i, {"one": 7, "three": 1}) for i in range(22)]


def test_ten_prompts_are_shown_and_all_are_listed(tmp_path: Path) -> None:
    found = answers_of(read_run(write(tmp_path / "a", BEFORE + AFTER)))
    assert found is not None
    assert found.titles == ("Before training", "After 3 iterations")
    assert found.samples == 8
    assert [label for label, _ in found.table] == [chr(ord("A") + i) for i in range(22)]
    assert found.notes == ("The figures show 10 of the 22 prompts.",)
    before, after = found.images
    assert before.caption == (
        "38 % of the answers are right; a prompt gets 2.0 different right ones (mean of 22 "
        "prompts)."
    )
    assert "100 % of the answers are right" in after.caption
    labels = "".join(part.split(":")[0] for part in after.alt.split("iterations: ")[1].split("; "))
    assert labels == "ACFHJMOQTV"
    assert "A: 2 different right of 8, most often one (7)" in after.alt


@pytest.mark.parametrize(
    ("n", "most", "places"),
    [
        (0, 3, []),
        (3, 3, [0, 1, 2]),
        (4, 3, [0, 2, 3]),
        (22, 10, [0, 2, 5, 7, 9, 12, 14, 16, 19, 21]),
    ],
)
def test_evenly(n: int, most: int, places: list[int]) -> None:
    assert evenly(n, most) == places


@pytest.mark.parametrize(
    "change",
    [
        {"k": 0}, {"k": True}, {"k": 10**9}, {"k": None}, {"wrong": -1}, {"wrong": 9}, {"more": 3},
        {"more": "x"}, {"right": []}, {"right": {"one": 0}}, {"right": {"one": 1.5}},
        {"right": {"one": 100}}, {"label": None}, {"k": 20}, {"more": 1},
    ],
)  # fmt: skip
def test_a_line_that_is_none_is_left_out(change: dict) -> None:
    good = line(0, 0, {"one": 2, "two": 1}, 5)
    assert bar_of(good) == Bar(
        "A", "A word that starts with A:", 8, (("one", 2), ("two", 1)), 0, 0, 5
    )
    assert bar_of(good | change) is None


def test_other_splits_and_broken_places_are_left_out(tmp_path: Path) -> None:
    five = line(3, 5, {"one": 1})
    odd: list[dict] = [five | {"split": "ood"}, five | {"prompt": "5"}, {"iteration": 3}]
    run = read_run(write(tmp_path / "a", [*BEFORE, *odd, *AFTER]))
    assert {i: len(bars) for i, bars in evaluations(run).items()} == {0: 22, 3: 22}


def sections(paths: list[Path]) -> Any:
    runs = [read_run(path) for path in paths]
    return answers_of_all(runs, entries_of(runs, [run.name for run in runs]))


def test_a_comparison_has_before_once_and_four_runs(tmp_path: Path) -> None:
    runs = [
        write(tmp_path / name, BEFORE + AFTER, methods=f'["{name}"]')
        for name in ("grpo", "repo_r", "steer", "par", "gspo")
    ]
    found = sections(runs[:2])
    assert found.titles == (
        "Before training", "grpo: after 3 iterations", "repo_r: after 3 iterations"
    )  # fmt: skip
    found = sections(runs)
    assert [title.split(":")[0] for title in found.titles] == [
        "Before training", "grpo", "repo_r", "steer", "par"
    ]  # fmt: skip
    assert "The first 4 settings are shown." in found.notes
    for _, bars in found.table:
        assert [bar.wrong for bar in bars] == [5, 0, 0, 0, 0]


def test_one_of_several_seeds_is_shown(tmp_path: Path) -> None:
    seeds = [write(tmp_path / f"grpo-{i}", BEFORE + AFTER, seed=i) for i in (4, 5)]
    other = write(tmp_path / "repo_r", AFTER, methods='["repo_r"]')
    found = sections([*seeds, other])
    assert found.titles == (
        "Before training", "grpo, seed 4: after 3 iterations", "repo_r: after 3 iterations"
    )  # fmt: skip
    assert "Of several seeds one is shown." in found.notes


def test_a_start_that_is_not_everyones_is_named(tmp_path: Path) -> None:
    start = [line(0, i, {"two": 3}, 5) for i in range(22)]
    one = write(tmp_path / "one", BEFORE + AFTER, methods='["grpo"]')
    two = write(tmp_path / "two", start + AFTER, methods='["par"]')
    assert sections([one, two]).titles[0] == "Before training (one)"


def test_runs_of_other_prompts_or_without_answers_are_left_out(tmp_path: Path) -> None:
    one = write(tmp_path / "one", BEFORE + AFTER, methods='["grpo"]')
    bare = make_run(tmp_path / "bare", methods='["par"]')
    lines = [line(3, 0, {"5": 8}, label="2 + 3")]
    other = write(tmp_path / "other", lines, methods='["steer"]')
    only_before = write(tmp_path / "before", BEFORE, methods='["gspo"]')
    found = sections([bare, only_before, one, other])
    assert found.titles == ("Before training", "one: after 3 iterations")
    assert "Runs that were evaluated on other prompts are not shown." in found.notes
    assert sections([bare]) is None
    assert answers_of(read_run(bare)) is None
    alone = answers_of(read_run(only_before))
    assert alone is not None
    assert alone.titles == ("Before training",)
    assert "What the policy says" not in Page(write_run_report(bare)).words()


def test_nothing_right_is_nothing_to_show(tmp_path: Path) -> None:
    lines = [line(i, 0, {}, 8) for i in (0, 3)]
    assert answers_of(read_run(write(tmp_path / "a", lines))) is None


def texts(svg: str) -> list[str]:
    """matplotlib puts each text it draws in a comment."""
    return [html.unescape(part.split(" -->")[0]) for part in svg.split("<!-- ")[1:]]


def svg_of(src: str) -> str:
    return base64.b64decode(src.partition(",")[2]).decode("utf-8")


@pytest.mark.rendered
def test_a_bar_has_the_words_that_fit_and_the_rest_below(tmp_path: Path) -> None:
    right = {"house": 7, "hat": 2, "hippocamp": 1, "histology": 1}
    run = read_run(write(tmp_path / "a", [line(3, 7, right, 5)]))
    found = answers_of(run)
    assert found is not None
    (image,) = found.images
    assert image.title == "After 3 iterations"
    assert sorted(texts(svg_of(image.src))) == sorted([
        "16 answers", "different", "H", "4", "house \u00d77", "5 wrong",
        "hat \u00d72, hippocamp, histology",
    ])  # fmt: skip


@pytest.mark.rendered
def test_hostile_answers_are_text(tmp_path: Path) -> None:
    right = {EVIL: 9, "$\\frac{": 3, "]]>--><b>": 2, "bell\x07\u202e\ud800": 1, "": 1, "模型": 1}
    lines = [line(i, 0, right, 1, label=f"{EVIL[:20]}{i}", question=EVIL) for i in (0, 3)]
    lines += [line(i, 1, {"$x": 1}, 17, label="$_{", question="\x00") for i in (0, 3)]
    one = write(tmp_path / "one", lines, methods='["grpo"]')
    two = write(tmp_path / "two", lines, methods=json.dumps([f"{EVIL}$\\frac{{"]))
    pages = [write_run_report(one), write_comparison([one, two], tmp_path / "c.html")]
    for path in pages:
        page = Page(path)
        check_self_contained(page)
        words = page.words()
        for part in ("$_{", "$x", "17 wrong"):
            assert part in words
        for svg in page.svgs():
            ElementTree.fromstring(svg)
        drawn = [text for svg in page.svgs() for text in texts(svg)]
        assert "$x" in drawn
        assert "$_{" in drawn
    # labels that differ by iteration are different prompts: only an equal one is compared
    lines = [line(i, 0, right, 1, label=EVIL[:24], question=EVIL) for i in (0, 3)]
    page = Page(write_run_report(write(tmp_path / "three", lines)))
    check_self_contained(page)
    for part in (f"{EVIL} \u00d79", "$\\frac{ \u00d73", "]]>--><b> \u00d72", "模型", f"“{EVIL}”"):
        assert part in page.words()
    drawn = [text for svg in page.svgs() for text in texts(svg)]
    assert any(text.startswith(f"{EVIL} \u00d79") for text in drawn)
    assert any("$\\frac{" in text for text in drawn)
    assert not any("\x07" in text or "\u202e" in text for text in drawn)


def test_the_section_explains_itself(tmp_path: Path) -> None:
    one = write(tmp_path / "one", BEFORE + AFTER, methods='["grpo"]')
    two = write(tmp_path / "two", BEFORE + AFTER, methods='["repo_r"]')
    page = Page(write_comparison([one, two], tmp_path / "c.html"))
    check_self_contained(page)
    words = page.words()
    for part in (
        "8 answers to each of the same held-out prompts; A stands for “A word that starts with A:”",
        "The figures show 10 of the 22 prompts.", "one \u00d77, three (2 different)",
        "one \u00d72, two (2 different; 5 wrong)", "The same as a table, 22 prompts",
    ):  # fmt: skip
        assert part in words
    assert words.index("What the policy says") < words.index("Curves by iteration")
    assert all(header.get("scope") in ("col", "row") for header in page.all("th"))
    assert [a["href"] for a in Page(write_run_report(one)).all("a")][:3] == [
        "#verdict", "#answers", "#curves"
    ]  # fmt: skip


def test_a_run_made_without_answers_has_none() -> None:
    run = Run(Path("x"), {}, "", "", [{"iteration": 1}], [], ())
    assert run.answers == []
    assert answers_of(run) is None
    assert answers_of(replace(run, answers=[{"iteration": 1}])) is None
