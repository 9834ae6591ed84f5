"""Figures and tables of a page as files by name, and what a notebook calls."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from PIL import Image

import entrostat as es
from builders import refused
from dynamics_runs import full_line
from entrostat.cli import main
from entrostat.report import export, write_comparison, write_run_report
from entrostat.report.figures import Bars, Panel, Points
from entrostat.report.tables import Column, Table, _in_latex, _line, as_csv, as_latex, as_markdown
from examples import examples
from pages import Page, eval_line, make_run
from paths import ROOT, TESTS

pytestmark = pytest.mark.usefixtures("unrendered")

EVIL = "=a|b_*c*</td><script>alert(1)</script>[x](http://y) $z$ `q` \\ & 50%{}~^ www.evil.com --"
ANY = st.text(max_size=40)


def answered(path: Path) -> Path:
    """With answers before training and after three iterations."""
    right = {0: {"-3": 2, "b": 1}, 3: {"-3": 4}}
    lines = [
        {"iteration": i, "split": "test", "prompt": 0, "label": "A", "question": "A?", "k": 4,
         "right": found, "wrong": 4 - sum(found.values()), "more": 0}
        for i, found in right.items()
    ]  # fmt: skip
    (path / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def seeded(path: Path, seed: int, entropy: list[float]) -> Path:
    lines = [{"iteration": i, "entropy/exact": h, "grad/norm": 2 * h}
             for i, h in enumerate(entropy, 1)]  # fmt: skip
    run = make_run(path, lines=lines, evaluation=[])
    config = (run / "config.toml").read_text().replace("seed = 7", f"seed = {seed}")
    (run / "config.toml").write_text(config)
    return run


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# --- names


def test_a_page_has_the_figures_that_go_by_names(tmp_path: Path) -> None:
    run = answered(make_run(tmp_path / "a"))
    (run / "analysis.jsonl").write_text(
        "".join(json.dumps(full_line(i)) + "\n" for i in range(1, 4))
    )
    figures, tables = export.names_of(export.parts_of(es.load_run(run)))
    assert len(figures) == len(Page(write_run_report(run)).all("img"))
    assert list(figures)[:7] == [
        "entropy", "reward", "coefficient_zeta", "clipped_tokens", "gradient_norm",
        "answers_1", "answers_2",
    ]  # fmt: skip
    assert list(tables) == ["results", "evaluation", "answers", "tokens", "estimators"]
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in figures)
    several = [run, answered(make_run(tmp_path / "b", methods='"par"')),
               make_run(tmp_path / "c", methods='"loop"')]  # fmt: skip
    figures, tables = export.names_of(export.parts_of(es.load_runs(several)))
    page = Page(write_comparison(several, tmp_path / "c.html"))
    assert len(figures) == len(page.all("img"))
    assert list(figures) == [
        "entropy", "reward", "coefficient_zeta", "score_against_cumulative_entropy_test",
        "answers_1", "answers_2", "answers_3",
    ]  # fmt: skip
    assert list(tables) == ["results", "answers", "runs"]


NAMES = [
    "reward_by_part", "foretold", "thermostat", "evaluation_scores", "ratio", "kl_old",
    "kl_reference", "loss",
    "token_weight", "held_tokens", "learning_rate", "zero_advantage_groups",
    "zero_advantage_share", "group_outcomes", "advantages", "completion_length", "truncated",
    "failed_answers",
    "token_covariance", "touched_tokens", "touched_entropy", "quadrants", "prime_loss",
    "prime_accuracy", "prime_reward", "prime_gradient_norm", "mismatch", "mismatch_ratio",
    "mismatch_probability", "staleness", "speed", "flow_updates", "balance",
    "covariance_of_whole_responses",
]  # fmt: skip


def test_names_are_those_of_this_list(tmp_path: Path) -> None:
    """They are written in people's scripts: whoever changes a title keeps the name."""
    keys = (
        "thermostat/foretold", "thermostat/gain", "eval_reward", "ratio/mean", "kl/old_new",
        "kl/ref", "loss/total",
        "terms/weight", "terms/frozen", "rollout/zero_advantage_groups",
        "rollout/zero_advantage_share", "rollout/length_mean", "rollout/truncated",
        "reward/failed", "prime/loss", "prime/accuracy", "prime/reward_mean", "prime/grad_norm",
        "mismatch/kl", "mismatch/ratio_max", "mismatch/prob_abs_mean", "time/tokens_per_second",
        "cov/mean", "touched/share", "touched/entropy", "quadrant/I", "flow/increase",
        "flow/balance", "cov/prompt", "rewards/f/mean", "groups/mixed", "advantage/min",
        "advantage/p10", "advantage/p50", "advantage/p90", "advantage/max",
        "off_policy_level/all/mean",
    )  # fmt: skip
    lines = [{"iteration": i, "optim/lr": i / 8, **dict.fromkeys(keys, 0.5)} for i in (1, 2)]
    run = make_run(tmp_path / "a", lines=lines, evaluation=[])
    assert list(export.names_of(export.parts_of(es.load_run(run)))[0]) == NAMES


