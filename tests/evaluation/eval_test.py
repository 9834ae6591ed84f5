"""`entrostat eval`: samples, sets, subjects, resuming, what it leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import types
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing

import entrostat as es
from builders import json_lines, refused
from entrostat.cli import main
from entrostat.data.seeds import uniform
from entrostat.evaluation import lm_eval
from entrostat.evaluation.evaluator import LabSampler, fingerprint, load, mean_pooled
from entrostat.evaluation.models import Asked, evaluated_models, problem_sets
from entrostat.evaluation.progress import Display
from entrostat.evaluation.runner import plan, run_evaluation
from entrostat.evaluation.settings import PRESETS, Decoding, EvalConfig
from entrostat.evaluation.vllm import VllmSampler
from entrostat.models.policy import Policy
from entrostat.models.rollout import choose, sample
from processes import killed

pytestmark = pytest.mark.usefixtures("unrendered")

FEW = {"k": 4, "problems": 6, "resamples": 20, "on": "target_sum/test"}


@pytest.fixture(scope="module")
def tiny() -> Policy:
    (subject,) = evaluated_models(["tiny"])
    return load(subject, EvalConfig(), lambda text: None)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two iterations of training, both checkpoints kept."""
    config = es.TrainConfig(iterations=2, output=str(tmp_path_factory.mktemp("runs") / "run"))
    config.sampling.prompts, config.sampling.rollouts = 4, 4
    config.eval.prompts = 0
    return es.train(config)


def evaluate(output: Path, spec: str = "tiny", display: Display | None = None, **settings: Any):
    config = EvalConfig(**FEW | {"output": str(output)} | settings)
    subjects, sets = plan([spec], config, {})
    _, results = run_evaluation(subjects, sets, config, display or Display())
    return results[0][1]


def responses(output: Path, name: str = "target_sum_test") -> list[dict[str, Any]]:
    return lines_of(output / f"responses/{name}.jsonl")


def lines_of(file: Path) -> list[dict[str, Any]]:
    return json_lines(file)


# --- samples


