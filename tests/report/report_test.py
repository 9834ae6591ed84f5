"""Reports of hand-written run directories; nothing is trained here."""

import base64
import json
import os
import struct
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from builders import refused
from entrostat.logs.rollouts import save_rollouts
from entrostat.report import comparison_rows, write_comparison, write_run_report
from entrostat.report.curves import scale_of
from entrostat.report.figures import Curve, Panel, draw
from entrostat.report.picture import log_ticks, tick, tick_labels
from entrostat.report.tokens import choose_iterations
from entrostat.report.tokens.encoding import choose, pack, script_json
from pages import (
    EVIL,
    Page,
    addresses,
    check_self_contained,
    eval_line,
    make_rollouts,
    make_run,
)

pytestmark = pytest.mark.usefixtures("unrendered")


def test_rows_hold_the_numbers_of_the_files(tmp_path):
    row, bare = comparison_rows(
        [
            make_run(tmp_path / "a", methods='["ppo", {name = "repo_r", zeta = 0.1}]'),
            make_run(tmp_path / "b", lines=[{"iteration": 1, "reward/mean": 0.5}], evaluation=[]),
        ]
    )
    assert (row.label, row.run, row.iterations, row.planned) == ("a", tmp_path / "a", 3, 3)
    assert (row.entropy_before, row.entropy_after) == (0.8, 0.5)
    assert row.entropy_kept == pytest.approx(62.5)
    assert row.target == 0.7
    assert (row.split, row.k, row.evaluated) == ("test", 8, 3)
    assert (row.avg_before, row.avg_after) == (0.25, 0.5)
    assert (row.pass_before, row.pass_after) == (0.5, 0.75)
    assert (row.distinct_before, row.distinct_after) == (1.5, 1.25)
    assert (row.reward_first, row.reward_last) == (0.25, 0.75)
    assert row.seconds == 4.0
    assert (bare.reward_first, bare.reward_last) == (0.5, 0.5)
    for name in ("entropy_before", "entropy_after", "entropy_kept", "target", "split", "k",
                 "avg_before", "avg_after", "evaluated", "seconds"):  # fmt: skip
        assert getattr(bare, name) is None


def test_an_evaluation_before_training_alone_has_no_after(tmp_path):
    run = make_run(tmp_path / "a", evaluation=[eval_line(0, "test", 0.25, 0.5, 1.5)])
    (row,) = comparison_rows([run])
    assert (row.avg_before, row.avg_after, row.evaluated) == (0.25, None, None)


@pytest.mark.rendered
def test_what_is_not_a_finite_number_is_no_value(tmp_path):
    lines = [
        {"iteration": 1, "entropy/exact": float("nan"), "reward/mean": True},
        {"iteration": 2, "entropy/exact": 0.5, "reward/mean": "0.3"},
        {"iteration": 3, "entropy/exact": float("inf"), "reward/mean": 10**400},
    ]
    run = make_run(tmp_path / "a", lines=lines)
    (row,) = comparison_rows([run])
    assert (row.entropy_before, row.entropy_after) == (0.5, 0.5)
    assert (row.reward_first, row.reward_last) == (None, None)
    Page(write_run_report(run))


def test_labels_are_methods_then_directories(tmp_path):
    paths = [make_run(tmp_path / name) for name in ("s0", "s1", "x/same", "y/same")]
    paths.append(make_run(tmp_path / "z", methods='"reinforce"'))
    labels = [row.label for row in comparison_rows(paths)]
    assert labels == ["s0", "s1", "x/same", "y/same", "reinforce"]
    twice = [row.label for row in comparison_rows([paths[0], paths[0]])]
    assert len(set(twice)) == 2