def test_the_names_that_the_docs_list_are_these() -> None:
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    rows = [
        line.split("|")[1] for line in page.splitlines() if line.startswith(("| `", "| tables"))
    ]
    listed = {name for row in rows for name in re.findall(r"`([a-z_0-9]+)`", row)}
    others = {"entropy", "reward", "coefficient_zeta", "clipped_tokens", "gradient_norm", "law",
              "answers_1", "answers_2"}  # fmt: skip
    tables = {"results", "evaluation", "answers", "tokens", "estimators", "seeds", "runs"}
    sections = {"flow_updates", "balance", "covariance_of_whole_responses"}
    names = {*NAMES} - sections - {"prime_loss", "prime_accuracy", "prime_reward",
                                   "prime_gradient_norm"}  # fmt: skip
    assert listed == names | others | tables


def test_a_name_that_comes_twice_is_numbered(tmp_path: Path) -> None:
    lines = [{"iteration": 1, "control/a b": 0.5, "control/a-b": 0.25}]
    parts = export.parts_of(es.load_run(make_run(tmp_path / "a", lines=lines, evaluation=[])))
    assert list(export.names_of(parts)[0]) == ["coefficient_a_b", "coefficient_a_b_2"]
    second = export.figure_named(parts, "coefficient-a-b-2")
    assert isinstance(second, Panel)
    assert second.curves[0].y == [0.25]


# --- figures


@pytest.mark.rendered
def test_a_figure_as_svg_and_png(tmp_path: Path) -> None:
    parts = export.parts_of(es.load_run(answered(make_run(tmp_path / "a"))))
    for name, width in (("entropy", 4.7), ("answers_1", 4.7)):
        svg = export.write_figure(parts, name, tmp_path / f"{name}.svg")
        root = ElementTree.fromstring(svg.read_text())
        assert float(root.attrib["width"].removesuffix("pt")) == pytest.approx(72 * width)
        tags = {element.tag.split("}")[-1] for element in root.iter()}
        assert "path" in tags
        assert tags.isdisjoint({"text", "script", "image", "foreignObject", "a"})
        png = export.write_figure(parts, name, tmp_path / f"{name}.png")
        with Image.open(png) as image:
            assert image.size[0] == int(200 * width)
            assert image.info["dpi"] == pytest.approx((200, 200), abs=0.1)
            assert image.convert("RGBA").getpixel((1, 1)) == (255, 255, 255, 255)
            assert len(set(image.convert("L").tobytes())) > 20  # something is drawn