def test_given_numbers_are_looked_up_in_the_distribution() -> None:
    for V in (5, 5000):  # both ways of choosing
        logits = torch.randn(1, V, generator=torch.Generator().manual_seed(V))
        p = torch.softmax(logits.double() / 0.7, -1)[0]
        u = torch.rand(300, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        token, logp = choose(logits.expand(300, V), 0.7, 1.0, u)
        below = torch.cat([torch.zeros(1), p]).cumsum(0)
        assert ((below[token] - 1e-6 <= u) & (u <= below[token + 1] + 1e-6)).all()
        torch.testing.assert_close(logp, p[token].log().float(), atol=1e-4, rtol=1e-4)
        largest, logp = choose(logits, 0.7, 1.0, None)
        assert largest.item() == p.argmax()
        assert logp.item() == pytest.approx(p.max().log().item(), abs=1e-4)


def test_given_numbers_stay_within_the_nucleus() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    u = torch.tensor([0.0, 0.62, 0.63, 0.999], dtype=torch.float64)  # .5 of .8 is .625
    token, _ = choose(logits.expand(4, 4), 1.0, 0.7, u)
    assert token.tolist() == [0, 0, 1, 1]


def test_a_samples_numbers_are_its_own() -> None:
    few, more = uniform(3, "set", 7, 2, 5), uniform(3, "set", 7, 4, 9)
    assert torch.equal(few, more[:2, :5])
    assert few.dtype == torch.float64
    assert not torch.equal(few[0], few[1])
    others = [uniform(4, "set", 7, 2, 5), uniform(3, "other", 7, 2, 5), uniform(3, "set", 8, 2, 5)]
    assert not any(torch.equal(few, other) for other in others)


def test_problems_and_samples_beside_it_change_no_sample(tmp_path: Path) -> None:
    whole = evaluate(tmp_path / "a", k=8)
    parts = evaluate(tmp_path / "b", k=8, batch=8)  # a problem at a time
    few = evaluate(tmp_path / "c", k=4, problems=3)
    for a, b in zip(responses(tmp_path / "a"), responses(tmp_path / "b"), strict=True):
        assert a["responses"] == b["responses"]
        assert a["logp"] == pytest.approx(b["logp"], abs=1e-5)
    for a, c in zip(responses(tmp_path / "a"), responses(tmp_path / "c"), strict=False):
        assert a["responses"][:4] == c["responses"]
    assert whole["sets"]["target_sum/test"]["k"] == 8
    assert parts["sets"]["target_sum/test"]["metrics"]["avg@8"]["value"] == pytest.approx(
        sum(sum(one["scores"]) for one in responses(tmp_path / "a")) / 48
    )
    assert few["sets"]["target_sum/test"]["n"] == 3


def test_greedy_is_transformers_own(tiny: Policy, tmp_path: Path) -> None:
    found = evaluate(tmp_path, k=None, greedy=True)["sets"]["target_sum/test"]
    assert found["k"] == 1
    assert found["settings"]["greedy"]
    for one in responses(tmp_path):
        ids = torch.tensor([tiny.encode(one["prompt"], False, "")])
        said = tiny.model.generate(ids, do_sample=False, max_new_tokens=13, pad_token_id=tiny.pad)
        assert one["responses"] == tiny.texts([said[0, ids.shape[1] :].tolist()])


def test_measured_as_the_model_says(tiny: Policy) -> None:
    (one,) = problem_sets(["target_sum/test"], {})
    sampler = LabSampler(tiny, EvalConfig(cluster_distance=0.0))
    examples = [one.task.example(i, "test") for i in range(2)]
    asked = Asked(one, Decoding(k=3, temperature=0.5), range(2), examples, 0)
    for example, answered in zip(examples, sampler(asked, lambda n: None), strict=True):
        prompt = tiny.encode(example.prompt, False, "")
        for text, n, end, logp, entropy in zip(
            answered.responses, answered.tokens, answered.finished, answered.logp or [],
            answered.entropy or [], strict=True,
        ):  # fmt: skip
            ids = prompt + tiny.tokenizer(text)["input_ids"] + tiny.eos[:1] * end
            assert len(ids) - len(prompt) == n
            with torch.no_grad():
                z = tiny.model(torch.tensor([ids])).logits[0, len(prompt) - 1 : -1].double() / 0.5
            p = z.log_softmax(-1)
            own = p[range(n), ids[len(prompt) :]]
            assert logp == pytest.approx(own.mean().item(), abs=1e-4)
            assert entropy == pytest.approx(-(p.exp() * p).sum(-1).mean().item(), abs=1e-4)
        assert answered.clusters is None


def test_embeddings_are_means_over_a_responses_own_tokens(tiny: Policy) -> None:
    prompts = [tiny.encode("23/4:", False, ""), tiny.encode("7/3:", False, "")]
    sequences = sample(
        tiny.model, prompts, rollouts=3, max_new_tokens=9, eos=tiny.eos, pad=tiny.pad,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    sequences.mask[1, 1:] = False  # a response of one token
    sequences.attention[1, sequences.prompt_width + 1 :] = 0
    found = mean_pooled(tiny, sequences, micro_batch=4)
    for row in range(6):
        own = sequences.tokens[row][sequences.attention[row].bool()][None]
        first = len(prompts[row // 3])
        with torch.no_grad():
            hidden = tiny.model(own, output_hidden_states=True).hidden_states[-1][0]
        expected = hidden[first:-1].mean(0) if row != 1 else hidden[first - 1]
        torch.testing.assert_close(found[row], expected, atol=1e-4, rtol=1e-4)


# --- what is asked


def test_settings_are_the_papers_unless_others_are_given() -> None:
    table = {name: EvalConfig(preset=name) for name in PRESETS}  # type: ignore[arg-type]
    greedy = Decoding(k=1, greedy=True)
    assert table["cov"].decoding("math500") == replace(greedy, max_new_tokens=8192)
    assert table["cov"].decoding("aime24") == Decoding(32, 0.6, max_new_tokens=8192)
    assert table["cov"].decoding("target_sum") == greedy  # its own task knows how long
    # OPEFO Sec. 6.1, STEER App. D: avg@32 on AIME and AMC, once elsewhere, top-p .7
    for paper, tokens in (("opefo", 3000), ("steer", 3072)):
        for task in ("aime24", "aime25", "amc23"):
            assert table[paper].decoding(task) == Decoding(32, 1.0, 0.7, max_new_tokens=tokens)
        for task in ("math500", "minerva", "olympiadbench"):
            assert table[paper].decoding(task) == Decoding(1, 1.0, 0.7, max_new_tokens=tokens)
    assert table["par"].decoding("gym:x") == Decoding(64)
    assert table["repo"].decoding("aime25") == Decoding(64, max_new_tokens=4096)
    assert EvalConfig().decoding("x") == Decoding(16, 1.0, 1.0)
    over = EvalConfig(preset="cov", temperature=0.8, max_new_tokens=5)
    assert over.decoding("math500") == Decoding(1, 0.8, max_new_tokens=5)
    assert EvalConfig(preset="par", greedy=True).decoding("x") == greedy
    # COV decodes math500 greedily: one response is what it asks for, two are not
    one, two = (EvalConfig(preset="cov", k=k).decoding("math500") for k in (1, 2))
    assert one == replace(greedy, max_new_tokens=8192)
    assert two == Decoding(2, max_new_tokens=8192)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"k": 0}, "--k must be at least 1, got 0"),
        ({"threads": 2000}, "--threads must be at most 1024, got 2000"),
        ({"temperature": 0.0}, "--temperature 0 is greedy decoding: write --greedy"),
        ({"temperature": -1.0}, "--temperature must be at least 0"),
        ({"top_p": 0.0}, r"--top_p must be in \(0, 1\], got 0"),
        ({"greedy": True, "k": 4}, "--greedy gives 4 equal responses: leave out --k"),
        ({"greedy": True, "top_p": 0.5}, "leave out temperature and top_p"),
        ({"stop": ("",)}, "--stop holds an empty text"),
        ({"device": "tpu"}, "--device must be 'auto', 'cpu' or 'cuda'"),
    ],
)
def test_settings_that_cannot_be_meant(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EvalConfig(**settings).validate()


def test_sets_by_name(tmp_path: Path) -> None:
    rows = [{"prompt": f"{i}", "answer": "x"} for i in range(20)]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = {
        name: [(one.name, one.split, one.count(None)) for one in problem_sets([name], {})]
        for name in ("target_sum", "target_sum/ood", "arithmetic", str(file), f"{file}/test")
    }
    assert found["target_sum"] == [("target_sum/test", "test", 100), ("target_sum/ood", "ood", 100)]
    assert found["target_sum/ood"] == [("target_sum/ood", "ood", 100)]
    assert [count for *_, count in found["arithmetic"]] == [50]
    assert found[str(file)] == [(f"{file}", "train", 20)]  # a bare file is all of it
    assert found[f"{file}/test"] == [(f"{file}/test", "test", 2)]
    folder = tmp_path / "sets"
    folder.mkdir()
    (folder / "mine.jsonl").write_text(
        "".join(json.dumps({"prompt": str(i), "answer": str(i)}) + "\n" for i in range(4))
    )
    (one,) = problem_sets([f"math:{folder}"], {})  # a directory's last part is no split
    assert one.count(None) == 4
    (one,) = problem_sets(["arithmetic"], {"digits": 2})
    assert (one.count(7), one.count(None), one.options) == (7, 256, {"digits": 2})
    assert "/" not in problem_sets([str(file)], {})[0].file
    for names, words in (
        (["target_sum/odd"], "unknown split of task 'target_sum': 'odd'. Did you mean 'ood'?"),
        (["target_som"], "unknown task 'target_som'"),
        (["target_sum", "target_sum/ood"], "set 'target_sum/ood' is named twice"),
    ):
        with pytest.raises(ValueError, match=words):
            problem_sets(names, {})


def test_subjects_of_a_run(run: Path, tiny: Policy, tmp_path: Path) -> None:
    def weights(spec: str) -> str:
        (subject,) = evaluated_models([spec])
        return fingerprint(load(subject, EvalConfig(), lambda text: None))

    assert weights(f"{run}@0") == fingerprint(tiny)
    assert weights(f"{run}@2") == weights(str(run))
    assert len({weights(f"{run}@{i}") for i in range(3)}) == 3
    every = evaluated_models([str(run)], checkpoints=True)
    assert [one.iteration for one in every] == [0, 1, 2]
    assert [one.name for one in every] == ["run@0", "run@1", "run@2"]
    assert evaluated_models([str(run)])[0].facts() == {
        "model": str(run), "run": str(run), "iteration": 2
    }  # fmt: skip
    assert [one.name for one in evaluated_models(["tiny", "tiny"])] == ["tiny", "tiny-2"]
    copy = str(shutil.copytree(run, tmp_path / "run-2"))  # a name that a second `run` would take
    names = [one.name for one in evaluated_models([str(run), str(run), copy, copy])]
    assert names == ["run", "run-2", "run-2-2", "run-2-3"]
    for manifest in (Path(copy) / "checkpoints").glob("*.json"):  # as another trainer's run
        manifest.unlink()
    found = evaluated_models([copy], checkpoints=True)
    assert [one.iteration for one in found] == [0, 2]
    kept = f"it has {run}@1, {run}@2, and {run}@0, which it began with"
    for spec, words in (
        (f"{run}@7", f"the run keeps no checkpoint 7; {kept}"),
        (f"{run}@best", r"has no best checkpoint \(`save.best` keeps one\)"),
        (f"{run}@x", "what follows @ is an iteration or `best`"),
        ("tinny", "unknown model 'tinny'. Did you mean 'tiny'?"),
    ):
        with pytest.raises(ValueError, match=words):
            evaluated_models([spec])
    weight = run / "checkpoints/000001.safetensors"
    kept_bytes = weight.read_bytes()
    weight.write_bytes(kept_bytes[:-1] + b"\x7f")
    refused(lambda: weights(f"{run}@1"), "run@1", "000001.safetensors")
    weight.write_bytes(kept_bytes)


def test_a_run_knows_its_own_sets(run: Path) -> None:
    _, sets = plan([str(run)], EvalConfig(), {})
    assert [one.name for one in sets] == ["target_sum/test", "target_sum/ood"]
    refused(lambda: plan([str(run), "tiny"], EvalConfig(), {}), "'tiny': evaluate it on what")
    refused(lambda: plan([str(run)], EvalConfig(), {"k_max": 4}), "--on")


@pytest.mark.parametrize("engine", ["lab", "vllm"])
def test_a_runs_own_task_ends_responses_as_it_trained(
    run: Path, tiny: Policy, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """`sampling.stop` and `max_new_tokens`, unless others are given; other tasks have their own."""
    (subject,) = evaluated_models([str(run)])
    assert subject.config is not None
    trained = replace(subject.config.sampling, stop=("+",), max_new_tokens=5)
    subject = replace(subject, config=replace(subject.config, sampling=trained))
    own, other = problem_sets(["target_sum/test", "words/test"], {})
    tokenizer = types.SimpleNamespace(chat_template=None)

    def settled(one: Any, which: Any = subject, **given: Any) -> tuple[int, list[str]]:
        config = EvalConfig(**given)
        sampler: Any = LabSampler(tiny, config, which)
        if engine == "vllm":
            llm = types.SimpleNamespace(get_tokenizer=lambda: tokenizer)
            sampler = VllmSampler(llm, config, subject=which)
        found = sampler.settings(one, config.decoding(one.task_name))
        return found["max_new_tokens"], found["stop"]

    assert settled(own) == (5, ["+"])
    assert settled(own, stop=(), max_new_tokens=7) == (7, [])
    assert settled(own, stop=("9",)) == (5, ["9"])
    assert settled(other) == (other.task.max_new_tokens("test"), ["\n"])
    assert settled(own, None) == (13, [])
    if engine == "lab":  # and so it is sampled
        examples, decoding = [own.task.example(i, "test") for i in (0, 1)], Decoding(k=4)
        asked = Asked(own, decoding, [0, 1], examples, 0)
        answered = LabSampler(tiny, EvalConfig(k=4), subject)(asked, lambda tokens: None)
        texts = [text for one in answered for text in one.responses]
        assert len(texts) == 8
        assert all("+" not in text for text in texts)


def test_characters_that_the_tokenizer_leaves_out_are_told(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="tokenizer of tiny leaves out A, B"):
        evaluate(tmp_path, on="words/test")


# --- what is left


class KilledAt(Display):
    """Kills its process when so many problems are done."""

    def __init__(self, done: int) -> None:
        self.done = done

    def problems(self, done: int, count: int) -> None:
        if done >= self.done:
            os.kill(os.getpid(), signal.SIGKILL)


def load_all() -> None:
    """What takes longer to import than to do is imported with this file."""


def evaluate_and_die(output: str) -> None:
    torch.set_num_threads(1)
    evaluate(Path(output), display=KilledAt(4), batch=8)


def test_killed_and_resumed_gives_the_same_table(tmp_path: Path) -> None:
    evaluate(tmp_path / "whole", batch=8)
    killed(load_all, partial(evaluate_and_die, str(tmp_path / "cut")))
    file = tmp_path / "cut/responses/target_sum_test.jsonl"
    assert len(responses(tmp_path / "cut")) == 4
    assert not (tmp_path / "cut/results.json").exists()
    # the kill came within a group of problems, and within a line
    text = file.read_text()
    file.write_text("".join(text.splitlines(True)[:3]) + text.splitlines()[3][:40])
    evaluate(tmp_path / "cut", batch=8)
    for name in ("results.json", "responses/target_sum_test.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_measured_precision_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command resumes where a second measurement prefers another precision."""
    seconds = {torch.float32: 2.0, torch.bfloat16: 1.0}
    monkeypatch.setattr("entrostat.models.hardware.product_seconds", lambda dtype: seconds[dtype])
    before = evaluate(tmp_path, precision="auto", problems=2)["sets"]["target_sum/test"]
    assert before["settings"]["precision"] == "bf16"
    seconds[torch.float32] = 1.0
    after = evaluate(tmp_path, precision="auto", problems=4)["sets"]["target_sum/test"]
    assert (after["settings"], after["n"]) == (before["settings"], 4)


def test_a_damaged_line_costs_its_problem_alone(tmp_path: Path) -> None:
    """The problem is asked again and stands last; fewer problems are still the first ones."""
    before = evaluate(tmp_path)
    file = tmp_path / "responses/target_sum_test.jsonl"
    first, *others = file.read_text().splitlines(True)
    file.write_text(f"{first[:40]}\n{''.join(others)}")
    assert evaluate(tmp_path) == before
    assert file.read_text().startswith("".join(others))
    evaluate(tmp_path, problems=3)
    (exported,) = tmp_path.rglob("samples_*.jsonl")
    assert sorted(row["doc_id"] for row in json_lines(exported)) == [0, 1, 2]


def test_a_directory_is_bound_to_its_settings(tmp_path: Path, run: Path) -> None:
    before, kept = evaluate(tmp_path), responses(tmp_path)
    assert evaluate(tmp_path) == before
    for settings, words in (
        ({"k": 5}, "responses of target_sum/test under other settings: k is 5, was 4"),
        ({"seed": 1}, "seed is 1, was 0"),
        ({"spec": str(run)}, "holds responses of another model"),
    ):
        with pytest.raises(ValueError, match=words):
            evaluate(tmp_path, **settings)
    more = evaluate(tmp_path, problems=8, on="target_sum")
    assert [one["n"] for one in more["sets"].values()] == [8, 8]
    assert responses(tmp_path)[:6] == kept


def test_responses_to_other_problems_are_not_taken(tmp_path: Path) -> None:
    """Kept answers belong to the problems that were asked, which a file may have changed since."""
    file = tmp_path / "mine.jsonl"
    rows = [{"prompt": f"{i}=", "answer": "5"} for i in range(4)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluate(tmp_path / "out", problems=4, on=str(file), max_new_tokens=8)
    for change in ({"answer": "4"}, {"prompt": "2+2="}):
        file.write_text("".join(json.dumps(row | change) + "\n" for row in rows))
        with pytest.raises(ValueError, match=r"another problem 0 than .* has now; choose another"):
            evaluate(tmp_path / "out", problems=4, on=str(file), max_new_tokens=8)
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *rows]))
    more = evaluate(tmp_path / "out", problems=8, on=str(file), max_new_tokens=8)
    assert [one["n"] for one in more["sets"].values()] == [8]


def test_results_responses_and_lm_evals_files(tmp_path: Path, run: Path) -> None:
    code = main(
        ["eval", f"{run}@0", f"{run}@1", "--k", "3", "--problems", "5", "--base", "tiny",
         "--resamples", "10", "--output", str(tmp_path)]
    )  # fmt: skip
    assert code == 0
    first, second = (json.loads((tmp_path / f"run@{i}/results.json").read_text()) for i in range(2))
    assert (first["run"], first["iteration"]) == (str(run), 0)
    assert second["model"] == f"{run}@1"
    entry = first["sets"]["target_sum/ood"]
    assert (entry["n"], entry["k"]) == (5, 3)
    assert {"value", "low", "high"} == set(entry["metrics"]["pass@3"])
    assert entry["metrics"]["prompt_entropy_ratio"]["value"] == pytest.approx(1.0)  # its own base
    lines = responses(tmp_path / "run@0", "target_sum_ood")
    assert [one["problem"] for one in lines] == list(range(5))
    assert all(len(one[key]) == 3 for one in lines for key in ("responses", "scores", "logp"))
    # lm-eval's readers: a directory of a model, names with the set between the first _ and the last
    (place,) = (tmp_path / "run@0/lm_eval").iterdir()
    (aggregated,) = place.glob("results_*.json")
    told = json.loads(aggregated.read_text())
    assert told["results"]["target_sum_ood"]["pass@3,none"] == entry["metrics"]["pass@3"]["value"]
    assert set(told["results"]) == set(told["configs"]) == set(told["versions"])
    files = {p.name[p.name.find("_") + 1 : p.name.rfind("_")]: p for p in place.glob("samples_*")}
    assert set(files) == set(told["configs"])
    rows = lines_of(files["target_sum_ood"])
    assert [row["resps"] for row in rows] == [[one["responses"]] for one in lines]
    metrics = [m["metric"] for m in told["configs"]["target_sum_ood"]["metric_list"]]
    mean = {m: sum(row[m] for row in rows) / 5 for m in metrics}
    for metric, value in mean.items():
        assert told["results"]["target_sum_ood"][f"{metric},none"] == pytest.approx(value)
    # two sets whose names are one there
    both = first | {"sets": {"a-b": entry, "a_b": entry}}
    place = lm_eval.export(tmp_path / "run@0", both)
    assert len(list(place.glob("samples_a_b*.jsonl"))) == 2


def test_the_page_escapes_what_models_say(tmp_path: Path) -> None:
    found = evaluate(tmp_path / "out")
    said = {"prompt": "<img src=x>\x1b[2J", "responses": ["<b>", "<b>", "a", "b"]}
    lines = [json.dumps(one | said) + "\n" for one in responses(tmp_path / "out")]
    (tmp_path / "out/responses/target_sum_test.jsonl").write_text("".join(lines))
    from entrostat.report.evaluation import write_page

    page = write_page(tmp_path / "out", [(tmp_path / "out", found)]).read_text()
    assert "<img src=x>" not in page
    assert "&lt;img src=x&gt;␛[2J" in page
    assert "<b>" not in page
    assert "6 problems, 4 responses each, temperature 1, top-p 1" in page


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "tiny", "--on", "target_sum/test", "--greedy", "--problems", "3"]
    assert main([*words, "--output", str(tmp_path / "out"), "--resamples", "5"]) == 0
    told = capsys.readouterr().out
    assert "target_sum/test: 3 problems x 1" in told
    assert f"report: {tmp_path / 'out/eval.html'}" in told
    for args, message in (
        ([], "name what to evaluate first"),
        (["tiny"], "'tiny': evaluate it on what? --on NAME"),
        (["tiny", "--on", "nothing"], "unknown task 'nothing'"),
        (["tiny", "--on", "nothing", "--greedy", "True"], "unknown task 'nothing'"),
        (["tiny", "--on", "nothing", "--greedy", "false"], "unknown task 'nothing'"),
        (["tiny", "--task", "words"], "sets are named by --on, --on words"),
        (["tiny", "--on", "words", "--task.name", "x"], "sets are named by --on"),
        (["tiny", "--on", "words", "--tempo", "1"], "unknown option"),
        (["nowhere", "--on", "words"], "unknown model 'nowhere'"),
        (["tiny", "--on", "words", "--method", "grpo"], "unknown option '--method'"),
    ):
        assert main(["eval", *args]) == 2
        said = capsys.readouterr().err.strip()
        assert message in said
        assert "\n" not in said