@pytest.mark.rendered
def test_run_report_says_what_was_measured(tmp_path):
    run = make_run(tmp_path / "a")
    assert write_run_report(run) == run / "report.html"
    page = Page(run / "report.html")
    check_self_contained(page)
    words = page.words()
    for part in (
        "grpo on target_sum", "model tiny", "seed 7", "iterations 3 of 3",
        "0.800 → 0.500", "62.5 % kept", "the end is 0.200 below", "avg@8", "0.250 → 0.500",
        "0.500 → 0.750", "1.50 → 1.25", "Coefficient zeta", "Gradient norm", "Clipped tokens",
        'name = "target_sum"', '"processors": 2', "No rollouts were dumped.",
    ):  # fmt: skip
        assert part in words
    assert "Unfinished" not in words
    assert len(page.all("h1")) == 1
    # entropy, reward, zeta, clips, gradient norm; entropy and scores of the evaluations; the law;
    # nothing is drawn that was not logged
    assert len(page.all("img")) == 8


@pytest.mark.rendered
def test_the_same_run_gives_the_same_bytes(tmp_path):
    run = make_run(tmp_path / "a")
    one = write_run_report(run, tmp_path / "one.html").read_bytes()
    assert one == write_run_report(run, tmp_path / "two.html").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "one.html", "two.html"]


def test_figures_have_alt_text_with_their_numbers(tmp_path):
    run = make_run(tmp_path / "a")
    for path in (write_run_report(run), write_comparison([run], tmp_path / "c.html")):
        images = Page(path).all("img")
        assert images
        assert all(image["alt"].strip() for image in images)
        assert "from 0.8 at iteration 1 to 0.5 at 3" in images[0]["alt"]


def test_tables_have_headers(tmp_path):
    run = make_run(tmp_path / "a")
    save_rollouts(make_rollouts(["p"], ["ab"], [1.0]), run / "rollouts")
    compared = write_comparison([run], tmp_path / "c.html")  # has one of verdicts as well
    for path, count in ((write_run_report(run), 3), (compared, 4)):  # one is the script's
        page = Page(path)
        assert len(page.all("table")) == len(page.all("thead")) == count
        assert all(header.get("scope") in ("col", "row") for header in page.all("th"))


@pytest.mark.rendered
def test_hostile_text_is_text(tmp_path):
    evil = json.dumps(EVIL + "\u0000$\\frac{")
    lines = [{"iteration": 1, "entropy/exact": 0.5, f"control/{EVIL}": 0.25, "reward/mean": 0.1}]
    run = make_run(
        tmp_path / f"{EVIL[1:8]}_$x", methods=f"[{evil}]", lines=lines,
        evaluation=[eval_line(0, EVIL, 0.1, 0.2, 0.3)],
    )  # fmt: skip
    (run / "environment.json").write_text(json.dumps({"python": EVIL}))
    rollouts = make_rollouts(
        [f"{EVIL} prompt", '" onmouseover="x', "half \ud800 pair"],
        [f"{EVIL} completion", "ab", "</div></td>"], [1.0, 0.0, 0.0],
        pieces={0: "<eos>", 1: "<img src=x onerror=alert(2)>", 2: "\n"},
    )  # fmt: skip
    save_rollouts(rollouts, run / "rollouts")
    page = Page(write_run_report(run))
    check_self_contained(page)
    assert len(page.scripts) == 3  # curves, rollouts, the page's script
    (shown,) = page.rollouts()["iterations"]
    assert shown["prompts"] == [f"{EVIL} prompt", '" onmouseover="x', "half \ud800 pair"]
    assert shown["completion"] == [f"{EVIL} completion", "ab", "</div></td>"]
    assert shown["pieces"] == ["<eos>", "<img src=x onerror=alert(2)>", "\n"]
    assert "<img src=x" not in page.source
    for part in (
        f"{EVIL} prompt", f"{EVIL} completion", "<img src=x onerror=alert(2)>",
        '" onmouseover="x', "</div></td>", f'"python": "{EVIL}"', f"Coefficient {EVIL}",
        f"split {EVIL}", f"{EVIL}␀$\\frac{{ on target_sum",
    ):  # fmt: skip
        assert part in page.words()
    assert "\0" not in page.source

    other = make_run(tmp_path / "other")
    output = tmp_path / "c.html"
    page = Page(write_comparison([run, other], output, title=f"{EVIL} title"))
    check_self_contained(page)
    assert len(page.scripts) == 2
    assert f"{EVIL} title" in page.words()
    assert f"{EVIL}␀$\\frac{{" in page.words()