def test_numbers_of_curves_come_back_to_the_last_bit(tmp_path: Path) -> None:
    parts = export.parts_of(es.load_run(make_run(tmp_path / "a")))
    rows = read_csv(export.write_figure(parts, "entropy", tmp_path / "e.csv"))
    assert [*rows[0]] == ["iteration", "exact", "NLL", "target"]
    assert [float(row["exact"]) for row in rows] == [0.8, 0.6, 0.5]
    assert [row["NLL"] for row in rows] == ["0.79", "", ""]
    assert [row["target"] for row in rows] == ["0.7", "", "0.7"]
    values = [1 / 3, 2 / 7, 1e-17, 1e22]
    lines = [{"iteration": i, "grad/norm": v} for i, v in enumerate(values, 1)]
    parts = export.parts_of(es.load_run(make_run(tmp_path / "b", lines=lines, evaluation=[])))
    rows = read_csv(export.write_figure(parts, "Gradient-Norm", tmp_path / "g.csv"))
    assert [float(row["gradient_norm"]) for row in rows] == values


def test_numbers_of_a_band_are_mean_lowest_and_highest(tmp_path: Path) -> None:
    runs = [
        seeded(tmp_path / "s0", 0, [0.5, 0.25]),
        seeded(tmp_path / "s1", 1, [1.0, 0.75]),
        make_run(tmp_path / "other", methods='"par"', lines=[{"iteration": 2, "entropy/nll": 2.0}]),
    ]
    parts = export.parts_of(es.load_runs(runs))
    rows = read_csv(export.write_figure(parts, "entropy", tmp_path / "e.csv"))
    assert rows == [
        {"iteration": "1", "grpo (2 seeds)": "0.75", "par": "",
         "grpo (2 seeds): low": "0.5", "grpo (2 seeds): high": "1.0"},
        {"iteration": "2", "grpo (2 seeds)": "0.5", "par": "2.0",
         "grpo (2 seeds): low": "0.25", "grpo (2 seeds): high": "0.75"},
    ]  # fmt: skip
    # a metric that has no figure of its own on this page, by its own name
    rows = read_csv(export.write_figure(parts, "grad/norm", tmp_path / "g.csv"))
    assert [row["grpo (2 seeds)"] for row in rows] == ["1.5", "1.0"]
    table = export.table_named(parts, "seeds")
    (line,) = csv.DictReader(io.StringIO(as_csv(table)))
    assert (line["seeds"], line["runs"]) == ("2", "s0 (seed 0), s1 (seed 1)")
    ends = [float(line[f"entropy_after{end}"]) for end in ("", "_low", "_high")]
    assert ends == [0.5, 0.25, 0.75]
    assert "0.500 \\[0.250, 0.750\\]" in as_markdown(table)


def test_an_unsmoothed_curve_and_targets_have_names(tmp_path: Path) -> None:
    def lines(target: float) -> list[dict]:
        return [{"iteration": i, "entropy/exact": 0.5, "reward/mean": i / 64,
                 "control/target": target} for i in range(1, 31)]  # fmt: skip

    runs = [make_run(tmp_path / "a", lines=lines(0.5)),
            make_run(tmp_path / "b", methods='"par"', lines=lines(0.75))]  # fmt: skip
    parts = export.parts_of(es.load_runs(runs))
    rows = read_csv(export.write_figure(parts, "reward", tmp_path / "r.csv"))
    assert [*rows[0]] == ["iteration", "grpo, unsmoothed", "grpo", "par, unsmoothed", "par"]
    assert float(rows[9]["grpo, unsmoothed"]) == 10 / 64
    assert float(rows[0]["grpo"]) == 1.5 / 64  # the mean of the first two: a window of 3 is cut
    rows = read_csv(export.write_figure(parts, "entropy", tmp_path / "e.csv"))
    assert [*rows[0]] == ["iteration", "grpo: target", "par: target", "grpo", "par"]
    assert rows[0]["par: target"] == "0.75"


