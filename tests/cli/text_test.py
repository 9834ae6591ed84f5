"""What is printed: controls shown, not obeyed; streams that nobody reads, or that are closed."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from entrostat._text import console, printable, say
from entrostat.cli import main
from paths import ROOT

pytestmark = pytest.mark.usefixtures("unrendered")

SOURCE = ROOT / "src/entrostat"
EVIL = "\x1b[2J\x1b]0;owned\x07\r\x08\x7f\x9b31m\u202egpj.exe\u2066\u061c\u2028\ufeff\ud800"


def test_no_control_is_left() -> None:
    """By Unicode's own tables: categories Cc and Cs, bidirectional controls, line separators."""
    every = "".join(map(chr, range(0x11000)))
    left = [c for c in printable(every) if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    assert set(left) == {"\t", "\n"}
    controls = [c for c in every if unicodedata.bidirectional(c) in
                ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")]  # fmt: skip
    assert not set(controls) & set(printable(every))
    plain = "naïve 模型 😀 → ± ½\n\tend"
    assert printable(plain) == plain
    assert printable("\x1b[1m\x7f\x9b\u202e\ud800") == "␛[1m␡[U+009B][U+202E][U+D800]"


def test_text_is_printed_in_one_place() -> None:
    """`say` and `console` are the only ones to print; nobody makes a console of their own."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                name = node.func.id
                assert path.name == "_text.py" or name not in ("print", "Console"), path


def test_a_console_keeps_its_own_colours_and_takes_those_of_a_text() -> None:
    from rich.live import Live
    from rich.text import Text

    stream = io.StringIO()
    screen = console(stream)
    screen._force_terminal = True  # as on a terminal
    screen.print(Text("evil \x1b[2J\u202e", style="bold"))
    with Live(Text("also \x9b2J"), console=screen):
        pass
    shown = stream.getvalue()
    assert "evil ␛[2J[U+202E]" in shown
    assert "also [U+009B]2J" in shown
    assert "\x1b[2J" not in shown
    assert "\x1b[?25l" in shown  # the display's own: the cursor is hidden


@pytest.mark.parametrize(
    "words",
    [
        ["methods", f"no{EVIL}"],
        ["train", "--method", f"no{EVIL}"],
        ["train", "--task", f"no{EVIL}"],
        ["train", "--model", f"no{EVIL}"],
        ["train", f"--{EVIL}", "1"],
        ["train", "--config", f"no{EVIL}.toml"],
        ["report", f"no{EVIL}"],
        ["study", f"no{EVIL}"],
        ["law", f"no{EVIL}"],
        [f"no{EVIL}"],
    ],
)
def test_errors_are_one_line_without_controls(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.endswith("\n")
    assert not any(unicodedata.category(c) in ("Cc", "Cs") for c in error[:-1])
    assert "\u202e" not in error


def test_a_file_with_a_hostile_name_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "log\x1b[2J\u202e.csv"
    Path(name).write_text("step,entropy,reward\n1,.5,.25\n2,oops,.5\n")
    assert main(["report", name]) == 0
    out = capsys.readouterr().out
    assert "log␛[2J[U+202E].csv.report.html" in out
    page = Path(f"{name}.report.html").read_text(encoding="utf-8")
    for text in (out, page):
        assert not set("\x1b\u202e") & set(text)
    assert "log␛[2J[U+202E].csv" in page


def test_work_goes_on_without_a_reader() -> None:
    read, write = os.pipe()
    os.close(read)
    stream = os.fdopen(write, "w")
    say("nobody reads this", stream)
    say("nor this", stream)
    stream.close()


TRAIN = [
    "train", "--iterations", "2", "--sampling.prompts", "2", "--sampling.rollouts", "2",
    "--eval.prompts", "0", "--save.rollouts-every", "0",
]  # fmt: skip


def check_whole(run: Path) -> None:
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
    assert (run / "report.html").is_file()
    assert (run / ".lock").read_text() == ""


@pytest.mark.long
def test_a_training_without_streams_is_whole(tmp_path: Path) -> None:
    """A closed stdout is no error, and no file takes its number and gets its text."""
    words = " ".join([*TRAIN, "--output", f"{tmp_path}/run"])
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m entrostat.cli {words} <&- >&- 2>&-"],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    check_whole(tmp_path / "run")


def test_a_training_outlives_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How a process ends whose reader is gone: cli_test."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main([*TRAIN, "--output", str(tmp_path / "run")]) == 0
        check_whole(tmp_path / "run")


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes")
def test_a_path_need_not_be_utf8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"caf\xe9")
    run = Path(name)
    run.mkdir()
    lines = [f'{{"iteration": {i}, "entropy/exact": {1 / i}, "reward/mean": {i / 9}}}\n'
             for i in range(1, 9)]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(lines))
    assert main(["report", name]) == 0
    assert (run / "report.html").is_file()
    assert main(["report", name, name, "--output", "both.html"]) == 0
    assert 'href="caf%E9/report.html"' in Path("both.html").read_text(encoding="utf-8")
    assert main(["law", name, "--output", f"{name}.json"]) == 0
    capsys.readouterr()
    assert main(["train", "--output", name + "2"]) == 2
    assert "is no UTF-8, which config.toml is written in" in capsys.readouterr().err