def test_a_directory_cannot_be_another_kind_of_address(tmp_path):
    run = make_run(tmp_path / "javascript:alert(1)")
    write_run_report(run)
    page = Page(write_comparison([run], tmp_path / "c.html"))
    assert addresses(page) == ["javascript%3Aalert%281%29/report.html"]


def test_comparison_overlays_the_runs(tmp_path):
    one, two = make_run(tmp_path / "one"), make_run(tmp_path / "two", methods='"repo_r"')
    lines = [{"iteration": 1, "entropy/exact": 0.9, "control/alpha": 0.3}]
    three = make_run(tmp_path / "three", methods='["par"]', lines=lines, evaluation=[], final=False)
    write_run_report(two)
    page = Page(write_comparison([one, two, three], tmp_path / "sub" / "c.html", "Three runs"))
    check_self_contained(page)
    words = page.words()
    for part in ("Three runs", "Comparison of 3 runs", "62.5 %", "avg@8",
                 "Unfinished: 1 of 3 iterations", "No evaluation is logged."):  # fmt: skip
        assert part in words
    # a link where there is a report, else the name alone
    assert addresses(page) == ["../two/report.html"]
    alts = [image["alt"] for image in page.all("img")]
    assert len(alts) == 4  # entropy, reward, zeta, alpha
    assert all(name in alts[0] for name in ("grpo", "repo_r", "par", "target"))
    assert "par" not in alts[2]
    assert "par goes from 0.3" in alts[3]


@pytest.mark.parametrize(
    ("tail", "note"),
    [
        ('{"iteration": 4, "entr', "The last line of metrics.jsonl is cut short"),
        ('{"iteration": 4}', "The last line of metrics.jsonl is cut short"),
        ('{"itera\n{"iteration": 5}\n', "Line 4 of metrics.jsonl is not a whole JSON object"),
        ("[4]\n", "The last line of metrics.jsonl is cut short"),
    ],
)
def test_a_cut_line_is_left_out_and_said(tmp_path, tail, note):
    run = make_run(tmp_path / "a")
    with open(run / "metrics.jsonl", "a") as file:
        file.write(tail)
    page = Page(write_run_report(run))
    assert note in page.words()
    assert "iterations 3 of 3" in page.words()
    assert comparison_rows([run])[0].iterations == 3
    assert note in Page(write_comparison([run], tmp_path / "c.html")).words()


def test_a_whole_run_has_no_notes(tmp_path):
    run = make_run(tmp_path / "a")
    save_rollouts(make_rollouts(["p"], ["ab"], [1.0]), run / "rollouts")
    page = Page(write_run_report(run))
    assert [ul for ul in page.all("ul") if ul["class"] == "notes"] == []


def test_an_unfinished_run_is_reported_as_such(tmp_path):
    lines = [{"iteration": 1, "entropy/exact": 0.9, "reward/mean": 0.5}]
    run = make_run(tmp_path / "a", lines=lines, evaluation=[], final=False)
    words = Page(write_run_report(run)).words()
    assert "Unfinished: 1 of 3 iterations are logged." in words
    assert "No evaluation is logged." in words
    assert "pass@" not in words


def test_metrics_alone_are_enough(tmp_path):
    run = make_run(tmp_path / "lonely", evaluation=[], final=False)
    (run / "config.toml").unlink()
    (run / "environment.json").unlink()
    page = Page(write_run_report(run))
    assert "lonely on unknown task" in page.words()
    assert "There is no config.toml." in page.words()
    (run / "config.toml").write_text("method = [")
    assert "config.toml is not TOML" in Page(write_run_report(run)).words()
    assert "lonely" in Page(write_comparison([run], tmp_path / "c.html")).words()