def test_clouds_keep_several_values_at_one_place_and_bars_their_order() -> None:
    cloud = Panel("T", "", "u", points=(Points("a", [2, 1, 2], [0.5, 0.25, 0.75]),
                                        Points("a", [2], [4.0])), across="x")  # fmt: skip
    assert export.numbers_of(cloud) == [
        ["x", "a", "a (2)"], [1, 0.25, None], [2, 0.5, 4.0], [2, 0.75, None],
    ]  # fmt: skip
    bars = Panel("T", "", "u", bars=(Bars("p", ["z", "a"], [1.0, 2.0]), Bars("q", ["z"], [3.0])))
    assert export.numbers_of(bars) == [["iteration", "p", "q"], ["z", 1.0, 3.0], ["a", 2.0, None]]


def test_numbers_of_answers(tmp_path: Path) -> None:
    parts = export.parts_of(es.load_run(answered(make_run(tmp_path / "a"))))
    text = export.write_figure(parts, "answers_1", tmp_path / "a.csv").read_text()
    # an answer that is a number is no formula
    assert text == "prompt,kind,answer,count\nA,right,-3,2\nA,right,b,1\nA,wrong,,1\n"


# --- tables


def test_results_of_a_run_in_three_forms(tmp_path: Path) -> None:
    parts = export.parts_of(es.load_run(make_run(tmp_path / "a")))
    table = export.table_named(parts, "results")
    assert as_csv(table) == (
        "label,entropy_before,entropy_after,entropy_kept,target,avg_before,avg_after,pass_before,"
        "pass_after,distinct_before,distinct_after,reward_first,reward_last,iterations,seconds\n"
        "grpo,0.8,0.5,62.5,0.7,0.25,0.5,0.5,0.75,1.5,1.25,0.25,0.75,3,4.0\n"
    )
    head, row = cells_of(as_markdown(table))
    assert head[:3] == ["run", "entropy, start → end (nats per token)", "kept (%)"]
    assert row == ["grpo", "0.800 → 0.500", "62.5", "0.700", "0.250 → 0.500", "0.500 → 0.750",
                   "1.50 → 1.25", "0.250 → 0.750", "3", "4"]  # fmt: skip
    lines = as_latex(table).splitlines()
    assert lines[:3] == ["% \\usepackage{booktabs}", "\\begin{tabular}{lrrrrrrrrr}", "\\toprule"]
    assert lines[5].startswith("grpo & 0.800 $\\rightarrow$ 0.500 & 62.5 & 0.700 & ")
    assert lines[3].endswith("\\\\")
    assert lines[4::2] == ["\\midrule", "\\bottomrule"]


def test_what_no_row_has_is_no_column(tmp_path: Path) -> None:
    keys = {"a": "entropy/exact", "b": "reward/mean"}
    runs = [make_run(tmp_path / name, lines=[{"iteration": 1, key: 0.5}], evaluation=[])
            for name, key in keys.items()]  # fmt: skip
    table = export.table_named(export.parts_of(es.load_runs(runs)), "results")
    assert [row[1] for row in table.rows] == [(0.5, 0.5), (None, None)]
    assert [line[1] for line in cells_of(as_markdown(table))[1:]] == ["0.500 → 0.500", "—"]
    assert [column.keys[0] for column in table.columns] == [
        "label", "entropy_before", "entropy_kept", "reward_first", "iterations",
    ]  # fmt: skip


READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def cells_of(text: str) -> list[list[str]]:
    """What a Markdown reader shows of a pipe table: rows of plain texts."""
    rows: list[list[str]] = []
    for token in READER.parse(text):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            kinds = {child.type for child in token.children or ()}
            assert kinds <= {"text", "text_special"}, (kinds, text)
            rows[-1].append("".join(child.content for child in token.children or ()))
    return rows


def one_cell(text: str) -> Table:
    columns = (Column(text, ("a",)), Column("b", ("b",), "{:.1f}"))
    return Table("t", "T", columns, (((text,), (-0.5,)), ((None,), (None,))))


