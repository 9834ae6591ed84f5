"""The command line, as processes and in place: help, errors in one line, exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

import entrostat as es
from builders import json_lines, refused
from entrostat.cli import _HELP, main, training
from entrostat.cli.flags import dataclass_flags, listed, options
from entrostat.config import TrainConfig
from entrostat.study.file import read_study
from processes import alive, run_code

pytestmark = pytest.mark.usefixtures("unrendered")

SMALL = [
    "--iterations", "2", "--sampling.prompts", "4", "--sampling.rollouts", "4",
    "--eval.prompts", "2", "--eval.samples", "2",
]  # fmt: skip


def byte_level_model(directory: Path, context: int = 512) -> Path:
    """A small causal LM from a configuration, with a tokenizer of all bytes; untrained."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<eos>": 0, **{piece: i + 1 for i, piece in enumerate(alphabet)}}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=2, max_position_embeddings=context, eos_token_id=0,
            bos_token_id=None,
        )
    )  # fmt: skip
    model.save_pretrained(directory)
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>").save_pretrained(directory)
    return directory


def test_help_is_quick_and_does_not_import_torch() -> None:
    code = (
        "import sys; from entrostat.cli import main; main(['--help']); "
        "main(['methods', '--help']); import entrostat; "
        "heavy = {'torch', 'transformers', 'matplotlib', 'numpy'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_errors_that_need_no_torch_do_not_load_it(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/metrics.jsonl").write_text("{}\n")
    (tmp_path / "bad.jsonl").write_text('{"prompt": 1}\n')
    (tmp_path / "bad.toml").write_text("seed = = 1\n")
    (tmp_path / "done/final").mkdir(parents=True)
    (tmp_path / "done/config.toml").write_text("iterations = 3\n")
    (tmp_path / "done/final/entrostat.json").write_text('{"iterations": 3}')
    wrong = [
        ["--output", "full"], ["--config", "bad.toml"], ["--task", "bad.jsonl"],
        ["--task", "gym:chain_sun"], ["--task", "target_sum", "--task.k_max", "9"],
        ["--model", "a/b/c"], ["--model", "full"], ["--resume", "done", "--iterations", "2"],
    ]  # fmt: skip
    code = (
        "import sys; from entrostat.cli import main\n"
        f"for words in {wrong!r}:\n"
        "    assert main(['train', *words]) == 2, words\n"
        "    assert 'torch' not in sys.modules, words\n"
        "assert main(['study', 'bad.toml']) == 2\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for words in (
        "output 'full' is not empty", "bad.toml", "line 1 needs a prompt", "mean 'chain_sum'",
        "k_min <= k_max <= 6", "not a name on the hub", "has no config.json", "has 3 done",
    ):  # fmt: skip
        assert words in done.stderr
    assert done.stderr.count("\n") == len(wrong) + 1


@pytest.mark.long
def test_the_compiler_waits_until_something_compiles(tmp_path: Path) -> None:
    """Importing it takes longer than torch; and what it must not look into it still does not."""
    code = (
        "import sys, torch, entrostat as es, entrostat.trainers.lab.loop\n"
        "hidden, weight, ids = torch.randn(3, 4), torch.randn(5, 4), torch.tensor([0, 1, 4])\n"
        "def entropy(kind, x): return es.token_stats(x, weight, ids, implementation=kind).entropy\n"
        "for kind in ('plain', 'tiled'): entropy(kind, hidden)\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "seen = []\n"
        "def backend(graph, inputs):\n"
        "    seen.extend(str(node.target) for node in graph.graph.nodes); return graph\n"
        "for kind in ('plain', 'tiled'):\n"
        "    compiled = torch.compile(lambda x: entropy(kind, x.sin()), backend=backend)\n"
        "    torch.testing.assert_close(compiled(hidden), entropy(kind, hidden.sin()))\n"
        "assert any('sin' in name for name in seen), seen\n"
        "assert not any(part in name for name in seen\n"
        "               for part in ('amax', 'exp', 'autograd_function', 'maximum')), seen\n"
    )
    run_code(code, tmp_path)


def test_public_names_alone_are_listed() -> None:
    import entrostat

    assert dir(entrostat) == sorted(entrostat.__all__)