def test_a_damaged_rollout_file_is_said(tmp_path):
    run = make_run(tmp_path / "a")
    (run / "rollouts").mkdir()
    (run / "rollouts" / "000003.safetensors").write_bytes(b"not that")
    words = Page(write_run_report(run)).words()
    assert "The rollouts of iteration 3 cannot be read: rollouts/000003.safetensors is no" in words
    assert str(tmp_path) not in words
    short = make_rollouts(["p", "q"], ["ab", "ab"], [1.0, 0.0])
    short.completions = ["ab"]
    save_rollouts(short, run / "rollouts")
    words = Page(write_run_report(run)).words()
    assert "rollouts/000003.safetensors is not a rollout file: its parts do not fit" in words
    save_rollouts(make_rollouts(["p"], ["ab"], [1.0], iteration=1), run / "rollouts")
    page = Page(write_run_report(run))  # the others are shown
    assert [part["iteration"] for part in page.rollouts()["iterations"]] == [1]
    assert "The rollouts of iteration 3 cannot be read" in page.words()
    assert "A sample of iteration 1" in page.words()


def test_tokens_are_shaded_by_their_entropy(tmp_path):
    run = make_run(tmp_path / "a")
    save_rollouts(make_rollouts(["old"], ["ab"], [1.0], iteration=2), run / "rollouts")
    save_rollouts(make_rollouts(["p"], ["ab"], [1.0], iteration=3), run / "rollouts")
    page = Page(write_run_report(run))
    tokens = [span for span in page.all("span") if "title" in span]
    # entropies 0.5, 2, 0 of at most 2 nats; full shade is alpha 0.6
    assert [span["style"] for span in tokens] == [
        f"background:rgba(230,159,0,{alpha})" for alpha in ("0.15", "0.60", "0.00")
    ]
    assert tokens[1]["title"] == "log-prob -1.500, entropy 2.000, advantage -1.000"
    assert "A sample of iteration 3" in page.words()
    assert "ab<eos>" in page.words()
    assert "as plain text" not in page.words()  # the tokens' texts are the completion


def test_long_completions_are_cut_and_say_so(tmp_path):
    run = make_run(tmp_path / "a")
    n = 5000
    rollouts = make_rollouts(["p" * 5000], ["a" * n], [0.0])
    rollouts.start = torch.tensor([0, n])
    rollouts.tokens = torch.ones(n, dtype=torch.int32)
    rollouts.finished[:] = False
    for name in ("logp", "sampler_logp", "entropy", "advantage"):
        setattr(rollouts, name, torch.zeros(n))
    save_rollouts(rollouts, run / "rollouts")
    page = Page(write_run_report(run))
    assert "[... 4400 more tokens]" in page.text
    assert page.text.count("[... 1000 more characters]") == 2  # of the prompt, of the plain text
    assert "cut off at the length limit" in page.text


def test_samples_are_right_and_wrong_ones_of_different_groups():
    # group 0 has right ones only, group 1 wrong ones only, groups 2 to 4 both
    group = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    rewards = [1.0, 1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 0.0, 2.0, 0.0]
    texts = ["ab"] * 10
    chosen = choose(make_rollouts(texts, texts, rewards, group))
    assert chosen == [5, 6, 8, 0, 4, 7, 9, 2]
    alone = choose(make_rollouts(texts[:6], texts[:6], [0.0] * 6))
    assert alone == [0, 1, 2, 3]


def floats(text):
    """Numbers of three bytes, the upper ones of a float32, read byte by byte."""
    data = base64.b64decode(text)
    return [struct.unpack("<f", b"\0" + data[i : i + 3])[0] for i in range(0, len(data), 3)]


def whole_numbers(text):
    data = base64.b64decode(text)
    return [int.from_bytes(data[i : i + 3], "little") for i in range(0, len(data), 3)]


def test_numbers_take_four_characters_each():
    values = [0.0, 1.0, -2.5, 1e-30, -3.4e38, 0.1, 1 / 3, float("inf"), float("-inf")]
    text = pack(np.array([*values, float("nan")], dtype=np.float32))
    assert len(text) == 40
    back = floats(text)
    assert back[:-1] == pytest.approx(values, rel=2**-16)
    assert np.isnan(back[-1])
    assert np.isnan(floats(pack(np.array([0xFFFFFFFF], dtype=np.uint32).view(np.float32))))
    assert whole_numbers(pack(np.array([0, 1, 258, 2**24 - 1]))) == [0, 1, 258, 2**24 - 1]