@given(ANY | st.text("ab-[]*|\\`_<>&$:/w.@ ~#", max_size=30))
@settings(max_examples=examples(200), deadline=None)
def test_markdown_shows_any_text_as_it_is(text: str) -> None:
    from entrostat._text import printable

    plain = printable(" ".join(text.split()))
    rows = cells_of(as_markdown(one_cell(text)))
    assert rows[0][0] == plain
    assert rows[1:] == [[plain, "-0.5"], ["—", "—"]]


_NAMED = {
    "textbackslash": "\\", "textasciicircum": "^", "textasciitilde": "~", "textless": "<",
    "textgreater": ">", "textbar": "|", "textasciigrave": "`", "textquotesingle": "'",
    "dots": "…", "rightarrow": "→", "eta": "η", "times": "\N{MULTIPLICATION SIGN}",
}  # fmt: skip


def set_by_latex(source: str) -> str:
    """What TeX would set of a cell; fails at a sign that would do something else."""
    found, i, math = "", 0, False
    while i < len(source):
        if match := re.match(r"\\([a-zA-Z]+)(\{\})?", source[i:]):
            assert math or match[2], "a command would swallow the blank after it"
            found += _NAMED[match[1]]
        elif match := re.match(r"\\([{}$&#%_])", source[i:]):
            found += match[1]
        elif match := re.match(r"\{([\[\]*])\}|-(\{\})|---", source[i:]):
            found += match[1] or ("-" if match[2] else "—")
        elif source[i] == "$":
            math, match = not math, re.match(r"\$", source[i:])
        else:
            assert source[i] not in "\\{}$&#%_^~[]*", source
            assert source[i : i + 2] != "--", source
            match = re.match(r"(?s).", source[i:])
            found += source[i]
        assert match is not None
        i += match.end()
    assert not math
    return found


@given(ANY | st.text("ab-[]*{}\\$&#%_^~<>|`' ", max_size=30))
@settings(max_examples=examples(200), deadline=None)
def test_latex_sets_any_text_as_it_is(text: str) -> None:
    from entrostat._text import printable

    assert set_by_latex(_in_latex(_line(text))) == printable(" ".join(text.split()))


def test_latex_of_numbers_and_missing_ones() -> None:
    assert as_latex(one_cell("[a]*")).splitlines()[3:] == [
        "{[}a{]}{*} & b \\\\", "\\midrule", "{[}a{]}{*} & $-$0.5 \\\\", "--- & --- \\\\",
        "\\bottomrule", "\\end{tabular}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "field"),
    [("=1+1", "'=1+1"), ("+cmd", "'+cmd"), ("@SUM(A1)", "'@SUM(A1)"), ("-x", "'-x"), ("-3", "-3"),
     ("+1e5", "+1e5"), ("a=b", "a=b"), ("a,b\n\x1b[2J", "a,b\n␛[2J")],
)  # fmt: skip
def test_a_spreadsheet_computes_nothing(text: str, field: str) -> None:
    rows = list(csv.reader(io.StringIO(as_csv(one_cell(text)), newline="")))
    assert rows[1] == [field, "-0.5"]


# --- the command line


def test_hostile_names_are_texts_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = json.dumps([EVIL])
    runs = [str(make_run(tmp_path / name, methods=m)) for name, m in (("a", methods), ("b", '"p"'))]
    assert main(["report", *runs, "--table", "runs"]) == 0
    out, err = capsys.readouterr()
    assert [row[:2] for row in cells_of(out)] == [["run", "method"], [EVIL, EVIL], ["p", "p"]]
    assert err == ""
    for suffix in ("csv", "tex"):
        assert main(["report", *runs, "--table", "runs", "--output", f"{tmp_path}/t.{suffix}"]) == 0
    assert read_csv(tmp_path / "t.csv")[0]["run"] == f"'{EVIL}"
    assert set_by_latex((tmp_path / "t.tex").read_text().splitlines()[5].split(" & ")[1]) == EVIL
    for suffix in ("csv", "svg"):
        figure = ["--figure", "entropy", "--output", f"{tmp_path}/f.{suffix}"]
        assert main(["report", *runs, *figure]) == 0
    assert [*read_csv(tmp_path / "f.csv")[0]] == ["iteration", "target", f"'{EVIL}", "p"]
    tags = {element.tag.split("}")[-1] for element in ElementTree.parse(tmp_path / "f.svg").iter()}
    assert tags.isdisjoint({"script", "a", "td", "text"})