# --- vLLM


class FakeLLM:
    """As far as vLLM's interface is used."""

    made: dict[str, Any] = {}  # noqa: RUF012
    asked: list[tuple[Any, Any]] = []  # noqa: RUF012

    def __init__(self, **settings: Any) -> None:
        FakeLLM.made = settings

    def get_tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(FakeLLM.made["model"])
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(  # some close every text
            single="$A </s>", special_tokens=[("</s>", tokenizer.eos_token_id)]
        )
        return tokenizer

    def generate(self, prompts: list[Any], parameters: list[Any], use_tqdm: bool) -> list[Any]:
        FakeLLM.asked += zip(prompts, parameters, strict=True)
        one = types.SimpleNamespace(
            text="7+9+7", token_ids=[1, 2, 3, 4], cumulative_logprob=-2.0, finish_reason="stop"
        )
        long = types.SimpleNamespace(**vars(one) | {"finish_reason": "length"})
        return [types.SimpleNamespace(outputs=[one] * (p.n - 1) + [long]) for p in parameters]


def test_vllm_is_asked_and_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Path, tiny: Policy
) -> None:
    fake = types.SimpleNamespace(LLM=FakeLLM, SamplingParams=lambda **k: types.SimpleNamespace(**k))
    monkeypatch.setitem(sys.modules, "vllm", fake)
    found = evaluate(tmp_path, engine="vllm", temperature=0.6, top_p=0.7, seed=5)
    entry = found["sets"]["target_sum/test"]
    assert entry["metrics"]["truncated"]["value"] == 0.25
    assert not {"entropy", "clusters", "prompt_entropy"} & set(entry["metrics"])
    assert entry["settings"]["max_new_tokens"] == 13
    parameters = [p for _, p in FakeLLM.asked]
    assert {(p.n, p.temperature, p.top_p, p.max_tokens) for p in parameters} == {(4, 0.6, 0.7, 13)}
    assert len({p.seed for p in parameters}) == 6
    (one,) = problem_sets(["target_sum/test"], {})
    prompt = tiny.encode(one.task.example(0, "test").prompt, False, "")
    assert FakeLLM.asked[0][0] == {"prompt_token_ids": prompt}
    for line in responses(tmp_path):
        assert line["logp"] == [-0.5] * 4
        right = one.task.score("7+9+7", one.task.example(line["problem"], "test"))
        assert line["scores"] == [right] * 4
    refused(lambda: evaluate(tmp_path / "b", f"{run}@1", engine="vllm"), "vLLM reads whole models")
    refused(
        lambda: evaluate(tmp_path / "c", engine="vllm", base="tiny"), "which vLLM does not measure"
    )
    own = tmp_path / "own"
    shutil.copytree(run / "final", own)
    evaluate(tmp_path / "e", str(own), engine="vllm")
    weights = load_file(own / "model.safetensors")
    save_file({name: w + 1e-3 for name, w in weights.items()}, own / "model.safetensors")
    refused(
        lambda: evaluate(tmp_path / "e", str(own), engine="vllm"),
        "responses of another model (weights differs)",
    )
    monkeypatch.setitem(sys.modules, "vllm", None)
    refused(lambda: evaluate(tmp_path / "d", engine="vllm"), "--engine")