def test_json_in_a_script_is_safe_and_says_the_same():
    text = "</script><!-- & \u2028\u2029\u202e\u2066\u200f\ud800 \0\x7f\x85 \udc00\ud800 模型 😀"
    written = script_json([text])
    assert json.loads(written) == [text]
    assert "模型 😀" in written
    assert not set(written) & set("<>&\u2028\u2029\u202e\u2066\u200f\ud800\udc00\0\x7f\x85")
    with pytest.raises(ValueError):
        script_json(float("nan"))


def test_iterations_are_the_ends_and_evenly_between():
    assert choose_iterations([4, 2, 9], [], 3) == [2, 4, 9]
    assert choose_iterations(range(1, 102), [], 5) == [1, 26, 51, 76, 101]
    # within 12.5 of 26, 51 and 76: 30, 60 and nothing
    assert choose_iterations(range(1, 102), [30, 60, 63, 90], 5) == [1, 30, 60, 76, 101]
    assert choose_iterations([1, 2, 3, 4, 1000], [], 4) == [1, 4, 1000]


def test_the_token_view_holds_the_numbers_of_the_dump(tmp_path):
    run = make_run(tmp_path / "a", lines=[{"iteration": 3}])  # nothing to draw
    rollouts = make_rollouts(["p", "p"], ["ab", "a b"], [1.0, float("nan")])
    rollouts.change = torch.tensor([0.5, float("nan"), -0.25, 0.0, 0.0, 0.0])
    rollouts.influence = torch.tensor([1e-5, -2e-5, 0.0, 3e-6, 0.0, -1e-6])
    rollouts.sampler_logp[:] = float("nan")
    rollouts.entropy[3:] = float("nan")
    rollouts.finished[1] = False
    save_rollouts(rollouts, run / "rollouts")
    data = Page(write_run_report(run)).rollouts()
    (shown,) = data["iterations"]
    assert (shown["iteration"], shown["count"], shown["place"]) == (3, 2, [0, 1])
    assert (shown["prompts"], shown["prompt"]) == (["p"], [0, 0])
    assert shown["completion"] == [None, "a b"]  # the first is what its tokens spell
    assert (shown["reward"], shown["finished"], shown["length"]) == ([1.0, None], [1, 0], [3, 3])
    assert shown["pieces"] == ["<eos>", "a", "b"]
    assert whole_numbers(shown["ids"]) == [0, 1, 2]
    assert whole_numbers(shown["tokens"]) == [1, 2, 0, 1, 2, 0]
    assert sorted(shown["values"]) == ["advantage", "change", "entropy", "influence", "logp"]
    assert floats(shown["values"]["entropy"])[:3] == [0.5, 2.0, 0.0]
    assert np.isnan(floats(shown["values"]["entropy"])[3:]).all()
    assert floats(shown["values"]["influence"]) == pytest.approx(rollouts.influence.tolist(), 1e-5)
    assert shown["entropy"] == [pytest.approx(2.5 / 3, rel=1e-5), None]
    assert shown["influence"] == pytest.approx([3e-5, 4e-6], rel=1e-5)
    # fewer than 50 values: the 98th percentile is the largest
    assert data["scales"] == pytest.approx(
        {"entropy": 2.0, "change": 0.5, "influence": 2e-5, "advantage": 1.0}, rel=1e-5
    )


def test_outliers_do_not_set_the_scale(tmp_path):
    run = make_run(tmp_path / "a", lines=[{"iteration": 3}])  # nothing to draw
    B = 67
    rollouts = make_rollouts(["p"] * B, ["ab"] * B, [0.0] * B)
    # non-zero magnitudes 1 to 201: 98 % of them are at most 197
    rollouts.advantage = torch.arange(1.0, 202.0) * (-1) ** torch.arange(201)
    save_rollouts(rollouts, run / "rollouts")
    assert Page(write_run_report(run)).rollouts()["scales"]["advantage"] == 197.0