@pytest.mark.parametrize("verb", re.findall(r"^  entrostat (\S+)  ", _HELP, re.MULTILINE))
def test_help_of_every_verb_fits_two_screens(verb: str, capsys: pytest.CaptureFixture) -> None:
    """Of 40 lines and 80 columns each; examples stand before the options."""
    for words in ([verb, "--help"], ["--help"]):
        assert main(words) == 0
        shown = capsys.readouterr().out.splitlines()
        assert 8 < len(shown) <= 80
        assert [line for line in shown if len(line) > 80] == []
        options = (i for i, line in enumerate(shown) if line.startswith("  --"))
        assert shown.index("Examples:") < next(options, len(shown))


@pytest.mark.parametrize("verb", ["train", "doctor", "eval", "subset", "pretrain"])
def test_every_setting_has_help(verb: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as left:
        main([verb, "--help-all"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert "--seed INT" in shown
    assert f"`entrostat {verb} --help` has examples" in shown


def test_all_help_of_train_names_the_options_that_are_no_settings(
    capsys: pytest.CaptureFixture,
) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help-all"])
    assert (
        "has examples, and --method, --method.KEY, --task, --task.KEY, --config, --resume, --log, "
        "--no-report, --verl-python, --ray-address, --print, --trust-code, --sandbox."
    ) in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("unrendered")
def test_train_alone_makes_a_first_run_and_says_what_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--sampling.prompts", "2", "--eval.prompts", "2", "--iterations", "2"]
    monkeypatch.setattr(training, "_FIRST_RUN", [*training._FIRST_RUN, *small])
    for _ in range(2):  # the second time there is nothing left to do
        assert main(["train"]) == 0
        assert "entrostat diagnose runs/first" in capsys.readouterr().out
    lines = (tmp_path / "runs/first/metrics.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert json.loads(lines[0])["control/target"] == pytest.approx(
        0.75 * json.loads(lines[0])["entropy/exact"]
    )


def test_the_options_of_a_verb_are_those_of_its_help() -> None:
    text = (
        "usage: entrostat verb\n\n  --a FILE, --b N  said\n  --c  a switch, as --d is not\n"
        "  --e X ...\n                   --f\n"
    )
    assert listed(text) == {"a": "FILE", "b": "N", "c": "", "e": "X ..."}
    given, words = options(["w", "--e=1", "--c", "--e", "2", "--a", "x"], text)
    assert (given, words) == ({"a": "x", "b": None, "c": True, "e": ["1", "2"]}, ["w"])
    refused(lambda: options(["--f"], text), "unknown option '--f'", "entrostat verb --help")
    refused(lambda: options(["--c"], text, "a file"), "verb needs a file")


def test_help_of_a_verb_by_either_spelling(capsys: pytest.CaptureFixture) -> None:
    assert main(["law", "--help"]) == 0
    asked = capsys.readouterr().out
    assert main(["help", "law"]) == 0
    assert capsys.readouterr().out == asked
    assert main(["help", "trian"]) == 2
    assert "Did you mean 'train'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["trian"], "unknown command 'trian'. Did you mean 'train'?"),
        (["train", "--method", "repo-r"], "unknown method 'repo-r'. Did you mean 'repo_r'?"),
        (["train", "--method", "repo_r", "--method.zeta_mx", "1"], "Did you mean 'zeta_max'?"),
        (["train", "--method.low", "x"], "ppo: low must be a number, got 'x'"),
        (["train", "--task", "target_some"], "Did you mean 'target_sum'?"),
        (["train", "--task", "gym:chain_sun"], "Did you mean 'chain_sum'?"),
        (["train", "--model", "tinny"], "unknown model 'tinny'. Did you mean 'tiny'?"),
        (["train", "--model", "./absent"], "no such directory, and not a name on the hub"),
        (["train", "--model", "path/to/absent"], "not a name on the hub (OWNER/NAME)"),
        (["train", "--task", "absent.jsonl"], "task 'absent.jsonl': cannot read it"),
        (["train", "--optim.lrr", "1"], "unknown option '--optim.lrr'. Did you mean '--optim.lr'?"),
        (["train", "--learning-rate", "1"], "Did you mean '--optim.lr'?"),
        (["train", "--lr", "1e-4"], "unknown option '--lr'. Did you mean '--optim.lr'?"),
        (["train", "--rank", "8"], "unknown option '--rank'. Did you mean '--lora.rank'?"),
        (["train", "--resum", "x"], "Did you mean '--resume'? `entrostat train --help-all`"),
        (["train", "--no-repot"], "Did you mean '--no-report'?"),
        (["train", "--output", __file__], "cli_test.py' is a file"),
        (["train", "--optim.weight_decay", "-1"], "optim.weight_decay must be at least 0"),
        (["train", "--config", "--seed", "1"], "--config needs a value, got the option --seed"),
        (["train", "--config"], "--config needs a value, got nothing"),
        (["train", "--optim.learning_rate", "1"], "Did you mean '--optim.lr'?"),
        (["train", "--num_generations", "4"], "Did you mean '--sampling.rollouts'?"),
        (["train", "--advantage", "rlo"], "Did you mean 'rloo'?"),
        (["train", "7"], "unexpected '7'; options look like --seed 1"),
        (["train", "thermostat"], "unexpected 'thermostat'; did you mean --method thermostat?"),
        (["train", "a.toml", "--seed", "1"], "did you mean --config a.toml?"),
        (["subset", "--by", "random"], "name the task first"),
        (["train", "--config", "absent.toml"], "cannot read it"),
        (["train", "--resume", "absent"], "no run there"),
        (["train", "--resume", "a", "--config", "b"], "exclude each other"),
        (["train", "--sampling.rollouts", "1"], "a group of one"),
        (["train", "--iterations", "0"], "iterations must be at least 1"),
        (["methods", "steeer"], "unknown method"),
        (["methods", "REPO_R"], "Did you mean 'repo_r'?"),
        (["methods", "zzzz"], "'zzzz'. `entrostat methods` lists them."),
        (["methods", "--all"], "unknown option '--all'. `entrostat methods --help`"),
        (["methods", "grpo", "ppo"], "methods takes one name, got grpo ppo"),
        (["report", "--outptu", "x"], "unknown option '--outptu'. Did you mean '--output'?"),
        (["study", "--job", "2"], "unknown option '--job'. Did you mean '--jobs'?"),
        (["study", "--jobs", "2"], "study takes one file or more"),
        (["report", "absent"], "absent"),
        (["study", "absent.toml"], "cannot read it"),
        (["study", "a", "--jobs", "x"], "--jobs must be"),
        (["diagnose", "a", "--json=false"], "--json takes no value, got 'false'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str], match: str, capsys: pytest.CaptureFixture, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert match in error
    assert error.startswith("entrostat: error: ")
    assert error.count("\n") == 1
    assert "Traceback" not in error
    assert not list(tmp_path.iterdir())  # nothing was written


def test_resume_refuses_to_change_the_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "config.toml").write_text("seed = 1\n")
    assert main(["train", "--resume", str(tmp_path), "--optim.lr", "1"]) == 2
    assert "cannot change --optim.lr" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "--resume", str(tmp_path), "--help-all"])
    assert "--seed INT" in capsys.readouterr().out


def test_methods_lists_and_explains(capsys: pytest.CaptureFixture) -> None:
    assert main(["methods"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("repo_r", "gspo", "clip_higher", "dapo"))
    assert main(["methods", "repo_r"]) == 0
    shown = capsys.readouterr().out
    assert "zeta_max = 0.1" in shown
    assert "A - zeta max(A, 0) L" in shown
    assert "is the paper's and may be too small" in " ".join(shown.split())
    assert "docs/paper_index.md" in listed
    assert listed.count("runs in lab]") == 3  # prime, aepo, influence_flow
    for name in ("reinforce", "opefo"):
        assert main(["methods", name]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "--optim.epochs 1 --optim.minibatches 1" in shown


def test_a_method_that_does_not_run_everywhere_says_where(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from entrostat.method import METHODS

    monkeypatch.setattr(METHODS["steer"], "hosts", ("lab",))
    assert main(["methods"]) == 0
    assert capsys.readouterr().out.count("runs in lab]") == 4  # and one more


def test_help_says_where_results_go(capsys: pytest.CaptureFixture) -> None:
    assert main(["study", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for words in ("runs/NAME", "one per processor", "docs/studies.md"):
        assert words in shown
    assert main(["report", "--help"]) == 0
    assert "report.html here" in capsys.readouterr().out


def test_train_on_a_model_from_a_config_logs_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """The issue's real input: a reasoning-gym task on any small causal LM in a directory."""
    model = byte_level_model(tmp_path / "model")
    words = [
        "train", "--task", "gym:chain_sum", "--task.max_terms", "2", "--task.max_new_tokens", "6",
        "--model", str(model), *SMALL, "--output", str(tmp_path / "run"),
    ]  # fmt: skip
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "[2/2] entropy 5." in out  # 257 tokens, untrained: ln 257 = 5.55 nats
    last, evaluated = out.index("[2/2]"), out.rindex("evaluating test")
    assert last < evaluated < out.index("test, iteration 0 → 2: avg@2 0.00 → 0.00")
    assert (tmp_path / "run/report.html").is_file()
    (tmp_path / "run/report.html").unlink()
    more = ["--resume", str(tmp_path / "run"), "--iterations", "3", "--no-report"]
    assert main(["train", *more]) == 0
    assert not (tmp_path / "run/report.html").exists()
    lines = json_lines(tmp_path / "run/metrics.jsonl")
    assert [line["iteration"] for line in lines] == [1, 2, 3]
    assert lines[0]["entropy/exact"] == pytest.approx(5.549, abs=0.05)
    assert lines[0]["rollout/length_max"] <= 6


def test_a_chat_template_is_used_where_there_is_one(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from entrostat.config import from_dict
    from entrostat.data.prompts import encode
    from entrostat.models.loading import load_policy
    from entrostat.tasks import Example

    model = byte_level_model(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = "{% for m in messages %}[{{m.role}}]{{m.content}}{% endfor %}>"
    tokenizer.save_pretrained(model)
    config = from_dict({"model": str(model), "prompt": {"system": "be brief"}})
    policy = load_policy(config)
    (ids,) = encode(policy, config, [Example("1+1")], new=4)
    assert policy.tokenizer.decode(ids) == "[system]be brief[user]1+1>"
    config.prompt.chat = False
    refused(lambda: encode(policy, config, [Example("1+1")], new=4), "prompt.system")
    config.prompt.system = ""
    (ids,) = encode(policy, config, [Example("1+1")], new=4)
    assert policy.tokenizer.decode(ids) == "1+1"
    refuses = "{{ raise_exception('no system role') }}"
    policy.tokenizer.chat_template, config.prompt.chat = refuses, True
    refused(lambda: encode(policy, config, [Example("1+1")], new=4), "prompt.chat")


def test_models_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["train", "--model", str(tmp_path / "empty")]) == 2
    assert "has no config.json" in capsys.readouterr().err
    model = byte_level_model(tmp_path / "model")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    assert main(["train", "--model", str(model), "--output", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "cannot load it" in error
    assert "Traceback" not in error
    assert not (tmp_path / "run").exists()


def test_a_run_that_stops_says_why_and_exits_1(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stopping_task.py").write_text(
        "from entrostat.tasks.target_sum import TargetSum\n"
        "class Bad(TargetSum):\n"
        "    def score(self, completion, example): raise KeyError('answer')\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ["train", "--task", "stopping_task:Bad", *SMALL, "--eval.prompts", "0"]
    assert main([*words, "--output", "run"]) == 1
    error = capsys.readouterr().err
    assert "iteration 1, rollout 0" in error
    assert "KeyError: 'answer'" in error
    assert "Traceback" not in error


@pytest.mark.long
def test_a_study_runs_compares_and_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from entrostat.study import runner

    carry_out = runner._execute  # pages of the trainings take longer than these themselves
    monkeypatch.setattr(runner, "_execute", lambda *given: carry_out(*given[:-1], False))
    (tmp_path / "s.toml").write_text(
        "title = 'two'\njobs = 2\n[base]\niterations = 2\n"
        "sampling = {prompts = 4, rollouts = 4}\neval = {prompts = 2, samples = 2}\n"
        "[[runs]]\nname = 'a'\nmethod = 'grpo'\n"
        "[[runs]]\nname = 'b'\nmethod = 'repo_r'\nseed = 1\n"
    )
    words = ["study", str(tmp_path / "s.toml"), "--output", str(tmp_path / "out")]
    done = read_study(tmp_path / "s.toml").runs["a"]  # as a study leaves it that was interrupted
    done.output = str(tmp_path / "out/a")
    es.train(done)
    logs = [tmp_path / "out" / name / "metrics.jsonl" for name in "ab"]
    before = [logs[0].stat().st_mtime_ns]
    assert main(words) == 0  # what is not done runs
    out = capfd.readouterr().out
    assert re.search(r"^ *a .*\n *b ", out, re.MULTILINE)
    assert logs[1].read_text().count("\n") == 2
    assert (tmp_path / "out/report.html").is_file()
    before.append(logs[1].stat().st_mtime_ns)
    assert main(words) == 0  # all is done: nothing runs again
    assert [log.stat().st_mtime_ns for log in logs] == before
    text = (tmp_path / "s.toml").read_text()
    (tmp_path / "s.toml").write_text(text.replace("prompts = 4", "prompts = 3"))
    capfd.readouterr()
    assert main(words) == 2  # `a` was made by hand: it is not written over
    assert "holds a run with other settings" in capfd.readouterr().err


def test_output_to_a_closed_pipe_is_no_traceback() -> None:
    line = f"set -o pipefail; {sys.executable} -m entrostat.cli --help | true"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert done.returncode == 0


def test_a_stopped_first_try_does_not_block_the_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["train", *SMALL, "--output", str(tmp_path / "run")]
    assert main([*words, "--task", "gym:chain_sum"]) == 2
    error = capsys.readouterr().err
    assert "256 new ones exceed the model's context of 64" in error
    assert "Lower --sampling.max-new-tokens (now 256)" in error
    assert "The tiny policy knows target_sum only: give another --model" in error
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.lock").touch()
    (tmp_path / "run/config.toml").write_text("seed = 5")
    assert main(words) == 0


def test_resume_cannot_go_back(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run = str(tmp_path / "run")
    assert main(["train", *SMALL, "--output", run]) == 0
    capsys.readouterr()
    assert main(["train", "--resume", run]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{run} already has 2 iterations; raise --iterations to go on\n")
    assert main(["train", "--resume", run, "--iterations", "1"]) == 2
    assert f"iterations is 1, but {run} has 2 done" in capsys.readouterr().err
    (tmp_path / "run/final/entrostat.json").unlink()
    assert main(["train", "--resume", run, "--iterations", "1"]) == 2
    assert "iterations is 1, but" in capsys.readouterr().err
    assert "iterations = 2" in (tmp_path / "run/config.toml").read_text()


def test_a_controller_at_its_limit_is_said(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    from entrostat.logs.run import read_run

    words = ["train", *SMALL, "--method", "grpo,repo_r", "--method.zeta", "0.1"]
    words += ["--eval.prompts", "0", "--output", str(tmp_path / "run")]
    # zeta starts at the paper's limit, and no policy of 15 tokens has 3 nats (ln 15 = 2.7)
    assert main([*words, "--method.target", "3"]) == 0
    said = "zeta was at its limit 0.1 in 2 of 2 iterations: it cannot hold the target"
    error = capsys.readouterr().err
    assert f"entrostat: warning: {said}" in error
    assert "Raise --method.zeta_max." in error
    (note,) = [note for note in read_run(tmp_path / "run").notes if "limit" in note]
    assert note in error


def test_names_that_the_hub_does_not_have(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import errors
    from transformers import AutoTokenizer

    response = types.SimpleNamespace(headers={}, request=None, status_code=404)

    def refuse(cause: Exception):
        def load(*_: object, **__: object) -> None:
            raise OSError("the library's text") from cause

        return load

    for cause, words in (
        (errors.RepositoryNotFoundError("no", response=response), "not a name on the hub"),
        (errors.LocalEntryNotFoundError("no"), "the hub could not be reached"),
        (errors.GatedRepoError("no", response=response), "the library's text"),
    ):
        monkeypatch.setattr(AutoTokenizer, "from_pretrained", refuse(cause))
        assert main(["train", "--model", "owner/name"]) == 2
        error = capsys.readouterr().err
        assert error.startswith("entrostat: error: model 'owner/name': cannot load it: ")
        assert words in error


def test_weights_that_do_not_fit_the_config_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    model = byte_level_model(tmp_path / "model")
    settings = json.loads((model / "config.json").read_text())
    for key, value, match in (
        ("num_hidden_layers", 3, "lack 9 of the tensors"),
        ("hidden_size", 48, "cannot load it"),
    ):
        (model / "config.json").write_text(json.dumps({**settings, key: value}))
        assert main(["train", "--model", str(model), "--output", str(tmp_path / "run")]) == 2
        assert match in capsys.readouterr().err


def test_code_in_a_model_directory_never_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = byte_level_model(tmp_path / "model")
    settings = json.loads((model / "config.json").read_text())
    settings |= {
        "model_type": "mine",
        "auto_map": {"AutoConfig": "m.C", "AutoModelForCausalLM": "m.M"},
    }
    (model / "config.json").write_text(json.dumps(settings))
    (model / "m.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    assert main(["train", "--model", str(model), "--output", str(tmp_path / "run")]) == 2
    assert "cannot load it" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_places_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "file").touch()
    for words in (
        ["train", *SMALL, "--output", str(tmp_path / "file/run")],
        ["train", *SMALL, "--output", str(tmp_path / ("x" * 300))],
        ["study", "recipes/demo.toml", "--output", str(tmp_path / "file/run")],
        ["pretrain", "--steps", "1", "--output", str(tmp_path / "file/tiny")],
    ):
        assert main(words) in (1, 2), words
        error = capsys.readouterr().err
        assert error.endswith("\n")
        assert "entrostat: error: " in error.split("\n")[-2], words
        assert "Traceback" not in error, words


def test_booleans_are_written_as_in_toml(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["train", *SMALL, "--prompt.chat=false", "--gradient-checkpointing", "true"]
    assert main([*words, "--output", str(tmp_path / "run")]) == 0
    text = (tmp_path / "run/config.toml").read_text()
    assert "gradient_checkpointing = true" in text
    assert "chat = false" in text


def test_true_and_false_are_text_where_text_is_asked_for() -> None:
    words = ["--log.name", "true", "--sampling.stop", "true", "x=false", "false", "--seed=3"]
    words += ["--gradient_checkpointing", "true", "--output=true", "--prompt.chat=false"]
    found = dataclass_flags(TrainConfig, TrainConfig(), words, "entrostat train", "")
    assert (found.log.name, found.output) == ("true", "true")
    assert found.sampling.stop == ("true", "x=false", "false")
    assert (found.gradient_checkpointing, found.prompt.chat) == (True, False)


def test_estimators_are_explained(capsys: pytest.CaptureFixture) -> None:
    assert main(["methods", "opo"]) == 0
    assert "sum(len R) / sum(len)" in capsys.readouterr().out


def test_an_ascii_terminal_sees_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from entrostat.cli import main; main(['--help']); print('→')"],
        env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "?" in done.stdout


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_study_leaves_no_training_behind(tmp_path: Path, how: signal.Signals) -> None:
    """By SIGTERM when one is at work, by SIGKILL when two are starting."""
    names = "a" if how == signal.SIGTERM else "ab"
    (tmp_path / "s.toml").write_text(
        "jobs = 2\n[base]\niterations = 100000\nsampling = {prompts = 2, rollouts = 2}\n"
        "eval = {prompts = 0}\nmethod = 'grpo'\n"
        + "".join(f"[[runs]]\nname = '{n}'\nseed = {i}\n" for i, n in enumerate(names))
    )
    study = subprocess.Popen(
        [sys.executable, "-m", "entrostat.cli", "study", "s.toml", "--output", "out"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def at_work() -> list[int]:
        """Trainings that log, or that have begun to load torch."""
        log = tmp_path / "out/a/metrics.jsonl"
        return children(study.pid) if how == signal.SIGKILL or log.exists() else []

    deadline = time.monotonic() + 240
    while len(pids := at_work()) < len(names) and time.monotonic() < deadline:
        time.sleep(0.05)
    study.send_signal(how)
    study.wait(timeout=80)
    assert len(pids) == len(names)
    deadline = time.monotonic() + 60
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
def test_a_training_whose_study_is_gone_before_it_asks_to_end_with_it_ends(tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # an output that is refused, when it has asked
    gone = subprocess.Popen(["true"])
    os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)  # nobody has waited for it yet
    for study, code in ((gone.pid, -signal.SIGTERM), (os.getpid(), 2)):
        done = subprocess.run(
            [sys.executable, "-m", "entrostat.cli", "train", "--output", str(tmp_path)],
            env=os.environ | {"ENTROSTAT_STUDY": str(study)}, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == code
    gone.wait()


def children(pid: int) -> list[int]:
    """Its children that have begun to load torch: they have asked to end with it by then."""
    found = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in found if "libtorch" in Path(f"/proc/{child}/maps").read_text()]