def test_the_names_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(make_run(tmp_path / "a", evaluation=[]))
    assert main(["report", run, "--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "figures (--figure)",
        "  entropy           Entropy",
        "  reward            Reward",
        "  coefficient_zeta  Coefficient zeta",
        "  clipped_tokens    Clipped tokens",
        "  gradient_norm     Gradient norm",
        "  law               Score against exp(entropy)",
        "tables (--table)",
        "  results  Results",
    ]
    assert not Path(run, "report.html").exists()


def test_a_figure_without_a_place_is_an_svg_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    for name in ("reward", "grad/norm"):
        assert main(["report", str(run), "--figure", name]) == 0
    assert capsys.readouterr().out == "figure: reward.svg\nfigure: grad_norm.svg\n"
    assert (tmp_path / "reward.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--figure", "entropi"], "unknown figure 'entropi'. Did you mean 'entropy'? There are: "
         "answers_1, answers_2, clipped_tokens, coefficient_zeta, entropy, "),
        (["--figure", "grad/norms"], "Or a metric that is logged, as grad/norm."),
        (["--figure", "results"], "'results' is a table."),
        (["--table", "result"], "unknown table 'result'. Did you mean 'results'? There are: "
         "answers, evaluation, results."),
        (["--figure", "entropy", "--output", "a.pdf"], "a figure is written as .svg, .png or .csv, "
         "and 'a.pdf' ends otherwise; write 'a.svg'"),
        (["--table", "results", "--output", "a.html"], "a table is written as .md, .tex or .csv"),
        (["--output", "a.svg"], "the page is HTML, and 'a.svg' is named otherwise; write 'a.html'; "
         "for a part of it add --figure NAME (--list prints the names)"),
        (["--figure", "entropy", "--list"], "--figure, --table and --list exclude each other"),
        (["--list", "--output", "a.csv"], "--list prints names and writes no 'a.csv'"),
        (["--figures", "entropy"], "unknown option '--figures'. Did you mean '--figure'?"),
        (["--figure", "entropy", "--output", "a/run/x.svg/y.svg"], "cannot write"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported_is_refused_in_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run = answered(make_run(tmp_path / "run"))
    (tmp_path / "a").write_text("a file, where a directory is wanted")
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(run), *words]) != 0
    out, err = capsys.readouterr()
    assert message in err
    assert err.count("\n") == 1
    assert out == ""
    assert {path.name for path in tmp_path.iterdir()} == {"run", "a"}