def test_texts_alone_are_shown(tmp_path):
    run = make_run(tmp_path / "a", lines=[{"iteration": 3}])  # nothing to draw
    rollouts = make_rollouts(["p", "q"], ["one", "two"], [float("nan"), 1.0])
    rollouts.start = torch.zeros(3, dtype=torch.int64)
    for name in ("tokens", "logp", "sampler_logp", "entropy", "advantage"):
        setattr(rollouts, name, getattr(rollouts, name)[:0])
    save_rollouts(rollouts, run / "rollouts")
    page = Page(write_run_report(run))
    check_self_contained(page)
    data = page.rollouts()
    assert data["scales"] == {}
    (shown,) = data["iterations"]
    assert (shown["completion"], shown["values"], shown["tokens"]) == (["one", "two"], {}, "")
    assert "one" in page.words()
    assert "nan" not in page.words()


def test_a_page_has_a_budget_and_says_what_it_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("entrostat.report.tokens.BYTES", 60_000)
    monkeypatch.setattr("entrostat.report.tokens.encoding.LONGEST", 40)
    run = make_run(tmp_path / "a", lines=[{"iteration": 3}])  # nothing to draw
    B, T = 100, 50
    rollouts = make_rollouts(["p"] * B, [f"{i}" for i in range(B)], [0.0] * B, iteration=1)
    rollouts.start = torch.arange(0, B * T + 1, T)
    rollouts.tokens = torch.ones(B * T, dtype=torch.int32)
    for name in ("logp", "sampler_logp", "entropy", "advantage"):
        setattr(rollouts, name, torch.zeros(B * T))
    save_rollouts(rollouts, run / "rollouts")
    for i in range(2, 11):
        os.link(run / "rollouts/000001.safetensors", run / f"rollouts/{i:06d}.safetensors")
    page = Page(write_run_report(run))
    assert len(page.scripts[0]) <= 60_500
    data = page.rollouts()
    # 100 rollouts of 40 tokens, 20 bytes each, are 80 kB, of which 64 rollouts exceed a third
    assert [part["iteration"] for part in data["iterations"]] == [1, 5, 10]
    for part in data["iterations"]:
        step = part["place"][1]
        assert part["place"] == list(range(0, B, step))
        assert part["completion"] == [f"{i}" for i in range(0, B, step)]
        assert len(whole_numbers(part["tokens"])) == 40 * len(part["completion"])
        assert step >= 4  # 80 kB of 20 kB
    words = page.words()
    assert "Shown are iterations 1, 5, 10, 3 of the 10 dumped." in words
    kept = len(data["iterations"][0]["completion"])
    assert f"not every rollout is on it: {kept} of 100 in each iteration." in words
    assert f"{3 * kept} rollouts are shown up to token 40." in words


@pytest.mark.parametrize("content", [None, "", '{"iteration": 1', "[]\n", "\n"])
def test_no_whole_line_is_an_error_of_one_line(tmp_path, content):
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    words = "holds no metrics.jsonl" if content is None else "holds no whole line"
    for call in (
        lambda: write_run_report(tmp_path),
        lambda: comparison_rows([tmp_path]),
        lambda: write_comparison([tmp_path], tmp_path / "c.html"),
    ):
        with pytest.raises(ValueError, match=words) as error:
            call()
        assert "\n" not in str(error.value)
    assert not (tmp_path / "report.html").exists()


def test_no_runs_and_no_place_to_write_are_errors(tmp_path):
    refused(lambda: write_comparison([], tmp_path / "c.html"), "runs")
    run = make_run(tmp_path / "a")
    (tmp_path / "taken").mkdir()
    refused(lambda: write_run_report(run, tmp_path / "taken"), "cannot write", "taken")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "taken"]


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([0.01, 0.2], "linear"),  # exactly 20 times is not more than 20 times
        ([0.01, 0.21], "log"),
        ([0.0, 5.0], "linear"),
        ([-0.1, 0.1], "symlog"),
        ([-3.0, -0.1], "linear"),
        ([], "linear"),
    ],
)
def test_scale_of(values, scale):
    assert scale_of(values) == scale


