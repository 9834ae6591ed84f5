"""`entrostat eval`: subjects times sets, with what it shows and what it leaves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import TrainConfig
from ..errors import need
from ..logs.files import make_directory
from .lm_eval import export
from .models import EvaluatedModel, ProblemSet, evaluated_models, of_task, problem_sets
from .progress import Display
from .results import side_by_side
from .runner import RESULTS, Sampler, Store, run_set, threads_of
from .settings import EvalConfig


def plan(
    specs: Sequence[str], config: EvalConfig, options: Mapping[str, Any], checkpoints: bool = False,
    check: Callable[[TrainConfig], None] = lambda config: None,
) -> tuple[list[EvaluatedModel], list[ProblemSet]]:  # fmt: skip
    """What is evaluated on what, checked before anything is loaded."""
    config.validate()
    subjects = evaluated_models(specs, checkpoints)
    if config.engine == "vllm" and len(subjects) > 1:
        raise ValueError("--engine vllm holds one model in a process: evaluate one per command")
    if config.on:
        return subjects, problem_sets(config.names(), options)
    if options:
        raise ValueError("--task.KEY is a parameter of the sets: name them, --on NAME")
    tasks = []
    for one in subjects:
        if one.config is None:
            raise ValueError(f"{one.spec!r}: evaluate it on what? --on NAME, or several: NAME,NAME")
        check(one.config)
        tasks.append({key: value for key, value in one.config.task.items() if key != "seed"})
        if tasks[-1] != tasks[0]:
            raise ValueError(
                f"{one.spec!r} was trained on {tasks[-1]['name']!r}, {subjects[0].spec!r} on "
                f"{tasks[0]['name']!r}: say on what to evaluate them, --on NAME"
            )
    return subjects, of_task(tasks[0])


def run_evaluation(
    subjects: Sequence[EvaluatedModel],
    sets: Sequence[ProblemSet],
    config: EvalConfig,
    display: Display,
) -> tuple[Path, list[tuple[Path, dict[str, Any]]]]:
    """Evaluate; the directory, and for each subject its own directory and results.

    What was answered before an error is kept.
    """
    need("eval", "entrostat eval", "sacrebleu")
    root = Path(config.output or "runs/eval")
    if not config.output and len(subjects) == 1:
        root = root / subjects[0].name
    try:
        make_directory(root)
    except OSError as error:
        raise ValueError(f"output {str(root)!r}: {error.strerror}") from None
    results = []
    base = _base(config, display)
    for one in subjects:
        directory = root if len(subjects) == 1 else root / one.name
        display.note(one.spec)
        found = _evaluate(one, sets, copy.deepcopy(config), directory, display, base)
        export(directory, found)
        results.append((directory, found))
    return root, results


def _base(config: EvalConfig, display: Display) -> Any:
    if not config.base:
        return None
    from .evaluator import load

    (subject,) = evaluated_models([config.base])
    display.note(f"base: {config.base}")
    return load(subject, copy.deepcopy(config), display.note)


def _evaluate(
    subject: EvaluatedModel, sets: Sequence[ProblemSet], config: EvalConfig, directory: Path,
    display: Display, base: Any,
) -> dict[str, Any]:  # fmt: skip
    from ..data.scoring import Scorer

    config.threads = config.threads or threads_of(directory)  # as before, to the last bit
    sampler, identity = _engine(subject, config, display, base)
    with Store(directory, identity or subject.facts(), config.threads) as store:
        results = store.results() or {}
        found: dict[str, Any] = dict(results.get("sets", {}))
        for one in sets:
            with Scorer(one.task, config.scoring, display.note) as score:
                display.begin(one.name)
                found[one.name] = run_set(one, config, sampler, score, store, display)
                display.end(one.name, found[one.name])
            results = subject.facts() | {"sets": found}
            store.write(RESULTS, results)
    return results


def _engine(
    subject: EvaluatedModel, config: EvalConfig, display: Display, base: Any
) -> tuple[Sampler, dict[str, Any]]:
    """The sampler, and what tells its policy from another."""
    if config.engine == "vllm":
        from .vllm import VllmSampler

        made = VllmSampler.of(subject, config, display.note)
        return made, made.identity
    from .evaluator import LabSampler, fingerprint, load

    policy = load(subject, config, display.note)
    return LabSampler(policy, config, subject, base), {"weights": fingerprint(policy)}


SHOWN = (
    "avg@{k}", "pass@1", "pass@{k}", "maj@{k}", "distinct", "ngram_diversity", "self_bleu",
    "clusters", "entropy", "prompt_entropy", "prompt_entropy_ratio", "logp_gap", "auroc", "ece",
    "length", "truncated", "failed",
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """One set's figures for the terminal: a row per figure, a column per model."""

    title: str
    models: list[str]
    rows: list[tuple[str, list[str]]]


def tables(results: Sequence[Mapping[str, Any]]) -> list[Table]:
    found = []
    for name in dict.fromkeys(name for one in results for name in one["sets"]):
        some = [(one["model"], one["sets"][name]) for one in results if name in one["sets"]]
        figures = side_by_side([entry for _, entry in some], SHOWN)
        if all(entry["k"] == 1 for _, entry in some):
            figures.pop("pass@1", None)
        if not any(one and one["value"] for one in figures.get("failed", ("", []))[1]):
            figures.pop("failed", None)
        rows = [(name, [cell(one) for one in cells]) for name, cells in figures.values()]
        counts = " / ".join(dict.fromkeys(f"{e['n']} problems x {e['k']}" for _, e in some))
        found.append(Table(f"{name}: {counts}", [model for model, _ in some], rows))
    return found


def cell(figure: Mapping[str, float | None] | None) -> str:
    """A figure with its interval, 0.430 [0.380, 0.490]; empty where there is none."""
    if figure is None:
        return ""
    text = f"{figure['value']:.3f}"
    if figure["low"] is None:
        return text
    return f"{text} [{figure['low']:.3f}, {figure['high']:.3f}]"