def test_of_another_trainers_run_the_table_alone_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = TESTS / "importers" / "trl"
    assert main(["report", str(log), "--table", "results"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("source: TRL, iterations 1 to 3\nentropy: the mean")
    assert len(cells_of(out)) == 2
    assert out.startswith("| run ")


# --- notebooks


def test_runs_are_read_from_studies_paths_and_formats(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "study" / "a"), make_run(tmp_path / "study" / "b")
    (tmp_path / "c.csv").write_text("n,H\n1,0.5\n2,0.25\n")
    table = es.load_run(tmp_path / "c.csv", columns={"step": "n", "entropy": "H"})
    assert table.series("entropy/logged") == ([1, 2], [0.5, 0.25])
    assert [run.path for run in es.load_runs(str(tmp_path / "study"))] == [a, b]
    assert [run.path for run in es.load_runs([a, tmp_path / "study"])] == [a, a, b]
    refused(lambda: es.load_runs([]), "paths")
    refused(lambda: es.load_runs([a, tmp_path / "none"]), "is neither a file nor a directory")


def test_frames_of_a_run(tmp_path: Path) -> None:
    run = es.load_run(make_run(tmp_path / "a"))
    frame = run.frame()
    assert frame.index.name == "iteration"
    assert list(frame.index) == [1, 2, 3]
    assert list(frame["entropy/exact"]) == [0.8, 0.6, 0.5]
    assert list(frame["control/target"].isna()) == [False, True, False]
    held_out = run.frame("evaluation")
    assert held_out.index.names == ["split", "iteration"]
    assert list(held_out.loc["test"].index) == [0, 2, 3]
    assert held_out.loc[("ood", 3), "avg@k"] == 0.0625
    bare = es.load_run(make_run(tmp_path / "b", evaluation=[])).frame("evaluation")
    assert (len(bare), bare.index.names) == (0, ["split", "iteration"])
    refused(lambda: run.frame("answers"), "'metrics'", "'evaluation'", "got 'answers'")


def test_a_comparison_is_a_frame_of_the_rows(tmp_path: Path) -> None:
    start = [eval_line(0, "test", 0.5, 1, 2)]
    runs = [make_run(tmp_path / "s" / "a"),
            make_run(tmp_path / "s" / "b", methods='"par"', evaluation=start)]  # fmt: skip
    frame = es.compare([es.load_run(runs[0]), runs[1]])
    assert list(frame.index) == ["grpo", "par"]
    assert list(frame["entropy_after"]) == [0.5, 0.5]
    assert list(frame["avg_before"]) == [0.25, 0.5]
    assert list(frame["avg_after"].isna()) == [False, True]
    assert frame.loc["grpo", "run"] == str(runs[0])
    assert "<table" in frame._repr_html_()
    assert es.compare(tmp_path / "s").equals(frame)
    assert list(es.compare(es.load_run(runs[0])).index) == ["grpo"]
    refused(lambda: es.compare([]), "runs")


def test_without_pandas_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = es.load_run(make_run(tmp_path / "a"))
    monkeypatch.setitem(sys.modules, "pandas", None)
    for call in (run.frame, lambda: es.compare([run])):
        with pytest.raises(ValueError, match=r"needs pandas: pip install 'entrostat\[notebook\]'"):
            call()
    assert es.plot(run).axes  # a figure needs none


@pytest.mark.rendered
def test_a_plot_is_a_figure_that_shows_itself(tmp_path: Path) -> None:
    run = es.load_run(make_run(tmp_path / "a"))
    figure = es.plot(run, size=(3, 2))
    axes = figure.axes[0]
    assert list(axes.lines[0].get_ydata()) == [0.8, 0.6, 0.5]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("iteration", "nats per token")
    with Image.open(io.BytesIO(figure._repr_png_())) as image:
        assert image.size == (300, 200)
    both: list[Any] = [run, make_run(tmp_path / "b", methods='"par"')]
    texts = [text.get_text() for text in es.plot(both, "reward").legends[0].get_texts()]
    assert texts == ["grpo", "par"]
    assert len(es.plot(tmp_path, "grad/norm").axes[0].lines) == 2  # a study's directory
    refused(lambda: es.plot(run, "nothing"), "'nothing'")


def test_importing_and_reading_load_nothing_heavy(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", lines=[{"iteration": 1, "entropy/exact": 0.5}])
    code = (
        "import sys, entrostat as es; es.load_run(sys.argv[1]); es.plot, es.compare; "
        "heavy = {'torch', 'matplotlib', 'pandas', 'numpy'} & set(sys.modules); "
        "assert not heavy, heavy; es.plot(sys.argv[1]); "
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(run)], check=True)
