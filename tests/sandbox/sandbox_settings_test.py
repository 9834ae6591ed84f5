"""How a run says what may keep programs apart, and who may say "unsafe"."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import entrostat as es
from entrostat import sandbox
from entrostat.cli import main
from entrostat.config import Scoring, from_dict
from entrostat.data.scoring import Scorer
from entrostat.sandbox import running
from entrostat.workers import Call

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
NOWHERE = ["--device", "abacus"]  # an error that comes after all others


@pytest.fixture(autouse=True)
def forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENTROSTAT_SANDBOX", "auto")


@pytest.mark.parametrize("words", [["--sandbox", "unsafe"], ["--scoring.sandbox", "unsafe"]])
def test_the_user_may_say_unsafe(words: list[str], capsys: pytest.CaptureFixture) -> None:
    assert main(["train", *words, *NOWHERE]) == 2
    assert "device must be" in capsys.readouterr().err


def test_other_words(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--sandbox", "open", *NOWHERE])
    assert "'open'" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["--config", "--resume"])
def test_a_file_may_not_say_it_for_the_user(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_text('[scoring]\nsandbox = "unsafe"\n')
    where = "config.toml" if verb == "--config" else "."
    for more in ([], ["--trust-code"]):  # which is about code that the file names
        assert main(["train", verb, where, *more]) == 2
        error = capsys.readouterr().err
        assert "runs what a model writes with your own rights" in error
        assert "--sandbox unsafe" in error
    if verb == "--config":
        assert main(["train", verb, where, "--sandbox", "unsafe", *NOWHERE]) == 2
        assert "device must be" in capsys.readouterr().err


def test_a_run_that_says_unsafe_tells_the_processes_that_score() -> None:
    task = es.make_task("functions")
    config = from_dict({"scoring": {"sandbox": "unsafe"}})
    with Scorer(task, config.scoring, print) as scorer:
        assert sandbox.isolation("auto") == "unsafe"
        example = task.example(0, "train")
        assert scorer(["    return None"], [example], 1).tolist() == [0]


def test_a_program_that_hangs_costs_its_rollout_and_no_more() -> None:
    if all(map(running._trial, ("namespaces", "seccomp"))):
        pytest.skip("no sandbox works here")
    example = es.Example("", '{"kind": "asserts", "tests": ["assert f(1) == 2"]}')
    right, endless = "def f(x): return 2", "def f(x):\n    while True: pass"

    def programs(seconds: float) -> Any:
        def remote(completion: str, example: es.Example) -> Call:
            options = {"seconds": seconds}
            return Call(
                "entrostat.grading:grade_here", ("code", completion, example.answer, options)
            )

        setup = Call("entrostat.grading:prepare", ("code",))
        return SimpleNamespace(name="programs", remote=remote, remote_setup=lambda: setup)

    said: list[str] = []
    # the grader gives up first, or the pool does
    for seconds, timeout, failures in ((2, 60, []), (60, 6, [1])):
        settings = Scoring(timeout=timeout, workers=2)
        with Scorer(programs(seconds), settings, said.append) as scorer:
            rewards = scorer([right, endless, right, "import"], [example] * 4, 1)
            assert rewards.tolist() == [1, 0, 1, 0]
            assert scorer.failures == failures
    assert len(said) == 1
    assert "timed out" in said[0]


def test_a_study_says_it_with_trust_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text('[base]\nscoring = { sandbox = "unsafe" }\n[[runs]]\nname = "a"\n')
    started: list[str] = []

    def start(self: Any, training: Any, words: list[str]) -> None:
        started.extend(words)
        raise KeyboardInterrupt

    monkeypatch.setattr("entrostat.study.workers.Local.start", start)
    assert main(["study", "s.toml"]) == 2
    assert "add --trust-code" in capsys.readouterr().err
    assert main(["study", "s.toml", "--trust-code"]) == 130
    assert main(["train", *started, *NOWHERE]) == 2  # its training is not refused for it
    assert "device must be" in capsys.readouterr().err