def test_ticks():
    assert log_ticks(5e-4, 0.1) == pytest.approx([1e-3, 1e-2, 1e-1])
    assert log_ticks(0.01, 0.3) == pytest.approx([0.01, 0.02, 0.05, 0.1, 0.2])
    assert log_ticks(1e-13, 1e-5) == pytest.approx([1e-13, 1e-11, 1e-9, 1e-7, 1e-5])
    assert [tick(v) for v in (0.25, 15000.0, 1e-7, -0.001)] == ["0.25", "15000", "1e-7", "-0.001"]
    assert tick_labels([0.2 + 0.1, 0.4, 15000.0]) == ["0.3", "0.4", "15000"]
    assert tick_labels([1.0000002, 1.0000004, 1.0]) == ["1.0000002", "1.0000004", "1"]


@pytest.mark.rendered
@pytest.mark.parametrize(
    ("scale", "values"),
    [
        ("linear", [0.5]),
        ("linear", [0.0, 0.0]),
        ("linear", [-2.0, 0.0, 1e-9, 3.0]),
        ("log", [0.5]),
        ("log", [1e-6, 1e-3, 10.0]),
        ("symlog", [-2.0, 0.0, 1e-9, 3.0]),
        ("symlog", [-1.0, 1.0]),
    ],
)
def test_every_scale_draws_every_label(scale, values):
    labels = ["_under", "$\\frac{$", "模型", "bell\x07", "x" * 200]
    curves = tuple(Curve(label, list(range(1, 1 + len(values))), values) for label in labels)
    image = draw(Panel("T", "C", "$u_{$", curves, scale, low=0, high=1))
    svg = base64.b64decode(image.src.partition(",")[2]).decode("utf-8")
    ElementTree.fromstring(svg)
    # matplotlib puts each text it draws in a comment
    for text in ("_under", "$\\frac{$", "bell?", "x" * 47 + "…", "$u_{$"):
        assert f"<!-- {text} -->" in svg


@pytest.mark.rendered
def test_a_page_of_150_iterations_is_small(tmp_path):
    wave = [0.5 + 0.4 * ((i * 37) % 101) / 101 for i in range(1, 151)]
    keys = ("entropy/exact", "entropy/nll", "reward/mean", "reward/best_in_group", "control/zeta",
            "clip/low", "clip/high", "grad/norm", "rollout/zero_advantage_groups",
            "mismatch/logp_abs_mean", "mismatch/kl", "time/tokens_per_second")  # fmt: skip
    lines = [{"iteration": i, **dict.fromkeys(keys, w)} for i, w in enumerate(wave, 1)]
    run = make_run(tmp_path / "a", lines=lines)
    path = write_run_report(run)
    assert path.stat().st_size < 3e6
    assert "(faint) and its centred average over 11 iterations" in Page(path).words()


def test_importing_the_package_is_light():
    code = (
        "import sys, entrostat.report; "
        "print(*sorted({'torch', 'matplotlib', 'jinja2', 'transformers'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""


def test_a_study_s_name_is_shorter_than_its_chain(tmp_path):
    for name, methods in (("repo_r", '["grpo", "ppo", "repo_r"]'), ("x", '["grpo"]')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text(f"method = {methods}\n")
        (tmp_path / name / "metrics.jsonl").write_text('{"iteration": 1, "entropy/exact": 1.0}\n')
    rows = comparison_rows([tmp_path / "repo_r", tmp_path / "x"])
    assert [row.label for row in rows] == ["repo_r", "grpo"]


def test_the_end_of_a_run_is_the_mean_of_a_fifteenth(tmp_path):
    lines = [
        {"iteration": i, "entropy/exact": float(i), "reward/mean": i / 100} for i in range(1, 46)
    ]
    run = make_run(tmp_path / "a", lines=lines)
    (row,) = comparison_rows([run])
    assert row.entropy_before == 1
    assert row.entropy_after == 44  # of 43, 44, 45
    assert row.reward_last == pytest.approx(0.44)
    assert row.entropy_kept == pytest.approx(4400)
    # a page says what was computed on it
    assert "the mean of the last 3 iterations" in Page(write_run_report(run)).words()
    short = make_run(tmp_path / "b", lines=lines[:20])
    assert "and the last iteration;" in Page(write_run_report(short)).words()
    words = Page(write_comparison([run, short], tmp_path / "c.html")).words()
    assert "the mean of each run's last iterations, 1 to 3 of them" in words
    for word in ("fifteenth", "tenth", "10 of 150"):
        assert word not in words
